"""`forge-tools doctor`: what is wrong, and how to fix it. A check reports; it never repairs."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text
from typer import Option

from forge_tools import __version__
from forge_tools.cli.attention import BEATS, concerns
from forge_tools.cli.checks import Finding, Level, check_broker, check_machine, note, ok, problem
from forge_tools.cli.face import FAILED, OK, App, Face
from forge_tools.cli.services import with_store
from forge_tools.cli.text import age, counted, one_line
from forge_tools.config import Settings
from forge_tools.embedded.home import stack_holder
from forge_tools.environment import misspelt
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.model.audit import Head
from forge_tools.model.overview import Overview, ServerState, WorkerRecord
from forge_tools.model.places import serving_command
from forge_tools.model.tools import ToolSpec
from forge_tools.sandbox.processes.trees import MARKS
from forge_tools.secrets.encryption import KeyFolder
from forge_tools.storage import Store, open_store
from forge_tools.storage.connection.faults import MORE, ForbiddenError
from forge_tools.storage.connection.pool import IDLE_WORKER, MOST_OF_ONE, Connections, role_setting
from forge_tools.storage.directory import PublicKey
from forge_tools.urls import without_passwords

MAX_SKEW = 5.0
"""Seconds that this clock may differ from the database's: they already confuse people; after an hour, calls are refused."""

WINDOW = 60.0
"""Failures of calls that ended in the last so many seconds are reported."""

LATELY = 3600.0
"""How many seconds ago an unfit worker may have left to be reported."""

START_SECONDS = 60.0
"""How long the processes of a worker may take to answer for the first time."""

RAISE = "Raise max_connections, or use a pooler: FORGE_DATABASE_POOLER=transaction (docs/database.md)."

app = App()

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}
_LEVELS = {"now": Level.PROBLEM, "soon": Level.NOTE}


@app.command()
def doctor(
    face: Face,
    worker: Annotated[
        bool, Option("--worker", help="Only check whether a worker of this host is alive; see the exit code.")
    ] = False,
) -> None:
    """Report what is wrong with broker, database, workers and versions, and how to fix it.

    Exit code 0: all is well; 1: there are problems.
    """
    if worker:
        settings = Settings.load()
        known = with_store(lambda store: store.workers.list(seen_within=settings.lease), settings)
        host = settings.hostname
        is_alive = any(one.hostname == host and one.stopped_at is None for one in known)
        unseen = f"No worker of {host} has been seen for {settings.lease:g} s."
        face.tell({"hostname": host, "alive": is_alive}, f"A worker of {host} is alive." if is_alive else unseen)
        raise typer.Exit(OK if is_alive else FAILED)
    findings = list(check_everything())
    problems = [one for one in findings if one.level is Level.PROBLEM]
    if face.is_json:
        face.document({"healthy": not problems, "findings": [asdict(one) for one in findings]})
    else:
        face.out.print(_table(findings))
        face.say()
        said = f"{counted(len(problems), 'problem')}." if problems else "All is well."
        face.say(said, style="bold red" if problems else "green")
    if problems:
        raise typer.Exit(FAILED)


