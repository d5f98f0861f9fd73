"""`forge-tools stats`: how calls ended and how long they took, what waits in queues, who works."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from rich.table import Table
from typer import Option

from forge_tools.cli import attention
from forge_tools.cli.database import with_store
from forge_tools.cli.face import UNBOUNDED, App, Face, WideOption
from forge_tools.cli.filters import Chosen, filtered
from forge_tools.cli.text import GAP, age, flexible, listed, number, table, took
from forge_tools.config import Settings
from forge_tools.model import CallFigures, Grouping, QueueDepth, StuckCalls, WorkerRecord
from forge_tools.storage import Store

WAITS = (("p50", "p95", "p99"), ("p50", "p95"), ("p95",))
LEAST_KEY = 16
"""Characters of what tells rows apart; a longer name may be cut there."""

app = App()


@app.command()
@filtered("tool", "category", "agent", "session", "since", "until")
def stats(
    face: Face,
    *,
    by: Annotated[Grouping, Option(help="What calls are told apart by.")] = Grouping.TOOL,
    chosen: Chosen,
    wide: WideOption = False,
    from_rows: Annotated[
        bool, Option("--from-rows", help="Count every call anew, also in hours that are rolled up.")
    ] = False,
) -> None:
    """Show how calls ended and how long they took, the backlog per queue, calls that do not move, and workers."""
    settings = Settings.load()

    async def read(store: Store) -> dict[str, list[Any]]:
        workers = [one for one in await store.workers.list() if one.stopped_at is None]
        return {
            "calls": await store.history.figures(by, from_rows=from_rows, **chosen),
            "queues": await store.overviews.backlog(),
            "stuck": await store.overviews.stuck(lease=settings.lease, patience=attention.BEATS * settings.heartbeat),
            "workers": [one for one in workers if one.silent_seconds <= settings.lease],
            "silent": [one for one in workers if one.silent_seconds > settings.lease],
        }

    numbers = with_store(read, settings)
    if face.is_json:
        rows = {name: [asdict(one) | _derived(one) for one in some] for name, some in numbers.items()}
        face.document({"by": by.value, **rows})
    else:
        if wide:
            face.out.width = UNBOUNDED
        _print(face, by, **numbers)


def _derived(one: object) -> dict[str, Any]:
    if isinstance(one, CallFigures):
        return {"success_rate": one.success_rate}
    if isinstance(one, StuckCalls):
        return {"said": attention.sentence(one), "way_out": attention.way_out(one)}
    return {}


def figures_table(figures: Sequence[CallFigures], by: Grouping = Grouping.TOOL, width: int = 80) -> Table:
    """A row per tool, or whatever calls are told apart by: ends, how long bodies ran, then how long calls waited.

    Of the waits it has as many percentiles as leave room for what tells the rows apart.
    """
    key = by.value if by is Grouping.HOUR else flexible(by.value)
    for waits in WAITS:
        names = ("calls", "ok", "failed", "p50", "p95", "p99", *(f"wait {one}" for one in waits))
        rows = [_figures(one, waits) for one in figures]
        widths = [max(map(len, cells)) for cells in zip((by.value, *names), *rows, strict=True)]
        widths[0] = widths[0] if by is Grouping.HOUR else min(widths[0], LEAST_KEY)
        if sum(widths) + GAP * len(names) <= width:
            break
    else:
        width = 0
    return listed([key, *map(number, names)], rows, width)


def _figures(one: CallFigures, waits: Sequence[str]) -> list[str]:
    ran = (one.duration_ms.p50, one.duration_ms.p95, one.duration_ms.p99)
    waited = (getattr(one.wait_ms, name) for name in waits)
    ok = "-" if one.success_rate is None else f"{one.success_rate:.1%}"
    return [one.key or "-", str(one.calls), ok, str(one.failed + one.rejected), *map(took, (*ran, *waited))]


def _print(
    face: Face,
    by: Grouping,
    *,
    calls: Sequence[CallFigures],
    queues: Sequence[QueueDepth],
    stuck: Sequence[StuckCalls],
    workers: Sequence[WorkerRecord],
    silent: Sequence[WorkerRecord],
) -> None:
    _section(face, f"Calls by {by.value}", calls, figures_table(calls, by, face.out.width), "Nothing was run yet.")
    _section(face, "\nQueues", queues, _queues(queues), "Nothing waits, nothing runs.")
    if stuck:
        face.say("\nStuck", style="bold red")
    for one in stuck:
        face.say(attention.sentence(one))
        face.say(f"  {attention.way_out(one)}", style="cyan")
    nobody = "No worker is alive. Start one with: forge-tools up"
    _section(face, "\nWorkers", workers, _workers(workers), nobody)
    if silent:
        face.say("\nSilent workers", style="bold yellow")
        face.out.print(_workers(silent))


def _section(face: Face, title: str, rows: Sequence[object], shown: Table, nothing: str) -> None:
    face.say(title, style="bold")
    if rows:
        face.out.print(shown)
    else:
        face.say(nothing, style="dim")


def _queues(queues: Sequence[QueueDepth]) -> Table:
    rows = (
        (one.queue, one.lane, str(one.queued), str(one.running), "-" if oldest is None else age(oldest))
        for one, oldest in ((one, one.oldest_seconds) for one in queues)
    )
    return table(["queue", "lane", number("waiting"), number("running"), number("oldest")], rows)


def _workers(workers: Sequence[WorkerRecord]) -> Table:
    rows = (
        (one.hostname, str(one.pid), one.lane, one.serves, str(one.slots), f"{age(one.silent_seconds)} ago")
        for one in workers
    )
    return table([flexible("host"), number("pid"), "lane", flexible("queues"), number("slots"), number("seen")], rows)
