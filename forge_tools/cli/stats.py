"""`forge-tools stats`: timing per tool, what waits in queues, who works."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from forge_tools.cli import stuck
from forge_tools.cli.database import with_store
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import age, iso, took
from forge_tools.cli.tables import Column, table
from forge_tools.config import Settings
from forge_tools.records import QueueDepth, StuckCalls, ToolStats, WorkerRecord
from forge_tools.storage import Store

app = command_app()


@dataclass(frozen=True, slots=True)
class _Numbers:
    tools: list[ToolStats]
    queues: list[QueueDepth]
    stuck: list[StuckCalls]
    workers: list[WorkerRecord]
    silent: list[WorkerRecord]


@app.command()
def stats(
    context: typer.Context,
    tool: Annotated[str | None, typer.Option(help="Only this tool.")] = None,
    output: OutputOption = None,
) -> None:
    """Show timing per tool, the backlog per queue, calls that do not move, and workers: live ones and silent ones."""
    settings = Settings.load()

    async def read(store: Store) -> _Numbers:
        tools = [one for one in await store.history.stats() if tool in (None, one.tool)]
        workers = [one for one in await store.workers.list() if one.stopped_at is None]
        return _Numbers(
            tools=tools,
            queues=await store.history.backlog(),
            stuck=await store.history.stuck(lease=settings.lease, patience=stuck.BEATS * settings.heartbeat),
            workers=[one for one in workers if one.silent_seconds <= settings.lease],
            silent=[one for one in workers if one.silent_seconds > settings.lease],
        )

    face = face_of(context)
    numbers = with_store(read, settings)
    if face.is_json:
        face.document(_document(numbers))
    else:
        _print(face, numbers)


def tool_stats_table(stats: Sequence[ToolStats]) -> Table:
    """A line per tool."""
    columns = [
        Column("tool", is_flexible=True),
        *(
            Column(title, is_number=True)
            for title in ("calls", "ok", "failed", "rejected", "mean", "max", "queue wait")
        ),
    ]
    return table(
        columns,
        (
            [
                one.tool,
                str(one.calls),
                str(one.succeeded),
                str(one.failed),
                str(one.rejected),
                took(one.mean_duration_ms),
                took(one.max_duration_ms),
                took(None if one.mean_wait_seconds is None else one.mean_wait_seconds * 1000),
            ]
            for one in stats
        ),
    )


def _document(numbers: _Numbers) -> dict[str, Any]:
    return {
        "tools": [asdict(one) for one in numbers.tools],
        "queues": [asdict(one) for one in numbers.queues],
        "stuck": [asdict(one) | {"said": stuck.sentence(one), "way_out": stuck.way_out(one)} for one in numbers.stuck],
        "workers": [worker_document(one) for one in numbers.workers],
        "silent": [worker_document(one) for one in numbers.silent],
    }


def worker_document(worker: WorkerRecord) -> dict[str, Any]:
    """One worker as JSON."""
    return {name: iso(value) if hasattr(value, "isoformat") else value for name, value in asdict(worker).items()}


def _print(face: Face, numbers: _Numbers) -> None:
    face.say("Tools", style="bold")
    _or_nothing(face, numbers.tools, tool_stats_table(numbers.tools), "Nothing was run yet.")
    face.say("\nQueues", style="bold")
    _or_nothing(face, numbers.queues, _queues(numbers.queues), "Nothing waits, nothing runs.")
    _print_stuck(face, numbers.stuck)
    face.say("\nWorkers", style="bold")
    _or_nothing(face, numbers.workers, _workers(numbers.workers), "No worker is alive. Start one with: forge-tools up")
    if numbers.silent:
        face.say("\nSilent workers", style="bold yellow")
        face.out.print(_workers(numbers.silent))


def _print_stuck(face: Face, calls: Sequence[StuckCalls]) -> None:
    if not calls:
        return
    face.say("\nStuck", style="bold red")
    for one in calls:
        face.say(stuck.sentence(one))
        face.say(f"  {stuck.way_out(one)}", style="cyan")


def _or_nothing(face: Face, rows: Sequence[object], shown: Table, nothing: str) -> None:
    if rows:
        face.out.print(shown)
    else:
        face.say(nothing, style="dim")


def _queues(queues: Sequence[QueueDepth]) -> Table:
    columns = [Column("queue"), Column("lane"), *(Column(t, is_number=True) for t in ("waiting", "running", "oldest"))]
    return table(
        columns,
        (
            [
                one.queue,
                one.lane,
                str(one.queued),
                str(one.running),
                "-" if one.oldest_seconds is None else age(one.oldest_seconds),
            ]
            for one in queues
        ),
    )


def _workers(workers: Sequence[WorkerRecord]) -> Table:
    columns = [
        *(Column("host", is_flexible=True), Column("pid", is_number=True), Column("lane")),
        *(Column("queues", is_flexible=True), Column("slots", is_number=True), Column("seen", is_number=True)),
    ]
    return table(
        columns,
        (
            [
                one.hostname,
                str(one.pid),
                one.lane,
                ", ".join(one.queues),
                str(one.concurrency),
                f"{age(one.silent_seconds)} ago",
            ]
            for one in workers
        ),
    )
