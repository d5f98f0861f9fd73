"""What happened to an execution, in order: queued, each attempt's start and end, and what was done to it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.text import Text

from forge_tools.cli.executions import styled
from forge_tools.cli.face import one_line
from forge_tools.cli.moments import compact, took
from forge_tools.records import Attempt, Event, ExecutionRecord


class _Moment(NamedTuple):
    at: datetime
    said: Text


def timeline(
    record: ExecutionRecord, attempts: Sequence[Attempt], events: Iterable[Event]
) -> Iterator[tuple[str, Text]]:
    """A line a moment; of those at one time, what was done to it comes before how it ended."""
    moments = [_Moment(record.queued_at, Text("queued"))]
    moments += [_Moment(event.at, Text(event_said(event))) for event in events]
    moments += [moment for attempt in attempts for moment in _of_attempt(attempt)]
    if record.started_at is not None and record.completed_at is None:
        moments.append(_Moment(record.started_at, Text(f"attempt {record.attempt} started on {record.hostname}")))
    for moment in sorted(moments, key=lambda one: one.at):  # stable: the order above holds within a moment
        yield compact(moment.at), moment.said


def event_said(event: Event) -> str:
    """An event in words, with whatever is known of it."""
    detail = ", ".join(f"{name}: {as_text(value)}" for name, value in event.detail.items() if value not in ("", None))
    return one_line(f"{event.kind} by {event.actor}" + (f" ({detail})" if detail else ""))


def as_text(value: Any) -> str:
    """A value as text: what is none already as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _of_attempt(attempt: Attempt) -> Iterator[_Moment]:
    what = f"attempt {attempt.attempt} " if attempt.started_at is not None else ""
    if attempt.started_at is not None:
        where = f"{attempt.hostname or '-'}, process {attempt.pid or '-'}"
        yield _Moment(attempt.started_at, Text(one_line(f"{what}started on {where}")))
    ended = Text.assemble(what, styled(attempt.status))
    if attempt.duration_ms is not None:
        ended.append(f" after {took(attempt.duration_ms)}")
    if attempt.error_code:
        ended.append(f", {one_line(attempt.error_code)}")
    if attempt.error:
        ended.append(f": {one_line(attempt.error)}")
    yield _Moment(attempt.completed_at, ended)
