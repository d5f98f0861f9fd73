"""One row an execution: the tables of what was asked, where it is and what came of it, joined."""

from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, select
from sqlalchemy.sql.ddl import CreateView

from forge_tools.storage.models import execution_attempts, execution_queue, executions

asked, live, last = executions.alias("e"), execution_queue.alias("q"), execution_attempts.alias("a")
"""What was asked, where it is while it is not over, and its final attempt once it is: the parts of the join."""


def joined(*bounds: ColumnElement[bool]) -> Select[Any]:
    """One row an execution. `bounds` narrow the final attempts that are looked at."""
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
        last.c.metadata,
    ).select_from(
        asked.outerjoin(live, live.c.id == asked.c.id).outerjoin(
            last, and_(last.c.execution_id == asked.c.id, last.c.final, *bounds)
        )
    )


tool_executions_view = CreateView(joined(), "tool_executions")
tool_executions = tool_executions_view.table
"""The three tables joined, one row an execution: what history, and SQL from outside, reads."""
