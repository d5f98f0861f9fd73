"""The hot statements on SQLite: one writer thread, one transaction a flush; reads on a connection of their own."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from typing import TypeVar

from forge_tools.errors import ForgeError, StorageError
from forge_tools.records import Claim, ExecutionStatus, NewExecution, Outcome, Ring, Scope, StoredResult
from forge_tools.storage.definitions import refusal
from forge_tools.storage.engine import BUSY_SECONDS, READ_TEXT, SQLITE_SETUP, Address, forge_now
from forge_tools.storage.faults import translated
from forge_tools.storage.looks import Look, Question, sqlite_due, sqlite_look
from forge_tools.storage.rows import (
    EXECUTION_COLUMNS,
    MAX_SKEW,
    RESULT_COLUMNS,
    Ask,
    Record,
    execution_values,
    late_detail,
    outcome_values,
    skewed,
    status_of,
    stored_result,
)

T = TypeVar("T")
Clock = Callable[[float], str]
"""The time that many seconds from a flush's own now."""

_INSERT_EXECUTION = f"""
INSERT INTO executions ({", ".join(EXECUTION_COLUMNS)}, queued_at)
VALUES ({", ".join("?" * len(EXECUTION_COLUMNS))}, ?) ON CONFLICT (id) DO NOTHING
"""
_CHANGED = """
SELECT name, spec, digest, enabled, demoted_at IS NOT NULL FROM tools
WHERE name = ? AND is_default AND NOT (enabled AND digest = ?) AND NOT EXISTS (SELECT 1 FROM executions WHERE id = ?)
"""
_ENQUEUE = """
INSERT INTO execution_queue (id, tool_key, queue, lane, max_attempts, idempotent, status, attempt,
                             not_before, expires_at, expires_in, sealed)
SELECT id, tool_key, queue, lane, max_attempts, idempotent, 'queued', 0, ?, ?, expires_in, ? FROM executions
WHERE id = ?
"""
_INSERT_ATTEMPT = """
INSERT INTO execution_attempts (execution_id, attempt, final, token, worker_id, hostname, pid, started_at, completed_at,
                                status, duration_ms, output, error, error_code, error_details, metadata)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_CLAIMED = """
SELECT e.tool, e.tool_version, e.parameters, e.context, e.timeout, e.max_attempts,
  e.idempotent, e.reply_to, e.options, q.started_at, q.sealed
FROM executions e JOIN execution_queue q ON q.id = e.id WHERE e.id = ?
"""
_OWNED = """
SELECT owner, hostname, pid, started_at, attempt < max_attempts AND cancel_requested_at IS NULL, expires_in
FROM execution_queue WHERE id = ? AND attempt = ? AND token = ? AND status = 'running'
"""
_REQUEUE = """
UPDATE execution_queue SET status = 'queued', attempt = ?, token = NULL, owner = NULL, hostname = NULL, pid = NULL,
  started_at = NULL, not_before = ?, expires_at = MAX(expires_at, ?) WHERE id = ?
"""
_INSERT_EVENT = """
INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
SELECT id, ?, ?, ?, ?, ? FROM executions WHERE id = ? ON CONFLICT DO NOTHING
"""
_ALREADY_MINE = """
SELECT EXISTS (SELECT 1 FROM execution_attempts WHERE execution_id = ? AND attempt = ? AND token = ? AND status = ?)
    OR EXISTS (SELECT 1 FROM execution_events WHERE execution_id = ? AND kind = 'given_back' AND token = ?)
