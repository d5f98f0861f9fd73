"""The hot statements on SQLite: one writer thread, one transaction per flush; reads use their own connection."""

import asyncio
import json
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from forge_tools.errors import ForgeError, StorageError
from forge_tools.model.calls import ToolResult
from forge_tools.model.execution import Claim, Holder, KeyClaim, NewExecution, Outcome, Scope, Wakeup, id_time
from forge_tools.storage.connection.drivers import (
    BUSY_SECONDS,
    READ_TEXT,
    SQLITE_SETUP,
    Address,
    Owner,
    closed,
    forge_now,
)
from forge_tools.storage.connection.faults import explain
from forge_tools.storage.connection.forkable import lock_against_forks
from forge_tools.storage.heartbeat import EVER, OVERLAP, Answers, Heartbeat, answers_of, heartbeat_values, scope_values
from forge_tools.storage.rows import (
    MAX_SKEW,
    Answer,
    Ask,
    Record,
    asked_by_name,
    claim_of,
    clean,
    late_detail,
    links,
    outcome_by_name,
    refusal,
    stored_result,
)
from forge_tools.storage.statements import sqlite_statement as sql
from forge_tools.storage.tables import NOBODY

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Clock(dict[float, str]):
    """The times that one flush writes, by how many seconds they are after its moment."""

    def __missing__(self, seconds: float) -> str:
        time = self[seconds] = forge_now(seconds)
        return time


class SqliteHotPath:
    """Every write of this process uses one thread, and takes turns with SQLAlchemy's on `write_lock`."""

    def __init__(self, address: Address, owner: Owner) -> None:
        self.guard = owner.guard
        self._writer = _Connection(address, "forge-sqlite-writer")
        self.write_lock = self._writer.turn
        self._reader = _Connection(address, "forge-sqlite-reader")

    async def submit(self, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        return await self._writer.run(_in_transaction, _submit, rows)

    async def submit_linked(self, rows: Sequence[NewExecution]) -> list[Answer]:
        return await self._writer.run(_in_transaction, _submit_linked, rows)

    async def record(self, rows: Sequence[Record]) -> list[ForgeError | None]:
        return await self._writer.run(_in_transaction, _record, rows)

    async def claim(self, rows: Sequence[Ask], scope: Scope) -> list[Claim | None]:
        return await self._writer.run(_in_transaction, partial(_claim, _asker(scope)), rows)

    async def finish(self, rows: Sequence[Outcome]) -> list[bool]:
        return await self._writer.run(_in_transaction, _finish, rows)

    async def beat(self, rows: Sequence[Heartbeat]) -> list[Answers | StorageError]:
        return await self._writer.run(_beat, rows)

    async def due(self, scope: Scope, limit: int) -> list[Wakeup]:
        return await self._reader.run(_due, scope, limit)

    async def results(self, ids: Sequence[str]) -> list[ToolResult | None]:
        return await self._reader.run(_results, ids)

    async def read(self, name: str, **values: object) -> list[Any]:
        self.guard()
        return await self._reader.run(
            lambda connection: connection.execute(sql(name), {"now": forge_now(), **values}).fetchall()
        )

    def cut_off(self) -> None:
        """Do nothing: nobody waits for a file that does not answer."""

    async def close(self) -> None:
        self._writer.close()
        self._reader.close()


class _Connection:
    """One connection, used by only one thread, which starts on first use and ends with this object.

    It is not an executor, whose locks and second future would cost each call three times.
    """

    def __init__(self, address: Address, name: str) -> None:
        self.turn = asyncio.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon: a store that nobody closed would otherwise keep the process from ending.
        self._thread = threading.Thread(target=_serve, args=(self._jobs, address), name=name, daemon=True)
        self._end = weakref.finalize(self, self._jobs.put, None)

    async def run(self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **_: P.kwargs) -> T:
        """Run this on the thread with its connection, in turn. Cancelling the caller does not stop it."""
        async with self.turn:
            if not self._end.alive:  # closed, perhaps while this waited: its thread answers nobody any more
                raise closed()
            if self._thread.ident is None:
                self._thread.start()
            answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._jobs.put((work, args, answer))
            return await answer

    def close(self) -> None:
        self._end()
        if self._thread.ident is not None:
            self._thread.join()  # every awaited statement has finished; one that nobody awaits is short


_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]"]


def _serve(jobs: "SimpleQueue[_Job | None]", address: Address) -> None:
    with ExitStack() as stack:
        # Made within the first job, whose caller then gets its error.
        connection, no_fork = cache(lambda: stack.enter_context(closing(_connect(address)))), lock_against_forks()
        while (job := jobs.get()) is not None:
            with no_fork:
                _do(*job, connection, address.shown)
            del job  # it would keep its rows and its caller's future until the next one comes
        with no_fork:
            stack.close()


