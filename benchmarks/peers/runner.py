"""Rounds of turns: every peer in each, one at a time on the same servers, and each round begins with another."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import in_turn
from benchmarks.peers import subject
from benchmarks.peers.catalogue import OURS, Peer
from benchmarks.peers.environments import InstallationError, install, version
from benchmarks.peers.turn import MeasureError, Readings, Turn
from benchmarks.quiet import PATIENCE_SECONDS, wait_for_quiet
from forge_tools.config import Settings
from forge_tools.embedded.stack import settings_environment
from tests.services import PostgresServer, ValkeyServer
from tests.session_folder import SessionFolder

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much each peer does in one round; `burst` is a limit to what the peer's own entry says.

    `patience` is how many seconds each turn waits at most for others to leave the machine alone.
    """

    burst: int = 1_000_000
    round_trips: int = 200
    sleeps: int = 500
    patience: float = PATIENCE_SECONDS


QUICK = Sizes(burst=200, round_trips=20, sleeps=50, patience=0)


@dataclass(slots=True)
class Account:
    """The results of one peer: readings by measure and name, a figure per round, and what could not be measured."""

    peer: Peer
    version: str = ""
    readings: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def install(self, tell: Tell) -> None:
        """Install the peer if it is missing, and note its version."""
        peer = self.peer
        try:
            if peer.environment is not None:
                tell(f"installing {peer.title}")
                install(peer.environment)
            self.version = version(peer.environment, peer.package)
        except (InstallationError, OSError) as error:
            self.fail("installation", str(error))

    def add(self, measure: str, readings: Readings) -> None:
        for name, value in readings.items():
            self.readings.setdefault(measure, {}).setdefault(name, []).append(value)

    def fail(self, measure: str, reason: str) -> None:
        """Record a failure; readings of that measure in other rounds do not count either."""
        self.failures[measure] = reason
        self.readings.pop(measure, None)


@dataclass(frozen=True, slots=True)
class Servers:
    """One Valkey, one PostgreSQL that syncs what it commits; a database for each peer."""

    folder: Path
    valkey: ValkeyServer
    postgres: PostgresServer

    def turn_of(self, peer: Peer, database: str) -> Turn:
        home = self.folder / f"{peer.name}-home"
        home.mkdir()
        environment = {subject.BROKER: f"unix://{self.valkey.socket}", subject.DATABASE: database}
        if peer.name == OURS:
            settings = Settings.load(
                home=home, workspace=home, broker_url=self.valkey.url, database_url=database, routes={}
            )
            environment |= settings_environment(settings)
        return Turn(peer, home, environment, (self.valkey.process.pid, self.postgres.process.pid))


def run(peers: Sequence[Peer], sizes: Sizes, rounds: int, tell: Tell) -> list[Account]:
    """Install what is missing, then let the peers take turns; `tell` gets what is under way."""
    accounts = {peer.name: Account(peer) for peer in peers}
    for account in accounts.values():
        account.install(tell)
    tell("starting servers")
    with ExitStack() as cleanup:
        folder = SessionFolder()
        cleanup.callback(folder.remove)
        valkey = cleanup.enter_context(ValkeyServer(folder.path / "valkey"))
        postgres = cleanup.enter_context(PostgresServer(folder.path / "postgres", fsync=True))
        servers = Servers(folder.path, valkey, postgres)
        turns = _prepare(accounts, servers, tell)
        for number in range(rounds):
            for name in in_turn(list(turns), number):
                tell(f"round {number + 1} of {rounds}: {accounts[name].peer.title}")
                valkey.flush()
                wait_for_quiet(sizes.patience)
                _take(turns[name], accounts[name], sizes)
    return list(accounts.values())


def _prepare(accounts: Mapping[str, Account], servers: Servers, tell: Tell) -> dict[str, Turn]:
    """The turns of all peers that are installed and have their tables."""
    turns = {}
    for name, account in accounts.items():
        if account.failures:
            continue
        tell(f"preparing {account.peer.title}")
        turn = servers.turn_of(account.peer, servers.postgres.create_database())
        try:
            turn.prepare()
        except MeasureError as error:
            account.fail("preparation", str(error))
        else:
            turns[name] = turn
    return turns


def _take(turn: Turn, account: Account, sizes: Sizes) -> None:
    """Take one turn. If waiting needs other workers than computing, they are restarted."""
    peer = turn.peer
    count = min(peer.burst, sizes.burst)
    plan = [(peer.concurrency, "round-trip", sizes.round_trips), (peer.concurrency, "burst", count)]
    if peer.waiting is not None:
        plan.append((peer.waiting, "sleeps", sizes.sleeps))
    for concurrency in dict.fromkeys(step[0] for step in plan):
        steps = [(measure, count) for with_this, measure, count in plan if with_this == concurrency]
        with turn.crew(concurrency) as crew:
            for measure, calls in steps:
                if measure in account.failures:
                    continue
                try:
                    account.add(measure, turn.measure(crew, measure, calls))
                except MeasureError as error:
                    account.fail(measure, str(error))