"""
_RESULTS = f"""
SELECT execution_id, {", ".join(RESULT_COLUMNS)} FROM execution_attempts
WHERE final AND execution_id IN (SELECT value FROM json_each(?))
"""
_STATUSES = """
SELECT e.id, COALESCE(a.status, q.status) FROM json_each(?) AS asked JOIN executions e ON e.id = asked.value
LEFT JOIN execution_queue q ON q.id = e.id LEFT JOIN execution_attempts a ON a.execution_id = e.id AND a.final
"""


class SqliteHotPath:
    """Every write of this process goes through one thread, and takes turns with SQLAlchemy's on `write_lock`."""

    def __init__(self, address: Address) -> None:
        self.write_lock = asyncio.Lock()
        self._writer = _Thread(address, "forge-sqlite-writer")
        self._reader = _Thread(address, "forge-sqlite-reader")

    async def submit(self, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        return await self.write(partial(_submit, rows))

    async def record(self, rows: Sequence[Record]) -> list[ForgeError | None]:
        return await self.write(partial(_record, rows))

    async def claim(self, rows: Sequence[Ask], scope: Scope) -> list[Claim | None]:
        return await self.write(partial(_claim, rows, scope))

    async def finish(self, rows: Sequence[Outcome]) -> list[bool]:
        return await self.write(partial(_finish, rows))

    async def look(self, rows: Sequence[Question]) -> list[Look | StorageError]:
        async with self.write_lock:
            return await self._writer.run(partial(_look, rows))

    async def due(self, scope: Scope, limit: int) -> list[Ring]:
        return await self._reader.run(partial(sqlite_due, scope, limit, forge_now()))

    async def results(self, ids: Sequence[str]) -> list[StoredResult | None]:
        return await self._reader.run(partial(_results, ids))

    async def statuses(self, ids: Sequence[str]) -> list[ExecutionStatus | None]:
        return await self._reader.run(partial(_statuses, ids))

    def cut_off(self) -> None:
        """Nothing waits for a file that does not answer."""

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one write transaction on the writer's thread."""
        async with self.write_lock:
            return await self._writer.run(partial(_in_transaction, work))


class _Thread:
    """One connection, used by one thread only."""

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with translated(self._address.shown):
            return work(self._connect())

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._address.file_uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS, cached_statements=64
            )
            connection.text_factory = READ_TEXT
            for statement in SQLITE_SETUP:
                connection.execute(statement)
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _in_transaction(work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _submit(rows: Sequence[NewExecution], connection: sqlite3.Connection) -> list[ForgeError | None]:
    clock = cache(forge_now)
    return [submit_one(connection, new, clock) for new in rows]


def submit_one(connection: sqlite3.Connection, new: NewExecution, clock: Clock) -> ForgeError | None:
    changed = connection.execute(_CHANGED, (new.tool, new.tool_digest, new.id)).fetchone()
    refused = refusal(new, 0.0, *changed) if changed else _insert_execution(connection, new, clock(0.0))
    if refused is None:
        connection.execute(_ENQUEUE, (clock(new.delay), clock(new.expires_in), new.sealed, new.id))
    return None if refused is _ALREADY_THERE else refused


_ALREADY_THERE = ForgeError("this execution was inserted before")


def _insert_execution(connection: sqlite3.Connection, new: NewExecution, now: str) -> ForgeError | None:
    """Insert the asked part; None if that is new."""
    skew = new.issued_at - time.time()
    if abs(skew) > MAX_SKEW:
        known = connection.execute("SELECT 1 FROM executions WHERE id = ?", (new.id,)).fetchone()
        return _ALREADY_THERE if known else skewed(new, skew)
    inserted = connection.execute(_INSERT_EXECUTION, (*execution_values(new)[:-1], now)).rowcount
    return None if inserted else _ALREADY_THERE


def _record(rows: Sequence[Record], connection: sqlite3.Connection) -> list[ForgeError | None]:
    now = forge_now()
    return [_record_one(connection, row, now) for row in rows]


def _record_one(connection: sqlite3.Connection, row: Record, now: str) -> ForgeError | None:
    refused = _insert_execution(connection, row.new, now)
    if refused is None:
        never_started = (row.new.id, 0, True, None, None, None, None, None, now)
        connection.execute(_INSERT_ATTEMPT, (*never_started, *outcome_values(row.outcome)))
    return None if refused is _ALREADY_THERE else refused


def _claim(rows: Sequence[Ask], scope: Scope, connection: sqlite3.Connection) -> list[Claim | None]:
    """The token's own row is found again: the reply to the commit may have been lost."""
    queues, keys = ("?, " * len(scope.queues)).rstrip(", "), ("?, " * len(scope.tool_keys)).rstrip(", ")
    statement = f"""
        UPDATE execution_queue SET status = 'running', attempt = ? + 1, token = ?, owner = ?, hostname = ?, pid = ?,
          started_at = CASE status WHEN 'running' THEN started_at ELSE ? END
        WHERE id = ? AND attempt < max_attempts + (status = 'running') AND (status = 'running' AND token = ?
          OR status = 'queued' AND attempt = ? AND not_before <= ? AND expires_at > ? AND cancel_requested_at IS NULL
             AND lane = ? AND queue IN ({queues}) AND tool_key IN ({keys}))"""
    now = forge_now()
    claims: list[Claim | None] = []
    for id_, attempt, token in rows:
        winner = (attempt, token, scope.boot, scope.hostname, scope.pid, now)
        asked = (id_, token, attempt, now, now, scope.lane, *scope.queues, *scope.tool_keys)
        won = connection.execute(statement, (*winner, *asked)).rowcount
        claims.append(_claimed(connection, id_, attempt + 1, token) if won else None)
    return claims


def _claimed(connection: sqlite3.Connection, id_: str, attempt: int, token: str) -> Claim | None:
    row = connection.execute(_CLAIMED, (id_,)).fetchone()
    if row is None:  # nobody asked for it: the row in the queue is all there is
        connection.execute("DELETE FROM execution_queue WHERE id = ?", (id_,))
        return None
    tool, version, parameters, context, timeout, max_attempts, idempotent, reply_to, options, started_at, sealed = row
    return Claim(
        id=id_,
        attempt=attempt,
        token=token,
        tool=tool,
        tool_version=version,
        parameters=parameters,
        context=context,
        timeout=timeout,
        max_attempts=max_attempts,
        idempotent=bool(idempotent),
        reply_to=reply_to,
        options=options,
        started_at=datetime.fromisoformat(started_at).replace(tzinfo=UTC).timestamp(),
        sealed=sealed,
    )


def _finish(rows: Sequence[Outcome], connection: sqlite3.Connection) -> list[bool]:
    clock = cache(forge_now)
    return [_finish_one(connection, outcome, clock) for outcome in rows]


def _finish_one(connection: sqlite3.Connection, outcome: Outcome, clock: Clock) -> bool:
    now = clock(0.0)
    owned = connection.execute(_OWNED, (outcome.id, outcome.attempt, outcome.token)).fetchone()
    if owned is None:
        return _settle_late(connection, outcome, now)
    *who, may_run_again, expires_in = owned
    requeue = outcome.give_back or (outcome.retry_in is not None and may_run_again)
    if requeue:
        left, delay = outcome.attempt - outcome.give_back, outcome.retry_in or 0.0
        connection.execute(_REQUEUE, (left, clock(delay), clock(delay + expires_in), outcome.id))
    else:
        connection.execute("DELETE FROM execution_queue WHERE id = ?", (outcome.id,))
    if outcome.give_back:
        event = (now, "given_back", who[0], json.dumps({"attempt": outcome.attempt}), outcome.token, outcome.id)
        connection.execute(_INSERT_EVENT, event)
    else:
        head = (outcome.id, outcome.attempt, not requeue, outcome.token, *who, now)
        connection.execute(_INSERT_ATTEMPT, (*head, *outcome_values(outcome)))
    return True


def _settle_late(connection: sqlite3.Connection, outcome: Outcome, now: str) -> bool:
    """Tell a repeated finish, which took effect before, from one that was fenced off; keep the latter to read."""
    attempt = (outcome.id, outcome.attempt, outcome.token, outcome.status.value, outcome.id, outcome.token)
    if connection.execute(_ALREADY_MINE, attempt).fetchone()[0]:
        return True
    connection.execute(_INSERT_EVENT, (now, "late", "worker", late_detail(outcome), outcome.token, outcome.id))
    return False


def _look(rows: Sequence[Question], connection: sqlite3.Connection) -> list[Look | StorageError]:
    now = forge_now()
    return [sqlite_look(row, now, connection) for row in rows]


def _results(ids: Sequence[str], connection: sqlite3.Connection) -> list[StoredResult | None]:
    found = {id_: row for id_, *row in connection.execute(_RESULTS, (json.dumps(ids),))}
    return [stored_result(id_, found[id_]) if id_ in found else None for id_ in ids]


def _statuses(ids: Sequence[str], connection: sqlite3.Connection) -> list[ExecutionStatus | None]:
    found = {id_: status_of(status) for id_, status in connection.execute(_STATUSES, (json.dumps(ids),))}
    return [found.get(id_) for id_ in ids]
