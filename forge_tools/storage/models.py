"""The tables: what is history is insert-only, what moves is narrow."""

from datetime import datetime
from typing import Any, get_args

from sqlalchemy import Column, Index, Text, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from forge_tools.records import TERMINAL, ExecutionStatus, Lane
from forge_tools.storage.columns import (
    Choice,
    Count,
    Flag,
    Identifier,
    JsonList,
    JsonObject,
    JsonText,
    LargeCount,
    Moment,
    Real,
    Seconds,
    table,
)

SCHEMA_REVISION = "0001"
"""The newest migration; revisions are numbers, so they compare as text."""

DEFAULT_QUEUE = "default"
"""Where most calls are, so that an index which leaves them out is small."""


class from_now(FunctionElement[datetime]):  # noqa: N801 it reads as the SQL function it is
    """The database's clock, plus that many seconds."""

    type = Moment()
    inherit_cache = True


@compiles(from_now, "postgresql")
def _from_now_on_postgresql(element: from_now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(now() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(from_now, "sqlite")
def _from_now_on_sqlite(element: from_now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"forge_now({compiler.process(element.clauses, **kw)})"


class seconds_between(FunctionElement[float]):  # noqa: N801 it reads as the SQL function it is
    """Seconds from the first moment to the second."""

    type = Real()
    inherit_cache = True


@compiles(seconds_between, "postgresql")
def _seconds_on_postgresql(element: seconds_between, compiler: SQLCompiler, **kw: Any) -> str:
    start, end = element.clauses
    # Not extract(): that computes with numeric, which took a fifth of the time of the figures of a day.
    return f"date_part('epoch', {compiler.process(end, **kw)} - {compiler.process(start, **kw)})"


@compiles(seconds_between, "sqlite")
def _seconds_on_sqlite(element: seconds_between, compiler: SQLCompiler, **kw: Any) -> str:
    start, end = element.clauses
    return f"((julianday({compiler.process(end, **kw)}) - julianday({compiler.process(start, **kw)})) * 86400.0)"


LANE = Choice(get_args(Lane))

executions = table(
    "executions",
    Column("id", Identifier, primary_key=True),
    Column("tool", Text, nullable=False),
    Column("tool_key", Text, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("tool_digest", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("parameters", JsonObject, nullable=False),
    Column("sealed_names", JsonList),
    Column("context", JsonObject, nullable=False),
    Column("options", JsonObject, nullable=False),
    Column("agent_id", Text),
    Column("session_id", Text),
    Column("queue", Text, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("timeout", Seconds, nullable=False),
    Column("timeout_source", Text, nullable=False),
    Column("soft_time_limit", Seconds, nullable=False),
    Column("time_limit", Seconds, nullable=False),
    Column("max_attempts", Count, nullable=False),
    Column("idempotent", Flag, nullable=False),
    Column("delay", Seconds, nullable=False),
    Column("expires_in", Seconds, nullable=False),
    Column("reply_to", Text),
    Column("idempotency_key", Text),
    Column("replay_of", Identifier),
    Column("submitted_by", Text),
    Column("queued_at", Moment, nullable=False),
    Index("executions_queued_at", "queued_at", postgresql_using="brin"),
    Index("executions_by_tool", "tool", "id"),
    Index("executions_by_agent", "agent_id", "id"),
    Index("executions_by_session", "session_id", "id"),
    Index("executions_by_category", "category", "id"),
)
"""What was asked, inserted once. `parameters` is what people may see; what they hide, those of `sealed_names`, is sealed in
the queue, and goes with its row there. The order of ids is that of time, so each index ends with them."""

_IS_ELSEWHERE = executions.c.queue != DEFAULT_QUEUE
Index(
    "executions_by_queue",
    executions.c.queue,
    executions.c.id,
    postgresql_where=_IS_ELSEWHERE,
    sqlite_where=_IS_ELSEWHERE,
)

execution_queue = table(
    "execution_queue",
    Column("id", Identifier, primary_key=True),
    Column("tool_key", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("status", Choice(status for status in ExecutionStatus if status not in TERMINAL), nullable=False),
    Column("attempt", Count, nullable=False),
    Column("max_attempts", Count, nullable=False),
    Column("idempotent", Flag, nullable=False),
    Column("token", Identifier),
    Column("owner", Text),
    Column("hostname", Text),
    Column("pid", Count),
    Column("not_before", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("expires_in", Seconds, nullable=False),
    Column("started_at", Moment),
    Column("cancel_requested_at", Moment),
    Column("sealed", Text),
    postgresql_with={"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.05},
    sqlite_with_rowid=False,
)
"""Executions that are not over. No index on, or over, a column that a claim changes: it would end heap-only updates."""

Index(
    "execution_queue_cancels",
    execution_queue.c.id,
    postgresql_where=execution_queue.c.cancel_requested_at.is_not(None),
    sqlite_where=execution_queue.c.cancel_requested_at.is_not(None),
)
Index(
    "execution_queue_due",
    execution_queue.c.lane,
    execution_queue.c.tool_key,
    execution_queue.c.queue,
    execution_queue.c.not_before,
)
Index("execution_queue_expiry", execution_queue.c.expires_at)
Index(
    "execution_queue_hopeless",
    execution_queue.c.id,
    postgresql_where=execution_queue.c.max_attempts < 1,
    sqlite_where=execution_queue.c.max_attempts < 1,
)

execution_attempts = table(
    "execution_attempts",
    Column("execution_id", Identifier, primary_key=True),
    Column("attempt", Count, primary_key=True, autoincrement=False),
    Column("final", Flag, nullable=False),
    Column("status", Choice(sorted(TERMINAL)), nullable=False),
    Column("token", Identifier),
    Column("worker_id", Text),
    Column("hostname", Text),
    Column("pid", Count),
    Column("started_at", Moment),
    Column("completed_at", Moment, nullable=False),
    Column("duration_ms", Real),
    Column("output", JsonText),
    Column("error", Text),
    Column("error_code", Text),
    Column("error_details", JsonText),
    Column("metadata", JsonObject, nullable=False),
    Index("execution_attempts_completed", "completed_at"),
)
"""One row a body start, inserted when it ends; or the end of an execution that never started one (`started_at` NULL).

`token` is the finisher's; a row written by recovery has none, so that a late finish never takes it for its own.
"""

_IS_NOTABLE = execution_attempts.c.status != "succeeded"
_HAS_CODE = execution_attempts.c.error_code.is_not(None)

Index(
    "execution_attempts_notable",
    execution_attempts.c.status,
    execution_attempts.c.execution_id,
    postgresql_where=_IS_NOTABLE,
    sqlite_where=_IS_NOTABLE,
)
Index(
    "execution_attempts_failures",
    execution_attempts.c.execution_id,
    postgresql_where=_IS_NOTABLE,
    sqlite_where=_IS_NOTABLE,
)
Index(
    "execution_attempts_by_code",
    execution_attempts.c.error_code,
    execution_attempts.c.execution_id,
    postgresql_where=_HAS_CODE,
    sqlite_where=_HAS_CODE,
)

execution_events = table(
    "execution_events",
    Column("id", LargeCount, primary_key=True),
    Column("execution_id", Identifier, nullable=False),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("detail", JsonObject, nullable=False),
    Column("token", Identifier),
    Index("execution_events_once", "execution_id", "kind", "token", unique=True),
    Index("execution_events_by_time", "at", "id"),
    Index("execution_events_by_kind", "kind", "at", "id"),
    sqlite_autoincrement=True,  # a number that was pruned is given to no other event
)
"""What was done to an execution, by whom and why. A token makes a repeated write of one event harmless."""

tools = table(
    "tools",
    Column("name", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("category", Text, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("timeout", Seconds),
    Column("spec", JsonObject, nullable=False),
    Column("enabled", Flag, nullable=False),
    Column("is_default", Flag, nullable=False),
    Column("first_seen_at", Moment, nullable=False),
    Column("last_seen_at", Moment, nullable=False),
    Column("demoted_at", Moment),
    Column("demoted_reason", Text),
    Column("pinned_at", Moment),
)
"""The catalogue: every definition of a tool ever published. A demoted one runs in the process lane, whatever it declares.

The default of a tool is the pinned definition, else the one seen last: calls are accepted by it alone. Of a tool with a pinned one, no other is run.
"""

_IS_DEFAULT = tools.c.is_default
Index("tools_default", tools.c.name, unique=True, postgresql_where=_IS_DEFAULT, sqlite_where=_IS_DEFAULT)

Index(
    "tools_demoted",
    tools.c.name,
    postgresql_where=tools.c.demoted_at.is_not(None),
    sqlite_where=tools.c.demoted_at.is_not(None),
)

Index(
    "tools_disabled",
    tools.c.name,
    postgresql_where=text("enabled = false"),
    sqlite_where=text("enabled = false"),
)

_IS_PINNED = tools.c.pinned_at.is_not(None)
Index("tools_pinned", tools.c.name, unique=True, postgresql_where=_IS_PINNED, sqlite_where=_IS_PINNED)

workers = table(
    "workers",
    Column("id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("pid", Count, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("queues", JsonList, nullable=False),
    Column("concurrency", Count, nullable=False),
    Column("answering", Count),
    Column("version", Text, nullable=False),
    Column("tools", JsonObject, nullable=False),
    Column("servers", JsonList, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("last_seen_at", Moment, nullable=False),
    Column("stopped_at", Moment),
    Column("beat", LargeCount, nullable=False),
    Column("unfit", Text),
    Column("dropped_messages", LargeCount, nullable=False),
    postgresql_with={"fillfactor": 50},
)
"""One row a boot of a worker process; `tools` maps each name it hosts to `version digest`, `servers` is how its MCP servers
are, `unfit` says why it claims nothing, and `dropped_messages` counts what came from the broker and was none of ours.
"""

Index(
    "workers_not_stopped",
    workers.c.id,
    postgresql_where=workers.c.stopped_at.is_(None),
    sqlite_where=workers.c.stopped_at.is_(None),
)

leases = table(
    "leases",
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", Moment, nullable=False),
)
