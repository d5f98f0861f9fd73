"""The tables: what is history is insert-only, what moves is narrow."""

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from forge_tools.storage.foreign import Foreign, foreign

SCHEMA_REVISION = "0001"
"""The newest migration; revisions are numbers, so they compare as text."""

DEFAULT_QUEUE = "default"
"""Where most calls are, so that an index which leaves them out is small."""

MOMENT_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
"""How SQLite holds a time: UTC text of fixed width, so that it sorts, and SQLite's own functions read it."""


class Moment(TypeDecorator[datetime]):
    """An aware UTC time: `timestamptz` on PostgreSQL, text in `MOMENT_FORMAT` on SQLite."""

    impl = Text
    cache_ok = True
    holds: tuple[type[Any], ...] = (datetime,)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if isinstance(value, Foreign):
            return value.value
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).strftime(MOMENT_FORMAT)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        try:
            if isinstance(value, str):
                return datetime.fromisoformat(value).replace(tzinfo=UTC)
            if value.tzinfo is not None:  # as PostgreSQL's infinite ones have none
                return value.astimezone(UTC)
        except (AttributeError, OverflowError, ValueError):
            pass
        return foreign(value, "a time")


class JsonText(TypeDecorator[Any]):
    r"""JSON kept as the text it came in: `json` on PostgreSQL (`jsonb` refuses \u0000), TEXT on SQLite.

    SQLite's own JSON type has numeric affinity and would turn `1.0` into `1`.
    """

    impl = Text
    cache_ok = True
    holds: tuple[type[Any], ...] = (dict, list, str, int, float, bool)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(JSON(none_as_null=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value if value is None or dialect.name == "postgresql" else json.dumps(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        try:
            return json.loads(value)
        except (RecursionError, TypeError, ValueError):
            return foreign(value, "JSON")


Identifier = Text(36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")
"""A UUID that Python sees as text."""


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

    type = Float()
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


metadata = MetaData()

executions = Table(
    "executions",
    metadata,
    Column("id", Identifier, primary_key=True),
    Column("tool", Text, nullable=False),
    Column("tool_key", Text, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("tool_digest", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("parameters", JsonText, nullable=False),
    Column("sealed_names", JsonText),
    Column("context", JsonText, nullable=False),
    Column("options", JsonText, nullable=False),
    Column("agent_id", Text),
    Column("session_id", Text),
    Column("queue", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("timeout", Float, nullable=False),
    Column("timeout_source", Text, nullable=False),
    Column("soft_time_limit", Float, nullable=False),
    Column("time_limit", Float, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("idempotent", Boolean, nullable=False),
    Column("delay", Float, nullable=False),
    Column("expires_in", Float, nullable=False),
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

execution_queue = Table(
    "execution_queue",
    metadata,
    Column("id", Identifier, primary_key=True),
    Column("tool_key", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("idempotent", Boolean, nullable=False),
    Column("token", Identifier),
    Column("owner", Text),
    Column("hostname", Text),
    Column("pid", Integer),
    Column("not_before", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("expires_in", Float, nullable=False),
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

execution_attempts = Table(
    "execution_attempts",
    metadata,
    Column("execution_id", Identifier, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("final", Boolean, nullable=False),
    Column("status", Text, nullable=False),
    Column("token", Identifier),
    Column("worker_id", Text),
    Column("hostname", Text),
    Column("pid", Integer),
    Column("started_at", Moment),
    Column("completed_at", Moment, nullable=False),
    Column("duration_ms", Float),
    Column("output", JsonText),
    Column("error", Text),
    Column("error_code", Text),
    Column("error_details", JsonText),
    Column("metadata", JsonText, nullable=False),
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

execution_events = Table(
    "execution_events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("execution_id", Identifier, nullable=False),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("detail", JsonText, nullable=False),
    Column("token", Identifier),
    Index("execution_events_once", "execution_id", "kind", "token", unique=True),
    Index("execution_events_by_time", "at", "id"),
    Index("execution_events_by_kind", "kind", "at", "id"),
    sqlite_autoincrement=True,  # a number that was pruned is given to no other event
)
"""What was done to an execution, by whom and why. A token makes a repeated write of one event harmless."""

tools = Table(
    "tools",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("category", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("timeout", Float),
    Column("spec", JsonText, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("is_default", Boolean, nullable=False),
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

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("lane", Text, nullable=False),
    Column("queues", JsonText, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("answering", Integer),
    Column("version", Text, nullable=False),
    Column("tools", JsonText, nullable=False),
    Column("servers", JsonText, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("last_seen_at", Moment, nullable=False),
    Column("stopped_at", Moment),
    Column("beat", BigInteger, nullable=False),
    Column("unfit", Text),
    Column("dropped_messages", BigInteger, nullable=False),
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

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", Moment, nullable=False),
)
