"""One row per execution: the request, its state and its outcome, joined; and the conditions of a `Selection`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, and_, case, cast, func, literal, or_, select
from sqlalchemy.sql.ddl import CreateView

from forge_tools.model.execution import TERMINAL, ExecutionStatus, id_floor
from forge_tools.model.history import Selection
from forge_tools.storage.rows import MAX_SKEW, clean
from forge_tools.storage.sqlalchemy_tables import execution_attempts, execution_queue, executions

asked, live, last = executions.alias("e"), execution_queue.alias("q"), execution_attempts.alias("a")
"""The parts of the join: the request; the state until it ends; the final attempt once it has ended."""


def joined(*bounds: ColumnElement[bool]) -> Select[Any]:
    """Join them to one row per execution. `bounds` narrow the final attempts that are read."""
    # The last row of an execution that ended while it waited is numbered after its attempts, but is none.
    starts = case(
        (last.c.attempt.is_(None), live.c.attempt),
        (last.c.started_at.is_(None) & (last.c.attempt > 0), last.c.attempt - 1),
        else_=last.c.attempt,
    )
    hidden = {"reply_to"}
    return select(
        *(column for column in asked.c if column.name not in hidden),
        func.coalesce(last.c.status, live.c.status).label("status"),
        starts.label("attempt"),
        func.coalesce(last.c.started_at, live.c.started_at).label("started_at"),
        last.c.completed_at,
        last.c.duration_ms,
        func.coalesce(last.c.worker_id, live.c.owner).label("worker_id"),
        func.coalesce(last.c.hostname, live.c.hostname).label("hostname"),
        func.coalesce(last.c.pid, live.c.pid).label("pid"),
        live.c.not_before,
        live.c.expires_at,
        live.c.cancel_requested_at,
        last.c.output,
        last.c.error,
        last.c.error_code,
        last.c.error_details,
        last.c.diagnosis,
        last.c.metadata,
    ).select_from(
        asked.outerjoin(live, live.c.id == asked.c.id).outerjoin(
            last, and_(last.c.execution_id == asked.c.id, last.c.final, *bounds)
        )
    )


tool_executions_view = CreateView(joined(), "tool_executions")
tool_executions = tool_executions_view.table
"""The view that history, and external SQL, reads: one row per execution."""


def spelled(text: str) -> ColumnElement[str]:
    """Return a text as spelled in the condition of an index, so that the index is used."""
    return literal(str(text), literal_execute=True)


_is_notable = last.c.status != spelled(ExecutionStatus.SUCCEEDED)


def conditions(selection: Selection) -> list[ColumnElement[bool]]:
    return [*_equalities(selection), *_of_status(selection.status), *_bounds(selection)]


def id_bounds(selection: Selection, id_: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Return the time bounds as bounds on ids, so that every table is read from the right place on."""
    found = [] if selection.since is None else [id_ >= _id_at(selection.since, -MAX_SKEW)]
    return found if selection.until is None else [*found, id_ < _id_at(selection.until, MAX_SKEW)]


def time_bounds(selection: Selection, moment: ColumnElement[Any] = asked.c.queued_at) -> list[ColumnElement[bool]]:
    """Return the time bounds as bounds on a moment: when a call was queued, unless another one is given."""
    found = [] if selection.since is None else [moment >= selection.since]
    return found if selection.until is None else [*found, moment < selection.until]


def _id_at(moment: datetime, seconds: float) -> str:
    return id_floor(max(0.0, moment.timestamp() + seconds))


def _equalities(selection: Selection) -> Iterator[ColumnElement[bool]]:
    for name in ("tool", "category", "agent_id", "session_id", "queue", "error_code"):
        value = getattr(selection, name)
        if value is not None:
            yield (last if name == "error_code" else asked).c[name] == clean(str(value))


def _of_status(status: str | None) -> Iterator[ColumnElement[bool]]:
    """Yield a condition on the table that has the status, spelled as in its index, so that rare ones are found fast."""
    if status is None:
        return
    wanted = spelled(ExecutionStatus(status))
    if ExecutionStatus(status) not in TERMINAL:
        yield live.c.status == wanted
        yield last.c.status.is_(None)  # a row leaves the queue in the commit that inserts its last attempt
        return
    yield last.c.status == wanted
    if status != ExecutionStatus.SUCCEEDED:
        yield _is_notable


def _bounds(selection: Selection) -> Iterator[ColumnElement[bool]]:
    yield from id_bounds(selection, asked.c.id)
    yield from time_bounds(selection)
    if selection.min_ms is not None:
        yield last.c.duration_ms >= selection.min_ms
    if selection.max_ms is not None:
        yield last.c.duration_ms <= selection.max_ms
    if selection.error_text is not None:
        wanted = clean(selection.error_text)
        said = (last.c.error, cast(last.c.diagnosis, Text))
        yield or_(*(text.icontains(wanted, autoescape=True) for text in said))
        yield _is_notable  # no other row has an error
