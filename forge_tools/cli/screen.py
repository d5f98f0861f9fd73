"""An overview for people: urgent matters first, then rates, workers, queues and tools, cut to the available room."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from forge_tools.cli.attention import Concern
from forge_tools.cli.face import UNBOUNDED
from forge_tools.cli.text import Column, age, cells, filled, flexible, limit, number, one_line, took
from forge_tools.model.overview import CallFigures, Overview, QueueLoad, WorkerLoad, WorkerRecord

WIDEST_NAME = 40
LEAST_NAME = 12
LEAST_HEIGHT = 24
_LEVELS = {"now": ("●", "red"), "soon": ("●", "yellow")}

BAR_CELLS = 10

SILENT_SECONDS = 5.0
OLD_SECONDS = 10.0
"""The ages from which a heartbeat or a waiting call is highlighted."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The content at one moment. `trouble` says why it is out of date."""

    seen: Overview
    concerns: Sequence[Concern]
    where: str
    interval: float | None = None
    trouble: str | None = None


@dataclass(slots=True)
class _Part:
    """A table of the screen; rows of less `weight` are cut first."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    weight: Callable[[Any], Any]
    nothing: str
    room: int = 0

    @property
    def height(self) -> int:
        """The lines besides the rows: a gap, and the titles."""
        return 2 if self.rows else 3


@dataclass(frozen=True, slots=True)
class Screen:
    """A frame for Rich: all of it, or as much as fits `height` lines."""

    frame: Frame
    height: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, frame = options.max_width, self.frame
        head = Group(*_head(frame, width))
        attention = _attention(frame.concerns, self.height)
        parts = _parts(frame.seen)
        if self.height is None:
            for part in parts:
                part.room = len(part.rows)
        else:
            taken = sum(len(console.render_lines(one, options, pad=False)) for one in (head, attention))
            _allot(parts, self.height - taken)
        yield head
        yield attention
        name_width = _name_width(parts, width)
        for part in parts:
            yield _table(part, width, name_width)


def _head(frame: Frame, width: int) -> Iterator[RenderableType]:
    seen = frame.seen
    every = "" if frame.interval is None else f"every {limit(frame.interval)}  "
    when = f"last {limit(seen.window)}  {every}{seen.at:%H:%M:%SZ}"
    title = Table.grid(expand=width < UNBOUNDED, padding=(0, 1))
    title.add_column(no_wrap=True)
    title.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    title.add_column(no_wrap=True, justify="right")
    title.add_row(Text("forge-tools top", "bold"), Text(one_line(frame.where), "dim"), Text(when, "dim"))
    yield title
    if frame.trouble is not None:
        yield Text(one_line(frame.trouble), "bold white on red")
    yield from _packed(list(_rates(seen)), width)


def _rates(seen: Overview) -> Iterator[Text]:
    total = seen.total
    yield Text.assemble((rate(seen.calls_per_second), "bold"), (" calls/s", "dim"))
    if total is not None:
        yield ok(total, " ok")
        yield Text.assemble(("p50 ", "dim"), took(total.duration_ms.p50))
        yield Text.assemble(("p95 ", "dim"), took(total.duration_ms.p95))
        yield Text.assemble(("wait p95 ", "dim"), took(total.wait_ms.p95))
    waiting = sum(one.waiting for one in seen.queues)
    running, slots = sum(one.running for one in seen.workers), sum(one.worker.slots for one in seen.workers)
    yield Text.assemble((f"{waiting:,}", "bold" if waiting else ""), (" waiting", "dim"))
    yield Text.assemble((f"{running:,}", "bold" if running else ""), (f" of {slots:,} slots run", "dim"))


def _packed(items: Sequence[Text], width: int) -> Iterator[Text]:
    line = Text(no_wrap=True, overflow="ellipsis")
    for item in items:
        if line.cell_len and line.cell_len + 3 + item.cell_len > width:
            yield line
            line = Text(no_wrap=True, overflow="ellipsis")
        line.append("   " if line.cell_len else "")
        line.append_text(item)
    yield line


def _attention(concerns: Sequence[Concern], height: int | None) -> RenderableType:
    """Use at most a quarter of the lines; a low screen omits what to do."""
    most = None if height is None else max(2, (height - 8) // 4)
    has_ways_out = height is None or height >= LEAST_HEIGHT
    if not concerns:
        return Group("", Text.assemble(("● ", "green"), ("Nothing needs attention.", "dim")))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for one in concerns[:most]:
        mark, style = _LEVELS[one.level]
        way_out = "\n" + one_line(one.way_out) if has_ways_out else ""
        grid.add_row(Text(mark, style), Text.assemble((one_line(one.said), style), (way_out, "cyan")))
    more = len(concerns) - len(concerns[:most])
    return Group("", grid, *([Text(f"  and {more} more: forge-tools doctor", "dim")] if more else []))


def _parts(seen: Overview) -> list[_Part]:
    window = limit(seen.window)
    return [
        _Part(
            "Workers", WORKERS, seen.workers, lambda one: (is_silent(one), one.running), "No worker has a heartbeat."
        ),
        _Part(
            "Queues", QUEUES, seen.queues, lambda one: (one.waiting, one.running), "No queue is served, nothing waits."
        ),
        _Part("Tools", tools(seen.window), seen.tools, lambda one: one.calls, f"No call ended in {window}."),
    ]


def _allot(parts: Sequence[_Part], room: int) -> None:
    """Share the lines fairly: no part gets more than it has rows, and the others share what it leaves."""
    room = max(0, room - sum(part.height for part in parts))
    for part in parts:
        part.room = 0
    while room > 0 and (hungry := [part for part in parts if part.room < len(part.rows)]):
        for part in hungry[:room]:
            part.room += 1
            room -= 1


def _name_width(parts: Sequence[_Part], width: int) -> int:
    """Return the width of the first column of all tables, so that they are aligned."""
    names = cells(part.columns[0].cell(row) for part in parts for row in part.rows)
    return min(max((name.cell_len for name in names), default=0), WIDEST_NAME, max(LEAST_NAME, width // 3))


def _table(part: _Part, width: int, name_width: int) -> RenderableType:
    if not part.rows:
        return Group("", Text(part.title, "bold"), Text(part.nothing, "dim"))
    columns = [one for one in part.columns if width >= one.least]
    shown, left = _cut(part)
    bare = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="bold dim")
    made = filled(bare, columns, ([one.cell(row) for one in columns] for row in shown))
    first = made.columns[0]
    first.header, first.width = Text(part.title, "not dim", no_wrap=True), max(name_width, len(part.title))
    return Group("", made, *([Text(f"and {left} more", "dim")] if left and part.room != 1 else []))


def _cut(part: _Part) -> tuple[list[Any], int]:
    """Return the heaviest rows that fit, in their order, and the number of omitted ones."""
    if part.room >= len(part.rows):
        return list(part.rows), 0
    kept = part.room if part.room <= 1 else part.room - 1  # the last line counts the rest, unless it is the only one
    ranked = sorted(range(len(part.rows)), key=lambda at: part.weight(part.rows[at]), reverse=True)[:kept]
    return [part.rows[at] for at in sorted(ranked)], len(part.rows) - kept


def is_silent(one: WorkerLoad) -> bool:
    return one.worker.silent_seconds > SILENT_SECONDS


def _seen(one: WorkerLoad) -> Text:
    return Text(f"{age(one.worker.silent_seconds)} ago", "yellow" if is_silent(one) else "dim")


def _bar(one: WorkerLoad) -> Text:
    slots = max(1, one.worker.slots)
    cells = min(BAR_CELLS, -(-one.running * BAR_CELLS // slots))  # rounded up: a single call can be seen
    return Text.assemble(("━" * cells, "cyan" if one.running < slots else "yellow"), ("─" * (BAR_CELLS - cells), "dim"))


def _slots(worker: WorkerRecord) -> Text:
    """Show answering slots of all, if some do not answer: it is starting, or something is wrong."""
    if worker.slots == worker.concurrency:
        return Text(f"{worker.concurrency:,}", "dim")
    return Text(f"{worker.slots:,}/{worker.concurrency:,}", "yellow")


def _quiet(count: int) -> Text:
    return Text(f"{count:,}", "" if count else "dim")


def ok(one: CallFigures, unit: str = "") -> Text:
    rate = one.success_rate
    style = "" if rate is None or rate >= 0.99 else "yellow" if rate >= 0.5 else "red"
    # At most 99.9% where something failed: one failure among thousands is not rounded away.
    said = "-" if rate is None else "100%" if rate == 1 else f"{min(rate, 0.999):.1%}"
    return Text.assemble((said, style), (unit, "dim"))


def rate(per_second: float) -> str:
    decimals = 0 if per_second >= 100 else 1 if per_second >= 1 else 2
    return f"{per_second:,.{decimals}f}"


def _up(one: WorkerLoad) -> str:
    started, seen = one.worker.started_at, one.worker.last_seen_at
    return "-" if started is None or seen is None else age((seen - started).total_seconds())


def _oldest(one: QueueLoad) -> Text:
    seconds = one.oldest_seconds
    return Text("-", "dim") if seconds is None else Text(age(seconds), "yellow" if seconds > OLD_SECONDS else "")


WORKERS = (
    Column("host", lambda one: one.worker.hostname),
    number("pid", lambda one: str(one.worker.pid), least=70),
    Column("lane", lambda one: one.worker.lane),
    Column("walls", lambda one: one.worker.walls.tier, least=90),
    number("runs", lambda one: _quiet(one.running)),
    number("slots", lambda one: _slots(one.worker)),
    Column("", _bar, least=70),
    number("seen", _seen),
    number("up", lambda one: Text(_up(one), "dim"), least=80),
    flexible("queues", lambda one: one.worker.serves, least=90),
)

QUEUES = (
    Column("queue", lambda one: one.queue),
    Column("lane", lambda one: one.lane),
    number("waiting", lambda one: _quiet(one.waiting)),
    number("oldest", _oldest),
    number("runs", lambda one: _quiet(one.running)),
    number("later", lambda one: _quiet(one.later), least=80),
    number("workers", lambda one: Text(f"{one.workers:,}", "red" if not one.workers else "dim"), least=70),
    number("free slots", lambda one: Text(f"{one.free:,}", "dim" if one.free else "yellow"), least=80),
)


def tools(window: float) -> Sequence[Column]:
    return (
        Column("tool", lambda one: one.key or "-"),
        number("calls/s", lambda one: rate(one.calls / window)),
        number("ok", ok),
        number("failed", lambda one: _quiet(one.failed), least=70),
        number("p50", lambda one: took(one.duration_ms.p50)),
        number("p95", lambda one: took(one.duration_ms.p95)),
        number("max", lambda one: took(one.duration_ms.max), least=90),
        number("wait p95", lambda one: took(one.wait_ms.p95), least=80),
    )
