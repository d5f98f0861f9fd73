"""What the tables of the screen say, and which columns a narrow one leaves out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from forge_tools.cli.face import one_line
from forge_tools.cli.moments import age, took
from forge_tools.records import CallFigures, QueueLoad, WorkerLoad, WorkerRecord

BAR_CELLS = 10

SILENT_SECONDS = 5.0
OLD_SECONDS = 10.0
"""From when on the age of a beat, or of what waits, is not quiet any more."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column is left out where the screen has less than `least` cells; a flexible one alone is cut."""

    title: str
    cell: Callable[[Any], str | Text]
    is_number: bool = True
    least: int = 0
    is_flexible: bool = False


def cell(value: str | Text) -> Text:
    text = value if isinstance(value, Text) else Text(one_line(value))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def is_silent(one: WorkerLoad) -> bool:
    return one.worker.silent_seconds > SILENT_SECONDS


def _seen(one: WorkerLoad) -> Text:
    return Text(f"{age(one.worker.silent_seconds)} ago", "yellow" if is_silent(one) else "dim")


def _bar(one: WorkerLoad) -> Text:
    slots = max(1, one.worker.slots)
    cells = min(BAR_CELLS, -(-one.running * BAR_CELLS // slots))
    return Text.assemble(("━" * cells, "cyan" if one.running < slots else "yellow"), ("─" * (BAR_CELLS - cells), "dim"))


def _slots(worker: WorkerRecord) -> Text:
    """Of those that should be only some answer, when it starts or something is wrong with it."""
    if worker.slots == worker.concurrency:
        return Text(f"{worker.concurrency:,}", "dim")
    return Text(f"{worker.slots:,}/{worker.concurrency:,}", "yellow")


def _quiet(count: int) -> Text:
    return Text(f"{count:,}", "" if count else "dim")


def ok(one: CallFigures, unit: str = "") -> Text:
    rate = one.success_rate
    style = "" if rate is None or rate >= 0.99 else "yellow" if rate >= 0.5 else "red"
    return Text.assemble(("-" if rate is None else _percent(rate), style), (unit, "dim"))


def _percent(rate: float) -> str:
    """Only all is 100 %."""
    return "100%" if rate == 1 else f"{min(rate, 0.999):.1%}"


def rate(per_second: float) -> str:
    return (
        f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}" if per_second >= 1 else f"{per_second:.2f}"
    )


def _up(one: WorkerLoad) -> str:
    started, seen = one.worker.started_at, one.worker.last_seen_at
    return "-" if started is None or seen is None else age((seen - started).total_seconds())


def _oldest(one: QueueLoad) -> Text:
    seconds = one.oldest_seconds
    return Text("-", "dim") if seconds is None else Text(age(seconds), "yellow" if seconds > OLD_SECONDS else "")


WORKERS = (
    Column("host", lambda one: one.worker.hostname, is_number=False),
    Column("pid", lambda one: str(one.worker.pid), least=70),
    Column("lane", lambda one: one.worker.lane, is_number=False),
    Column("runs", lambda one: _quiet(one.running)),
    Column("slots", lambda one: _slots(one.worker)),
    Column("", _bar, is_number=False, least=70),
    Column("seen", _seen),
    Column("up", lambda one: Text(_up(one), "dim"), least=80),
    Column("queues", lambda one: one.worker.serves, is_number=False, least=90, is_flexible=True),
)

QUEUES = (
    Column("queue", lambda one: one.queue, is_number=False),
    Column("lane", lambda one: one.lane, is_number=False),
    Column("waiting", lambda one: _quiet(one.waiting)),
    Column("oldest", _oldest),
    Column("runs", lambda one: _quiet(one.running)),
    Column("later", lambda one: _quiet(one.later), least=80),
    Column("workers", lambda one: Text(f"{one.workers:,}", "red" if not one.workers else "dim"), least=70),
    Column("free slots", lambda one: Text(f"{one.free:,}", "dim" if one.free else "yellow"), least=80),
)


def tools(window: float) -> Sequence[Column]:
    return (
        Column("tool", lambda one: one.key or "-", is_number=False),
        Column("calls/s", lambda one: rate(one.calls / window)),
        Column("ok", ok),
        Column("failed", lambda one: _quiet(one.failed), least=70),
        Column("p50", lambda one: took(one.duration_ms.p50)),
        Column("p95", lambda one: took(one.duration_ms.p95)),
        Column("max", lambda one: took(one.duration_ms.max), least=90),
        Column("wait p95", lambda one: took(one.wait_ms.p95), least=80),
    )