def _do(
    work: Callable[..., Any],
    args: tuple[Any, ...],
    answer: "asyncio.Future[Any]",
    connection: Callable[[], sqlite3.Connection],
    shown: str,
) -> None:
    result: Any = None
    failure: BaseException | None = None
    try:
        result = work(connection(), *args)
    except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
        failure = explain(error, shown)
        failure.__cause__ = error
    except BaseException as error:  # noqa: BLE001 any failure must reach the caller
        failure = error
    with suppress(RuntimeError):  # the loop has ended: nobody waits
        answer.get_loop().call_soon_threadsafe(_tell, answer, result, failure)


def _tell(answer: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if answer.done():  # the caller was cancelled
        return
    if failure is None:
        answer.set_result(result)
    else:
        answer.set_exception(failure)


def _connect(address: Address) -> sqlite3.Connection:
    it = f"file:{quote(address.target)}?mode=rw"  # opened, and never created
    connection = sqlite3.connect(it, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    connection.text_factory = READ_TEXT
    for statement in SQLITE_SETUP:
        connection.execute(statement)
    return connection


def _in_transaction(
    connection: sqlite3.Connection, work: Callable[[sqlite3.Connection, R, Clock], T], rows: Sequence[R]
) -> list[T]:
    """Write all rows in one transaction, as of one moment."""
    clock = Clock()
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = [work(connection, row, clock) for row in rows]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has already rolled back after some errors
            connection.execute("ROLLBACK")
        raise
    return results


def _bound(values: Mapping[str, object]) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, tuple) else value for name, value in values.items()}


@lru_cache(maxsize=64)
def _asker(scope: Scope) -> Mapping[str, object]:
    """Return the asker as parameters, which are the same for one claim after another."""
    return _bound(scope_values(scope))


def _submit(connection: sqlite3.Connection, new: NewExecution, clock: Clock) -> ForgeError | None:
    changed = connection.execute(
        sql("changed"), {"tool": new.tool, "tool_digest": new.tool_digest, "id": new.id}
    ).fetchone()
    # With no skew: a row in `changed` says that the tool is the reason.
    refused = refusal(new, 0.0, *changed) if changed else _insert_execution(connection, new, clock[0.0])
    if refused is None:
        due = {"not_before": clock[new.delay], "expires_at": clock[new.expires_in]}
        connection.execute(
            sql("enqueue"), {**due, "encrypted": new.encrypted, "reply_key": new.reply_key, "id": new.id}
        )
    return None if refused is _ALREADY_THERE else refused


_ALREADY_THERE = ForgeError("this execution was inserted before")
"""A marker that no caller sees: a repeated insert succeeds, but must not put the call into the queue again."""


def _insert_execution(connection: sqlite3.Connection, new: NewExecution, now: str) -> ForgeError | None:
    """Insert what was asked; returns None if it was not there before."""
    skew = id_time(new.id) - time.time()  # a file's clock is that of its host
    if abs(skew) > MAX_SKEW:
        known = connection.execute(sql("known"), {"id": new.id}).fetchone()
        return _ALREADY_THERE if known else refusal(new, skew)
    inserted = connection.execute(sql("insert"), {"now": now, **asked_by_name(new)}).rowcount
    return None if inserted else _ALREADY_THERE


def _submit_linked(connection: sqlite3.Connection, new: NewExecution, clock: Clock) -> Answer:
    claim, replay = new.claim, new.replay
    if claim is not None and (holder := _holder(connection, claim, clock)) is not None:
        return None if holder.execution_id == new.id else holder
    if (refused := _submit(connection, new, clock)) is not None:
        return refused
    key = clean(claim.key) if claim else None
    connection.execute(sql("link"), {"key": key, "replay_of": replay.of if replay else None, "id": new.id})
    if claim is not None:
        held = {"scope": clean(claim.scope), "key": key, "fingerprint": claim.fingerprint, "ttl": claim.ttl}
        connection.execute(sql("take_key"), {"id": new.id, **held, "now": clock[0.0], "expires_at": clock[claim.ttl]})
    if replay is not None:
        event = {"now": clock[0.0], "actor": clean(replay.actor), "id": new.id}
        mine, its = links(new.id, replay)
        connection.execute(sql("note"), {"execution_id": new.id, "kind": "replay", "detail": mine, **event})
        connection.execute(sql("note"), {"execution_id": replay.of, "kind": "replayed", "detail": its, **event})
    return None


