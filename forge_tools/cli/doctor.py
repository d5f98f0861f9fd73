"""`forge-tools doctor`: what is wrong, and how to fix it. A check reports; it never repairs."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text
from typer import Option

from forge_tools import __version__
from forge_tools.cli import attention
from forge_tools.cli.checks import (
    Finding,
    Level,
    check_broker,
    check_connections,
    check_keys,
    check_machine,
    is_down,
    note,
    ok,
    problem,
)
from forge_tools.cli.face import FAILED, OK, App, Face
from forge_tools.cli.text import age, counted, one_line
from forge_tools.config import Settings
from forge_tools.environment import misspelt
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.model import QueueDepth, ServerState, StuckCalls, ToolSpec, WorkerRecord
from forge_tools.model.places import serving_command
from forge_tools.sandbox.processes.trees import MARKS
from forge_tools.storage import Store, open_store
from forge_tools.storage.connection.faults import MORE
from forge_tools.urls import without_passwords

MAX_SKEW = 5.0
"""Seconds between this clock and the database's; after an hour calls are refused, and seconds already confuse people."""

LATELY = 3600.0
"""For how many seconds it matters that a worker was unfit and left."""

START_SECONDS = 60.0
"""How long the processes of a worker may take to answer for the first time."""

Places = set[tuple[str, str]]
"""(queue, lane) pairs."""

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}

