"""Calls, scopes and outcomes as the contract tests need them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import select, update

from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.execution import Claim, Kept, NewExecution, Outcome, Scope, Wakeup
from forge_tools.model.overview import WorkerRecord
from forge_tools.storage import Store
from forge_tools.storage.functions import any_of, from_now
from forge_tools.storage.heartbeat import CANCELS, Heartbeat
from forge_tools.storage.history.view import tool_executions
from forge_tools.storage.sqlalchemy_tables import execution_queue

UNKNOWN = "01a00000-0000-7000-8000-00000000abcd"
"""An id that no execution has."""

SCOPE = Scope(
    instance="instance-1", hostname="host-1", pid=11, lane="async", queues=("default",), tool_keys=("Grep@1",)
)


def call(**changes: Any) -> NewExecution:
    """A call of Grep that nobody has submitted yet."""
    plain = NewExecution(
        id=new_id(),
        tool="Grep",
        tool_key="Grep@1",
        tool_version="1.0.0",
        tool_digest="d1",
        category="file",
        parameters='{"pattern":"TODO"}',
        context='{"working_dir":"/w"}',
        lane="async",
        timeout=5.0,
        timeout_source="tool",
        soft_time_limit=6.0,
        time_limit=7.0,
    )
    return replace(plain, **changes)


def scope(**changes: Any) -> Scope:
    return replace(SCOPE, **changes)


def ended(claim: Claim, status: ExecutionStatus = ExecutionStatus.SUCCEEDED, **changes: Any) -> Outcome:
    return replace(Outcome(id=claim.id, attempt=claim.attempt, token=claim.token, status=status), **changes)


def instance(name: str = "instance-1", **changes: Any) -> WorkerRecord:
    plain = WorkerRecord(
        id=name, hostname="host-1", pid=11, lane="async", queues=("default",), concurrency=4, version="0.1.0"
    )
    return replace(plain, **changes)


async def submit_one(store: Store, new: NewExecution) -> None:
    [error] = await store.queue.submit_many([new])
    if error is not None:
        raise error


async def finish_one(store: Store, outcome: Outcome) -> Kept:
    [kept] = await store.queue.finish_many([outcome])
    return kept


async def submitted(store: Store, **changes: Any) -> str:
    """A call that was checked by the definition that counts, where one was published."""
    new = call(**changes)
    counting = {spec.name: spec.digest for spec in (await store.directories.read()).enabled}
    await submit_one(store, new if "tool_digest" in changes else replace(new, tool_digest=counting.get(new.tool, "d1")))
    return new.id


async def running(store: Store, by: Scope = SCOPE, **changes: Any) -> Claim:
    """A call that was submitted and claimed."""
    return await claimed(store, await submitted(store, **changes), by=by)


async def claimed(store: Store, execution_id: str, attempt: int = 0, by: Scope = SCOPE) -> Claim:
    [claim] = await store.queue.claim([Wakeup(execution_id, attempt)], by)
    return claim


async def finished(store: Store, ids: Sequence[str]) -> None:
    """Claim and finish them all."""
    claims = await store.queue.claim([Wakeup(id_, 0) for id_ in ids], SCOPE)
    assert all(await store.queue.finish_many([ended(claim) for claim in claims]))


async def overdue(store: Store, execution_id: str) -> None:
    """Let the waiting time of a call be over, without waiting for it."""
    statement = update(execution_queue).where(execution_queue.c.id == execution_id).values(expires_at=from_now(-1.0))
    await store.database.write(lambda connection: connection.execute(statement))


async def beat(store: Store, instance: str) -> list[Wakeup]:
    """Say that an instance lives; what it runs and is to stop."""
    return list((await store.workers.beat(Heartbeat(scope(instance=instance), (CANCELS,))))[CANCELS])


async def statuses(store: Store, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
    """Where those of `ids` are that wait, run or have ended."""
    known = tool_executions.c
    query = select(known.id, known.status).where(any_of(known.id, ids), known.status.is_not(None))
    return {row.id: ExecutionStatus(row.status) for row in await store.database.rows(query)}


async def clock_of(store: Store) -> float:
    """The time of the database, in Unix seconds."""
    now: datetime = await store.database.scalar(select(from_now(0.0)))
    return now.timestamp()