def _table(findings: Sequence[Finding]) -> Table:
    made = Table.grid(Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for one in findings:
        made.add_row(Text(one.level.value, style=_STYLES[one.level]), one.subject, Text(one_line(one.said)))
        if one.way_out:
            made.add_row("", "", Text(one_line(one.way_out), style="cyan"))
    return made


def check_everything() -> Iterator[Finding]:
    for name, meant in misspelt(Settings.model_fields, MARKS).items():
        yield problem("settings", f"nothing reads {name}", f"Did you mean {meant}?")
    try:
        settings = Settings.load()
    except ConfigurationError as error:
        yield problem("settings", error.message, "Correct it (docs/settings.md); then the rest can be checked.")
        return
    yield from check_machine(settings)
    if not _is_down(settings):
        yield from check_broker(settings)
    # Where no stack was ever started there is no database, as `check_home` reports.
    if not settings.is_embedded or settings.home.is_dir():
        yield from asyncio.run(check_database(settings))


def _is_down(settings: Settings) -> bool:
    """Whether an embedded stack is configured but not running, which explains a missing broker and workers."""
    return settings.is_embedded and stack_holder(settings.home.absolute()) is None


async def check_database(settings: Settings) -> list[Finding]:
    try:
        async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
            return [one async for one in _check(store, settings)]
    except ForgeError as error:
        return [problem("database", error.message.replace(f"; {MORE}", ""))]  # which would point at this command


async def _check(store: Store, settings: Settings) -> AsyncIterator[Finding]:
    yield ok("database", f"{await store.server()} at {without_passwords(settings.database)}, migrated")
    yield await _writes(store)
    yield await _rows(store)
    seen = await store.overviews.read(window=WINDOW, lease=settings.lease, patience=BEATS * settings.heartbeat)
    live = [one.worker for one in seen.workers if one.worker.silent_seconds <= settings.lease]
    if connections := await store.connections():
        yield check_connections(connections, len(live), settings)
    known, directory = await store.workers.list(), await store.directories.read()
    for found in (
        *check_clock(known),
        check_encryption(directory.encryption_key, KeyFolder(settings.keys_folder).ids(), settings.keys_folder),
        *check_digests(store.dialect, settings),
        *await _signature(store, settings),
        *(problem("catalogue", sentence) for sentence in await store.catalogue.disagreements()),
    ):
        yield found
    if live or not _is_down(settings):
        for found in check_calls(seen, live, known, directory.enabled, settings):
            yield found


async def _writes(store: Store) -> Finding:
    """Raises if the database cannot be written to."""
    try:
        await store.workers.take_lease("doctor", "doctor", 1.0)  # a write that no service notices
    except ForbiddenError:
        return note("writes", "not tried: that takes the login of a worker (deploy/postgres/README.md)")
    return ok("writes", "the database takes them")


async def _signature(store: Store, settings: Settings) -> list[Finding]:
    try:
        return [*check_signature(await store.audit.head(), settings)]
    except ForbiddenError:
        return [note("audit", "not checked: clients may not read the chain (deploy/postgres/README.md)")]


async def _rows(store: Store) -> Finding:
    try:
        refused = await store.violations()
    except ForgeError as error:
        return note("rows", f"not all of them could be checked: {error.message}")
    if not refused:
        return ok("rows", "the tables hold nothing that their checks refuse")
    way_out = "forge-tools did not write this: correct or delete the rows, or restore a backup; then add the missing checks again."
    return problem("rows", f"the tables hold what their checks refuse: {', '.join(refused)}", way_out)


def check_clock(workers: Sequence[WorkerRecord]) -> Iterator[Finding]:
    """Compare clocks by a worker's row: its last heartbeat plus its age is the database's current time."""
    moments = [one.last_seen_at.timestamp() + one.silent_seconds for one in workers if one.last_seen_at is not None]
    if not moments:
        return
    skew = time.time() - moments[0]
    if abs(skew) > MAX_SKEW:
        direction = "ahead of" if skew > 0 else "behind"
        yield problem("clock", f"this host is {abs(skew):.0f} s {direction} the database", "Set the clock (NTP).")
    else:
        yield ok("clock", f"within {max(abs(skew), 0.1):.1f} s of the database's")


def check_connections(found: Connections, workers: int, settings: Settings) -> Finding:
    """Compare what that many workers need with what there is. A pooler sees to that, but may let statements run for ever."""
    if settings.database_pooler != "none":
        return _pooled(found, settings)
    others = found.open - found.ours
    idle, busy = others + workers * IDLE_WORKER, others + workers * MOST_OF_ONE
    said = (
        f"{found.open} of {found.most} are open, {found.ours} of them by forge-tools; with {others} by others and "
        f"{counted(workers, 'worker')} {idle} are needed, and up to {busy} under load"
    )
    if idle > found.most:
        return problem("connections", said, RAISE)
    return note("connections", said, RAISE) if busy > found.most else ok("connections", said)


def _pooled(found: Connections, settings: Settings) -> Finding:
    after = f"after {found.statement_ms / 1000:g} s"
    if found.is_limited:
        return ok("connections", f"through a transaction pooler; a statement ends {after}")
    limit = f"ends {after}" if found.statement_ms else "never ends"
    way_out = f"{role_setting(settings.database)}; then have the pooler RECONNECT."
    return problem("connections", f"through a transaction pooler, where a statement that hangs {limit}", way_out)


def check_encryption(key: PublicKey | None, held: list[str], folder: Path) -> Finding:
    if key is None:
        said = "there is no key to encrypt them: calls with a secret parameter are refused"
        return note("secrets", said, "Make one where workers read it (FORGE_ENCRYPTION_KEYS): forge-tools keys new")
    where = f"with {folder}" if key.id in held else "where workers have its private half, not on this host"
    return ok("secrets", f"encrypted with key {key.id}, decrypted {where}")


def check_digests(dialect: str, settings: Settings) -> Iterator[Finding]:
    """On SQLite the key is a file, created on first use."""
    if dialect == "sqlite":
        return
    if settings.digest_key.get_secret_value():
        yield ok("idempotency", "FORGE_DIGEST_KEY is set here; it must be the same for all clients")
    else:
        said = "FORGE_DIGEST_KEY is not set here: calls from here with an idempotency key are refused"
        yield note("idempotency", said, "Set the same secret for all clients: openssl rand -hex 32")


def check_signature(head: Head | None, settings: Settings) -> Iterator[Finding]:
    """The last batch is better evidence than the settings of this host, which may lack a key on purpose."""
    path = settings.audit_key
    if path is not None and not path.exists():
        said = f"FORGE_AUDIT_KEY names {path}, which does not exist"
        yield problem("audit", said, f"forge-tools audit keygen {path}")
    elif head is not None and head.key_id is not None:
        yield ok("audit", f"history is signed by key {head.key_id}, the last batch is {head.sequence}")
    elif settings.is_embedded or (head is None and path is not None):
        yield ok("audit", "history will be signed")
    else:
        said = "history is sealed without a signature: the owner of the database could rebuild the chain"
        yield note("audit", said, "forge-tools audit keygen FILE, and FORGE_AUDIT_KEY=FILE for workers")


def check_calls(
    seen: Overview,
    live: Sequence[WorkerRecord],
    known: Sequence[WorkerRecord],
    tools: Sequence[ToolSpec],
    settings: Settings,
) -> Iterator[Finding]:
    """Check workers, queues and calls: what `top` says needs attention, and what is well."""
    for worker in live:
        yield from check_worker(worker)
        yield from check_servers(worker.servers)
    for worker in known:
        if worker.stopped_at and worker.unfit and worker.silent_seconds < LATELY:
            said = f"{_name(worker)} left {age(worker.silent_seconds)} ago, unfit: {one_line(worker.unfit)}"
            way_out = "Look in the history for the calls that ran there, and raise that limit on the host."
            yield note("worker", said, way_out)
    yield from check_queues(seen, tools, settings)
    for one in concerns(seen, heartbeat=settings.heartbeat, lease=settings.lease):
        yield Finding(_LEVELS[one.level], one.subject, one.said, one.way_out)


def check_worker(worker: WorkerRecord) -> Iterator[Finding]:
    yield _serving(worker)
    if withheld := worker.walls.withheld:
        said = f"{_name(worker)} leaves calls alone that are to have walls: {', '.join(sorted(withheld))}"
        asked = (one.partition(" ") for one in withheld.values())
        wishes = ", ".join(sorted({f"{whose} asks for {tier}" for tier, _, whose in asked}))
        yield note("worker", said, f"Give them another host, or allow less: {wishes} (docs/walls.md).")
    if worker.version != __version__:
        said = f"{_name(worker)} runs version {worker.version}, this is {__version__}"
        yield note("worker", said, "Install the new version there and restart it.")
    if worker.dropped_messages:
        said = f"{_name(worker)} dropped {worker.dropped_messages:,} messages that forge-tools did not write"
        way_out = "Find out who else writes to that broker, and give them a user or a database of their own."
        yield note("worker", said, way_out)


def _serving(worker: WorkerRecord) -> Finding:
    slots = counted(worker.concurrency, "slot")
    if worker.slots < worker.concurrency:
        slots = f"{worker.slots} of {slots} answer{'s' if worker.slots == 1 else ''}"
    said = f"{_name(worker)}: {worker.lane} lane, walls {worker.walls}, queues {worker.serves}, {slots}, "
    said += f"seen {age(worker.silent_seconds)} ago"
    if worker.slots >= worker.concurrency:
        return ok("worker", said)
    way_out = "Processes that do not answer are replaced within a minute. If that does not help, look at the log, or restart it."
    return note("worker", said, way_out) if worker.slots or _starts(worker) else problem("worker", said, way_out)


def _starts(worker: WorkerRecord) -> bool:
    started, seen = worker.started_at, worker.last_seen_at
    return started is not None and seen is not None and (seen - started).total_seconds() < START_SECONDS


def check_servers(states: Iterable[ServerState]) -> Iterator[Finding]:
    for one in states:
        if one.status != "failing":
            yield (ok if one.status == "serving" else note)("mcp server", one.sentence)
        for tool, reason in one.left_out.items():
            yield note("mcp server", f"{tool} is not offered: {reason}")


def check_queues(seen: Overview, tools: Collection[ToolSpec], settings: Settings) -> Iterator[Finding]:
    """Check the lanes of queues, except those where calls wait unserved: `concerns` reports them."""
    needed = {(settings.queue_for(tool.name, tool.category.value), tool.lane) for tool in tools}
    for one in seen.queues:
        if one.workers:
            count = f"{one.waiting} waiting for {age(one.oldest_seconds or 0)}" if one.waiting else "nothing waits"
            yield ok("queue", f"{one.queue}, {one.lane} lane: served, {count}")
    if seen.workers:  # else `concerns` says that there are none
        told = {(one.queue, one.lane) for one in seen.queues if one.workers or one.waiting}
        for queue, lane in sorted(needed - told):
            said = f"{queue}, {lane} lane: no live worker serves it, nothing waits"
            yield problem("queue", said, serving_command(queue, lane))


def _name(worker: WorkerRecord) -> str:
    return f"{worker.hostname} pid {worker.pid}"