app = App()


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the database says about workers; those that stopped normally are left out."""

    live: list[WorkerRecord]
    silent: list[WorkerRecord]
    tools: Sequence[ToolSpec]
    backlog: list[QueueDepth]
    stuck: list[StuckCalls] = field(default_factory=list)
    unfit: list[WorkerRecord] = field(default_factory=list)
    """Those that recently left for being unfit."""

    @property
    def served(self) -> Places:
        return {(queue, worker.lane) for worker in self.live for queue in worker.queues}


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
        is_alive, host = asyncio.run(is_worker_alive(settings)), settings.hostname
        said = (
            f"A worker of {host} is alive."
            if is_alive
            else f"No worker of {host} has been seen for {settings.lease:g} s."
        )
        face.tell({"hostname": host, "alive": is_alive}, said)
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


def check_everything() -> Iterator[Finding]:
    """Check the settings, and what they lead to."""
    for name, meant in misspelt(Settings.model_fields, MARKS).items():
        yield problem("settings", f"nothing reads {name}", f"Did you mean {meant}?")
    try:
        settings = Settings.load()
    except ConfigurationError as error:
        yield problem("settings", error.message, "Correct it (docs/settings.md); then the rest can be checked.")
        return
    yield from check_machine(settings)
    if not is_down(settings):
        yield from check_broker(settings)
    if not settings.is_embedded or settings.home.is_dir():
        yield from asyncio.run(check_fleet(settings))


def _table(findings: Sequence[Finding]) -> Table:
    made = Table.grid(Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for one in findings:
        made.add_row(Text(one.level.value, style=_STYLES[one.level]), one.subject, Text(one_line(one.said)))
        if one.way_out:
            made.add_row("", "", Text(one_line(one.way_out), style="cyan"))
    return made


async def check_fleet(settings: Settings) -> list[Finding]:
    """Check the database, and what it says about workers."""
    try:
        async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
            return await _check(store, settings)
    except ForgeError as error:
        return [problem("database", error.message.replace(f"; {MORE}", ""))]


async def is_worker_alive(settings: Settings) -> bool:
    """Whether a worker of this host has a heartbeat younger than its lease.

    Raises:
        ForgeError: the database cannot answer.
    """
    async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
        workers = await store.workers.list(seen_within=settings.lease)
        return any(one.hostname == settings.hostname and one.stopped_at is None for one in workers)


async def _check(store: Store, settings: Settings) -> list[Finding]:
    found = [ok("database", f"{await store.server()} at {without_passwords(settings.database)}, migrated")]
    await store.workers.take_lease("doctor", "doctor", 1.0)  # raises if the database cannot be written to
    found.append(ok("writes", "the database takes them"))
    found.append(await _rows(store))
    workers = await store.workers.list()
    known = [one for one in workers if one.stopped_at is None]
    fleet = Fleet(
        live=[one for one in known if one.silent_seconds <= settings.lease],
        silent=[one for one in known if one.silent_seconds > settings.lease],
        tools=(await store.directories.read()).enabled,
        backlog=await store.overviews.backlog(),
        stuck=await store.overviews.stuck(lease=settings.lease, patience=attention.BEATS * settings.heartbeat),
        unfit=[one for one in workers if one.stopped_at and one.unfit and one.silent_seconds < LATELY],
    )
    if connections := await store.connections():
        found.append(check_connections(connections, len(fleet.live), settings))
    found += check_clock(workers)
    found += await check_keys(store, settings)
    found += [problem("catalogue", sentence) for sentence in await store.catalogue.disagreements()]
    return found if is_down(settings) and not fleet.live else [*found, *_serving_it(fleet, settings)]


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
    seen = next((one for one in workers if one.last_seen_at is not None), None)
    if seen is None or seen.last_seen_at is None:
        return
    skew = time.time() - seen.last_seen_at.timestamp() - seen.silent_seconds
    if abs(skew) > MAX_SKEW:
        direction = "ahead of" if skew > 0 else "behind"
        yield problem("clock", f"this host is {abs(skew):.0f} s {direction} the database", "Set the clock (NTP).")
    else:
        yield ok("clock", f"within {max(abs(skew), 0.1):.1f} s of the database's")


def _serving_it(fleet: Fleet, settings: Settings) -> Iterator[Finding]:
    yield from check_workers(fleet)
    yield from check_servers(one for worker in fleet.live for one in worker.servers)
    yield from check_queues(fleet, settings)
    for one in fleet.stuck:
        yield problem("stuck", attention.sentence(one), attention.way_out(one))


def check_workers(fleet: Fleet) -> Iterator[Finding]:
    if not fleet.live:
        yield problem("workers", "none is alive", attention.START)
    for worker in fleet.live:
        yield _serving(worker)
        yield from _live(worker)
    for worker in fleet.unfit:
        said = f"{_name(worker)} left {age(worker.silent_seconds)} ago, unfit: {one_line(worker.unfit or '')}"
        yield note(
            "worker", said, "Look in the history for the calls that ran there, and raise that limit on the host."
        )
    for worker in fleet.silent:
        yield problem("worker", f"{_name(worker)}: silent for {age(worker.silent_seconds)}", attention.GONE)


def _live(worker: WorkerRecord) -> Iterator[Finding]:
    if worker.unfit:
        said = f"{_name(worker)} is unfit and claims nothing: {one_line(worker.unfit)}"
        way_out = "It ends by itself, and its supervisor starts a new one. Raise that limit on the host."
        yield problem("worker", said, way_out)
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
        yield note(
            "worker", said, "Find out who else writes to that broker, and give them a user or a database of their own."
        )


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
        if one.status == "failing":
            way_out = "It is restarted until it works. Fix what it reports, or its entry in FORGE_MCP_CONFIG."
            yield problem("mcp server", one.sentence, way_out)
        else:
            yield (ok if one.status == "serving" else note)("mcp server", one.sentence)
        for tool, reason in one.left_out.items():
            yield note("mcp server", f"{tool} is not offered: {reason}")


def check_queues(fleet: Fleet, settings: Settings) -> Iterator[Finding]:
    waiting = {(one.queue, one.lane): one for one in fleet.backlog if one.queued}
    for queue, lane in sorted(_needed(fleet, settings) | waiting.keys()):
        depth = waiting.get((queue, lane))
        count = f"{depth.queued} waiting for {age(depth.oldest_seconds or 0)}" if depth else "nothing waits"
        if (queue, lane) in fleet.served:
            yield ok("queue", f"{queue}, {lane} lane: served, {count}")
        elif fleet.live or depth:
            said = f"{queue}, {lane} lane: no live worker serves it, {count}"
            yield problem("queue", said, serving_command(queue, lane))


def _needed(fleet: Fleet, settings: Settings) -> Places:
    """Return where the tools of the catalogue run by default."""
    return {(settings.queue_for(tool.name, tool.category.value), tool.lane) for tool in fleet.tools}


def _name(worker: WorkerRecord) -> str:
    return f"{worker.hostname} pid {worker.pid}"
