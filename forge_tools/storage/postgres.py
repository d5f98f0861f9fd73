"""The hot statements on PostgreSQL: one autocommit statement a flush, arrays in, on connections with pinned plans."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from forge_tools.errors import ForgeError, StorageError
from forge_tools.records import Claim, ExecutionStatus, NewExecution, Outcome, Ring, Scope, StoredResult
from forge_tools.storage.batching import SENT, UnreachableError
from forge_tools.storage.deadline import alarm
from forge_tools.storage.definitions import refusal
from forge_tools.storage.engine import CLIENT_SECONDS, Address, connect_postgres
from forge_tools.storage.faults import translated
from forge_tools.storage.looks import POSTGRES_DUE, POSTGRES_LOOK, Look, Question, postgres_arguments, postgres_look
from forge_tools.storage.rows import (
    EXECUTION_COLUMNS,
    GIVEN_COLUMNS,
    MAX_SKEW,
    RESULT_COLUMNS,
    Ask,
    OutcomeValues,
    Record,
    execution_values,
    late_detail,
    outcome_values,
    status_of,
    stored_result,
)

PINNED = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "work_mem": "32MB",
}
"""The planner guesses wrongly about arrays and about tables that were empty when it last looked (twice the cost).

Planning anew for each set of arrays would cost half of a small statement, and could choose nothing better. But a plan that
was made while the live table was empty must do when it is full: where a statement says `id = ANY (ARRAY[...])` for an
equality, the planner has no use for the order of the index, and so no way to read all of it for each row it looks up.
"""

_JSON = {"parameters", "sealed_names", "context", "options", "output", "error_details", "metadata"}
_TYPES = {
    "id": "uuid",
    "timeout": "float8",
    "soft_time_limit": "float8",
    "time_limit": "float8",
    "duration_ms": "float8",
    "delay": "float8",
    "expires_in": "float8",
    "max_attempts": "int4",
    "idempotent": "bool",
}
_OUTCOME_COLUMNS = OutcomeValues._fields


def array_parameters(columns: Sequence[str], first: int = 1) -> str:
    """`$1::uuid[], $2::text[], ...`: JSON travels as text and is cast where it is inserted."""
    return ", ".join(f"${first + n}::{_TYPES.get(column, 'text')}[]" for n, column in enumerate(columns))


def cast_values(columns: Sequence[str], alias: str) -> str:
    return ", ".join(f"{alias}.{column}::json" if column in _JSON else f"{alias}.{column}" for column in columns)


_WIDTH = len(GIVEN_COLUMNS)

# A row is refused if its id is off the clock, or if its tool is disabled or defined otherwise than its call was checked by; but
# not if it was stored before: this may be a late repetition. One id twice in a batch is inserted once.
_CHECKED = f"""
  clocked AS (
    SELECT n.*, n.issued_at - extract(epoch FROM now())::float8 AS skew FROM new n),
  refused AS MATERIALIZED (
    SELECT c.ord, c.skew, t.name, t.spec, t.digest, t.enabled, t.demoted_at
    FROM clocked c LEFT JOIN tools t ON t.name = ANY (ARRAY[c.tool]) AND t.is_default AND {{is_judged}}
    WHERE (abs(c.skew) > {MAX_SKEW} OR NOT t.enabled OR t.digest <> c.tool_digest)
      AND NOT EXISTS (SELECT FROM executions e WHERE e.id = c.id)),
  fresh AS (
    SELECT DISTINCT ON (c.id) c.* FROM clocked c
    WHERE abs(c.skew) <= {MAX_SKEW} AND c.ord NOT IN (SELECT ord FROM refused) ORDER BY c.id)
"""
CHECKED = _CHECKED.format(is_judged=True).strip()
_INSERTED = f"""
  inserted AS (
    INSERT INTO executions ({", ".join(EXECUTION_COLUMNS)}, queued_at)
    SELECT {cast_values(EXECUTION_COLUMNS, "f")}, now() FROM fresh f
    ON CONFLICT (id) DO NOTHING RETURNING *)
"""
REFUSED = "SELECT ord, skew, name, spec::text, digest, enabled, demoted_at IS NOT NULL FROM refused"
# What is sealed is looked up for those rows alone that hide something: joining all of them would cost as much as the rest.
ENQUEUED = """
  enqueued AS (
    INSERT INTO execution_queue (id, tool_key, queue, lane, max_attempts, idempotent, status, attempt,
                                 not_before, expires_at, expires_in, sealed)
    SELECT id, tool_key, queue, lane, max_attempts, idempotent, 'queued', 0,
           now() + make_interval(secs => delay), now() + make_interval(secs => expires_in), expires_in,
           CASE WHEN i.sealed_names IS NOT NULL THEN (SELECT f.sealed FROM fresh f WHERE f.id = i.id) END FROM inserted i)
