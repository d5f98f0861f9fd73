"""`forge-tools stats`: how calls ended and how long they took, what waits in queues, who works."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from forge_tools.cli import filters, stuck
from forge_tools.cli.database import with_store
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import age, iso, took
from forge_tools.cli.tables import Column, table
from forge_tools.config import Settings
from forge_tools.records import CallFigures, Grouping, QueueDepth, StuckCalls, WorkerRecord
from forge_tools.storage import Store

WIDE = 100
"""Columns of a terminal that has room for everything."""

app = command_app()


@dataclass(frozen=True, slots=True)
class _Numbers:
    calls: list[CallFigures]
    queues: list[QueueDepth]
    stuck: list[StuckCalls]
    workers: list[WorkerRecord]
    silent: list[WorkerRecord]


@app.command()
def stats(  # noqa: PLR0913 one option a filter
    context: typer.Context,
    *,
    by: Annotated[Grouping, typer.Option(help="What calls are told apart by.")] = Grouping.TOOL,
    tool: filters.ToolOption = None,
    category: filters.CategoryOption = None,
    agent: filters.AgentOption = None,
    session: filters.SessionOption = None,
    since: filters.SinceOption = None,
    until: filters.UntilOption = None,
    from_rows: Annotated[
        bool, typer.Option("--from-rows", help="Count every call anew, also in hours that are rolled up.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """Show how calls ended and how long they took, the backlog per queue, calls that do not move, and workers."""
    settings = Settings.load()
    chosen = filters.given(context)

    async def read(store: Store) -> _Numbers:
        workers = [one for one in await store.workers.list() if one.stopped_at is None]
        return _Numbers(
            calls=await store.history.figures(by, from_rows=from_rows, **chosen),
            queues=await store.history.backlog(),
            stuck=await store.history.stuck(lease=settings.lease, patience=stuck.BEATS * settings.heartbeat),
            workers=[one for one in workers if one.silent_seconds <= settings.lease],
            silent=[one for one in workers if one.silent_seconds > settings.lease],
        )

    face = face_of(context)
    numbers = with_store(read, settings)
    if face.is_json:
        face.document(_document(numbers, by))
    else:
        _print(face, numbers, by)


def figures_table(figures: Sequence[CallFigures], by: Grouping = Grouping.TOOL, width: int = 80) -> Table:
    """A line per tool, or whatever calls are told apart by: ends, how long bodies ran, then how long calls waited.

    Narrow terminals have no room for all percentiles of that, least where hours take most of it.
    """
    waits = ("p50", "p95", "p99") if width >= WIDE else ("p95",) if by is Grouping.HOUR else ("p50", "p95")
    numbers = ("calls", "ok", "failed", "p50", "p95", "p99", f"wait {waits[0]}", *waits[1:])
    columns = [Column(by.value, is_flexible=by is not Grouping.HOUR), *(Column(one, is_number=True) for one in numbers)]
    return table(columns, (_figures(one, waits) for one in figures))


def _figures(one: CallFigures, waits: Sequence[str]) -> list[str]:
    ran = (one.duration_ms.p50, one.duration_ms.p95, one.duration_ms.p99)
    waited = (getattr(one.wait_ms, name) for name in waits)
    ok = "-" if one.success_rate is None else f"{one.success_rate:.1%}"
    return [one.key or "-", str(one.calls), ok, str(one.failed + one.rejected), *map(took, (*ran, *waited))]


def _document(numbers: _Numbers, by: Grouping) -> dict[str, Any]:
    return {
        "by": by.value,
        "calls": [asdict(one) | {"success_rate": one.success_rate} for one in numbers.calls],
        "queues": [asdict(one) for one in numbers.queues],
        "stuck": [asdict(one) | {"said": stuck.sentence(one), "way_out": stuck.way_out(one)} for one in numbers.stuck],
        "workers": [worker_document(one) for one in numbers.workers],
        "silent": [worker_document(one) for one in numbers.silent],
    }


def worker_document(worker: WorkerRecord) -> dict[str, Any]:
    """One worker as JSON."""
    return {name: iso(value) if hasattr(value, "isoformat") else value for name, value in asdict(worker).items()}


def _print(face: Face, numbers: _Numbers, by: Grouping) -> None:
    face.say(f"Calls by {by.value}", style="bold")
    _or_nothing(face, numbers.calls, figures_table(numbers.calls, by, face.out.width), "Nothing was run yet.")
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
                one.serves,
                str(one.slots),
                f"{age(one.silent_seconds)} ago",
            ]
            for one in workers
        ),
    )