def _holder(connection: sqlite3.Connection, claim: KeyClaim, clock: Clock) -> Holder | None:
    key = {"scope": clean(claim.scope), "key": clean(claim.key)}
    row = connection.execute(sql("holder"), key).fetchone()
    if row is None or connection.execute(sql("free"), {"now": clock[0.0], **key}).rowcount:
        return None
    return Holder(*row)


def _record(connection: sqlite3.Connection, row: Record, clock: Clock) -> ForgeError | None:
    now = clock[0.0]
    new, outcome = row
    refused = _insert_execution(connection, new, now)
    if refused is None:
        end = {"id": new.id, "attempt": 0, "final": True, "now": now, **NOBODY}  # what never started has no token
        connection.execute(sql("insert_attempt"), outcome_by_name(outcome) | end)
    return None if refused is _ALREADY_THERE else refused


def _claim(asker: Mapping[str, object], connection: sqlite3.Connection, ask: Ask, clock: Clock) -> Claim | None:
    if not connection.execute(sql("claim"), {**asker, "now": clock[0.0], **ask._asdict()}).rowcount:
        return None
    row = connection.execute(sql("claimed"), {"id": ask.id}).fetchone()
    if row is None:  # the request is missing, so the row in the queue is all there is
        connection.execute(sql("leave"), {"id": ask.id})
        return None
    *values, encrypted, reply_key, started_at = row
    started = datetime.fromisoformat(started_at).replace(tzinfo=UTC).timestamp()
    return claim_of(ask, values, encrypted=encrypted, reply_key=reply_key, started_at=started)


def _finish(connection: sqlite3.Connection, outcome: Outcome, clock: Clock) -> bool:
    fence, now = {"id": outcome.id, "attempt": outcome.attempt, "token": outcome.token}, clock[0.0]
    owned = connection.execute(sql("owned"), fence).fetchone()
    if owned is None:
        return _settle_late(connection, outcome, fence, now)
    *who, may_run_again, expires_in = owned
    requeue = outcome.give_back or (outcome.retry_in is not None and may_run_again)
    if requeue:
        left, delay = outcome.attempt - outcome.give_back, outcome.retry_in or 0.0
        due = {"not_before": clock[delay], "expires_at": clock[delay + expires_in]}
        connection.execute(sql("requeue"), {"left": left, **due, "id": outcome.id})
    else:
        connection.execute(sql("leave"), {"id": outcome.id})
    if outcome.give_back:
        detail = json.dumps({"attempt": outcome.attempt})
        connection.execute(
            sql("insert_event"), {"now": now, "kind": "given_back", "actor": who[0], "detail": detail, **fence}
        )
    else:
        owner = dict(zip(("owner", "hostname", "pid", "started_at"), who, strict=True))
        end = {"final": not requeue, "now": now, **fence, **owner}
        connection.execute(sql("insert_attempt"), outcome_by_name(outcome) | end)
    return True


def _settle_late(connection: sqlite3.Connection, outcome: Outcome, fence: dict[str, object], now: str) -> bool:
    """Distinguish a repeated finish that took effect before from a late one, which is recorded for people to read."""
    if connection.execute(sql("is_mine"), {"status": outcome.status.value, **fence}).fetchone()[0]:
        return True
    connection.execute(
        sql("insert_event"), {"now": now, "kind": "late", "actor": "worker", "detail": late_detail(outcome), **fence}
    )
    return False


def _beat(connection: sqlite3.Connection, rows: Sequence[Heartbeat]) -> list[Answers | StorageError]:
    """Run each heartbeat as its own transaction."""
    now = forge_now()
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    answers = []
    for heartbeat in rows:
        asked = heartbeat_values(heartbeat)
        # No later than now, since the clock may have been set back.
        since = max(EVER, min(asked.pop("chained_end"), moment)) - OVERLAP
        asked |= {
            "now": now,
            "unix": moment.timestamp(),
            "chained_since": since.replace(tzinfo=None).isoformat(" ", "microseconds"),
        }
        rows_of = connection.execute(sql("heartbeat"), _bound(asked)).fetchall()  # fetching the last row commits it
        answers.append(answers_of(heartbeat, rows_of))
    return answers


def _due(connection: sqlite3.Connection, scope: Scope, limit: int) -> list[Wakeup]:
    return [
        Wakeup(*row) for row in connection.execute(sql("due"), {**_asker(scope), "now": forge_now(), "limit": limit})
    ]


def _results(connection: sqlite3.Connection, ids: Sequence[str]) -> list[ToolResult | None]:
    found = {id_: row for id_, *row in connection.execute(sql("results"), {"ids": json.dumps(ids)})}
    return [stored_result(id_, found[id_]) if id_ in found else None for id_ in ids]