"""
_SUBMIT = f"""
WITH new AS (
    SELECT * FROM unnest({array_parameters(GIVEN_COLUMNS)}, ${_WIDTH + 1}::float8[])
      WITH ORDINALITY AS n({", ".join(GIVEN_COLUMNS)}, issued_at, ord)),
  {CHECKED},
  {_INSERTED.strip()},
  {ENQUEUED.strip()}
{REFUSED}
"""
_ATTEMPT_COLUMNS = ", ".join(_OUTCOME_COLUMNS)
_RECORD = f"""
WITH new AS (
    SELECT * FROM unnest({array_parameters(GIVEN_COLUMNS)}, ${_WIDTH + 1}::float8[],
      {array_parameters(_OUTCOME_COLUMNS, _WIDTH + 2)})
      WITH ORDINALITY AS n({", ".join(GIVEN_COLUMNS)}, issued_at, {_ATTEMPT_COLUMNS}, ord)),
  {_CHECKED.format(is_judged=False).strip()},
  {_INSERTED.strip()},
  ended AS (
    INSERT INTO execution_attempts (execution_id, attempt, final, completed_at, {_ATTEMPT_COLUMNS})
    SELECT f.id, 0, true, now(), {cast_values(_OUTCOME_COLUMNS, "f")} FROM fresh f
    WHERE (f.id IN (SELECT id FROM inserted)) IS TRUE)
{REFUSED}
"""

# A token that is there already is this very claim: the reply to its commit was lost. The repetition waits for locks
# instead of skipping them, because the first try may still be committing.
_CLAIM = """
WITH asked AS (
    SELECT * FROM unnest($1::uuid[], $2::int4[], $3::uuid[]) WITH ORDINALITY AS a(id, attempt, token, ord)),
  locked AS MATERIALIZED (
    SELECT q.id, a.attempt, a.token, a.ord FROM asked a JOIN execution_queue q ON q.id = ANY (ARRAY[a.id])
    WHERE q.status = 'running' AND q.token = a.token
       OR q.status = 'queued' AND q.attempt = a.attempt AND q.not_before <= now() AND q.expires_at > now()
          AND q.cancel_requested_at IS NULL AND q.attempt < q.max_attempts
          AND q.lane = $7 AND q.queue = ANY($8::text[]) AND q.tool_key = ANY($9::text[])
    ORDER BY a.id FOR UPDATE OF q {wait}),
  claimed AS (
    UPDATE execution_queue q SET status = 'running', attempt = l.attempt + 1, token = l.token,
      owner = $4, hostname = $5, pid = $6,
      started_at = CASE q.status WHEN 'running' THEN q.started_at ELSE clock_timestamp() END
    FROM locked l WHERE q.id = ANY (ARRAY[l.id]) RETURNING q.id, l.ord, q.started_at, q.sealed)
SELECT c.ord, e.tool, e.tool_version, e.parameters, e.context, e.timeout,
       e.max_attempts, e.idempotent, e.reply_to, e.options, extract(epoch FROM c.started_at)::float8, c.sealed
FROM claimed c JOIN executions e ON e.id = ANY (ARRAY[c.id])
"""
_CLAIM_FIRST, _CLAIM_AGAIN = _CLAIM.format(wait="SKIP LOCKED"), _CLAIM.format(wait="")
_OUTCOME_START = 6
_FINISH = f"""
WITH locked AS MATERIALIZED (
    SELECT o.*, q.owner, q.hostname, q.pid, q.started_at, q.expires_in,
           o.give_back OR (o.retry_in IS NOT NULL AND q.attempt < q.max_attempts
                           AND q.cancel_requested_at IS NULL) AS again
    FROM unnest($1::uuid[], $2::int4[], $3::uuid[], $4::float8[], $5::bool[],
      {array_parameters(_OUTCOME_COLUMNS, _OUTCOME_START)})
      WITH ORDINALITY AS o(id, attempt, token, retry_in, give_back, {_ATTEMPT_COLUMNS}, ord)
    JOIN execution_queue q ON q.id = ANY (ARRAY[o.id])
    WHERE q.attempt = o.attempt AND q.token = o.token AND q.status = 'running'
    ORDER BY o.id FOR UPDATE OF q),
  requeued AS (
    UPDATE execution_queue q SET status = 'queued', attempt = q.attempt - l.give_back::int, token = NULL, owner = NULL,
      hostname = NULL, pid = NULL, started_at = NULL, not_before = now() + make_interval(secs => COALESCE(l.retry_in, 0)),
      expires_at = GREATEST(q.expires_at, now() + make_interval(secs => COALESCE(l.retry_in, 0) + l.expires_in))
    FROM locked l WHERE q.id = ANY (ARRAY[l.id]) AND l.again),
  ended AS (
    DELETE FROM execution_queue q USING locked l WHERE q.id = ANY (ARRAY[l.id]) AND NOT l.again),
  attempted AS (
    INSERT INTO execution_attempts (execution_id, attempt, final, token, worker_id, hostname, pid, started_at,
                                    completed_at, {_ATTEMPT_COLUMNS})
    SELECT l.id, l.attempt, NOT l.again, l.token, l.owner, l.hostname, l.pid, l.started_at, now(),
           {cast_values(_OUTCOME_COLUMNS, "l")} FROM locked l WHERE NOT l.give_back),
  noted AS (
    INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
    SELECT l.id, now(), 'given_back', l.owner, json_build_object('attempt', l.attempt), l.token
    FROM locked l WHERE l.give_back)
SELECT ord FROM locked
"""

# Runs after a finish that found no row of its own, with a snapshot that sees what its first try committed.
_SETTLE_LATE = """
WITH outcome AS (
    SELECT * FROM unnest($1::uuid[], $2::int4[], $3::uuid[], $4::text[], $5::text[])
      WITH ORDINALITY AS o(id, attempt, token, status, detail, ord)),
  mine AS (
    SELECT o.ord FROM outcome o
    WHERE EXISTS (SELECT FROM execution_attempts a WHERE a.execution_id = o.id AND a.attempt = o.attempt
                  AND a.token = o.token AND a.status = o.status)
       OR EXISTS (SELECT FROM execution_events v WHERE v.execution_id = o.id AND v.kind = 'given_back'
                  AND v.token = o.token)),
  noted AS (
    INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
    SELECT o.id, now(), 'late', 'worker', o.detail::json, o.token FROM outcome o JOIN executions e ON e.id = o.id
    WHERE o.ord NOT IN (SELECT ord FROM mine) ORDER BY o.id ON CONFLICT DO NOTHING)
SELECT ord FROM mine
"""
_RESULTS = f"""
SELECT asked.ord, {", ".join(f"a.{column}" for column in RESULT_COLUMNS)}
FROM unnest($1::uuid[]) WITH ORDINALITY AS asked(id, ord)
JOIN execution_attempts a ON a.execution_id = ANY (ARRAY[asked.id]) AND a.final
"""
_STATUSES = """
SELECT asked.ord, COALESCE(a.status, q.status) AS status FROM unnest($1::uuid[]) WITH ORDINALITY AS asked(id, ord)
JOIN executions e ON e.id = asked.id LEFT JOIN execution_queue q ON q.id = asked.id
LEFT JOIN execution_attempts a ON a.execution_id = asked.id AND a.final
"""


class PostgresHotPath:
    """Each call is one round trip and one transaction."""

    def __init__(self, address: Address, *, connect_timeout: float) -> None:
        self._connections = _Connections(address, connect_timeout)
        self._cut_off: set[Scope] = set()
        self._address = address

    async def submit(self, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        columns = transposed([execution_values(new) for new in rows])
        return _refusals(rows, await self.fetch(_SUBMIT, *columns, [new.issued_at for new in rows]))

    async def record(self, rows: Sequence[Record]) -> list[ForgeError | None]:
        columns = transposed([execution_values(row.new) for row in rows])
        outcomes = transposed([outcome_values(row.outcome) for row in rows])
        issued = [row.new.issued_at for row in rows]
        return _refusals([row.new for row in rows], await self.fetch(_RECORD, *columns, issued, *outcomes))

    async def claim(self, rows: Sequence[Ask], scope: Scope) -> list[Claim | None]:
        statement = _CLAIM_AGAIN if scope in self._cut_off else _CLAIM_FIRST
        owner = (scope.boot, scope.hostname, scope.pid, scope.lane, list(scope.queues), list(scope.tool_keys))
        try:
            won = await self.fetch(statement, *transposed(rows), *owner)
        except UnreachableError:
            self._cut_off.add(scope)
            raise
        self._cut_off.discard(scope)
        claims: list[Claim | None] = [None] * len(rows)
        for row in won:
            claims[row[0] - 1] = _claim(rows[row[0] - 1], row)
        return claims

    async def finish(self, rows: Sequence[Outcome]) -> list[bool]:
        heads = [(o.id, o.attempt, o.token, o.retry_in, o.give_back) for o in rows]
        columns = (*transposed(heads), *transposed([outcome_values(outcome) for outcome in rows]))
        effects = _flags(len(rows), await self.fetch(_FINISH, *columns))
        missed = [index for index, took_effect in enumerate(effects) if not took_effect]
        if missed:
            for index, mine in zip(missed, await self._settle_late([rows[index] for index in missed]), strict=True):
                effects[index] = mine
        return effects

    async def results(self, ids: Sequence[str]) -> list[StoredResult | None]:
        found: list[StoredResult | None] = [None] * len(ids)
        for ord_, *values in await self.fetch(_RESULTS, ids):
            found[ord_ - 1] = stored_result(ids[ord_ - 1], values)
        return found

    async def statuses(self, ids: Sequence[str]) -> list[ExecutionStatus | None]:
        found: list[ExecutionStatus | None] = [None] * len(ids)
        for ord_, status in await self.fetch(_STATUSES, ids):
            found[ord_ - 1] = status_of(status)
        return found

    async def look(self, rows: Sequence[Question]) -> list[Look | StorageError]:
        return [postgres_look(row, await self.fetch(POSTGRES_LOOK, *postgres_arguments(row))) for row in rows]

    async def due(self, scope: Scope, limit: int) -> list[Ring]:
        rows = await self.fetch(POSTGRES_DUE, scope.lane, scope.queues, scope.tool_keys, limit)
        return [Ring(id_, attempt) for id_, attempt in rows]

    def cut_off(self) -> None:
        self._connections.cut_off()

    async def close(self) -> None:
        await self._connections.close()

    async def _settle_late(self, rows: Sequence[Outcome]) -> list[bool]:
        """Tell repeated finishes, which took effect before, from those fenced off; keep the latter to read."""
        values = [(o.id, o.attempt, o.token, o.status.value, late_detail(o)) for o in rows]
        return _flags(len(rows), await self.fetch(_SETTLE_LATE, *transposed(values)))

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        """Run one statement on a connection with pinned plans."""
        with translated(self._address.shown):
            return await self._connections.fetch(statement, arguments)


class _Connections:
    """A connection for each statement under way; there are no more of those than kinds of batches."""

    def __init__(self, address: Address, connect_timeout: float) -> None:
        self._address = address
        self._timeout = connect_timeout
        self._idle: list[Any] = []
        self._busy: set[Any] = set()
        self._is_cut_off = False

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        """Run one statement. A server that stays silent loses the connection: asking it to cancel could hang as well."""
        connection = await self._take()
        self._busy.add(connection)
        try:
            with alarm(CLIENT_SECONDS, connection.terminate):
                rows: list[Any] = await connection.fetch(statement, *arguments)
        except asyncio.CancelledError as cancellation:
            connection.terminate()
            cancellation.args = (SENT,)
            raise
        finally:
            self._busy.discard(connection)
            self._put_back(connection)
        return rows

    def cut_off(self) -> None:
        self._is_cut_off = True
        for connection in (*self._idle, *self._busy):
            connection.terminate()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        await asyncio.gather(*(self._part_from(connection) for connection in idle))

    async def _take(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        if self._is_cut_off:
            raise UnreachableError("The client was closed before the database answered.", is_final=True)
        return await connect_postgres(self._address, timeout=self._timeout, settings=PINNED, command_timeout=None)

    async def _part_from(self, connection: Any) -> None:
        """Say goodbye, but not for long: a server that does not answer is left all the same."""
        with suppress(ForgeError), translated(self._address.shown):
            await connection.close(timeout=1.0)

    def _put_back(self, connection: Any) -> None:
        if not connection.is_closed():
            self._idle.append(connection)


def transposed(rows: Sequence[Sequence[object]]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _flags(count: int, rows: Sequence[Any]) -> list[bool]:
    """True at each ordinal that came back."""
    flags = [False] * count
    for (ord_,) in rows:
        flags[ord_ - 1] = True
    return flags


def _refusals(rows: Sequence[NewExecution], refused: Sequence[Any]) -> list[ForgeError | None]:
    errors: list[ForgeError | None] = [None] * len(rows)
    for ord_, *why in refused:
        errors[ord_ - 1] = refusal(rows[ord_ - 1], *why)
    return errors


def _claim(ask: Ask, row: Any) -> Claim:
    _, tool, version, parameters, context, timeout, max_attempts, idempotent, reply_to, options, started_at, sealed = (
        row
    )
    return Claim(
        id=ask.id,
        attempt=ask.attempt + 1,
        token=ask.token,
        tool=tool,
        tool_version=version,
        parameters=parameters,
        context=context,
        timeout=timeout,
        max_attempts=max_attempts,
        idempotent=idempotent,
        reply_to=reply_to,
        options=options,
        started_at=started_at,
        sealed=sealed,
    )
