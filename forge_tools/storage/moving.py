"""Moves a claimed call to the queue of a host that can run it, or says why there is none; so often, and no more."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import Claim, ExecutionStatus, Moved, Scope, Stranded
from forge_tools.records.places import host_queue
from forge_tools.storage.functions import from_now
from forge_tools.storage.models import NOBODY, execution_events, execution_queue
from forge_tools.validation import shown

KIND = "rerouted"
MOST_MOVES = 5
"""Of one execution. A host that has what a call needs keeps it, so one move does; this ends every other story."""

RETRY_HERE_SECONDS = 1.0
"""Until a call is due again that only another worker of the same host can run."""

live = execution_queue.c


async def move(
    connection: AsyncConnection, claim: Claim, name: str, scope: Scope, rows: Sequence[Row[Any]]
) -> Moved | Stranded | None:
    """Give the row that `claim` holds back with the attempt uncounted, to be claimed on a host that has `name`.

    `rows` are the announcements of that workspace, the newest first. None: the claim is no longer the worker's.
    """
    is_mine = (live.id == claim.id) & (live.attempt == claim.attempt) & (live.token == claim.token)
    held = select(live.lane, live.tool_key).where(is_mine, live.status == ExecutionStatus.RUNNING.value)
    row = (await connection.execute(held.with_for_update())).one_or_none()
    if row is None:
        return None
    host = _host_for(claim, row, scope, rows)
    if host is None:
        return Stranded(why=_why_nowhere(name, scope, rows))
    moves = await connection.scalar(
        select(func.count()).where(execution_events.c.execution_id == claim.id, execution_events.c.kind == KIND)
    )
    if (moves or 0) >= MOST_MOVES:
        return Stranded(why=_why_no_more(name, scope, host))
    await _give_back(connection, claim, host_queue(host), RETRY_HERE_SECONDS if host == scope.hostname else 0.0)
    await _note(connection, claim, name, scope, host)
    return Moved(queue=host_queue(host), hostname=host)


def _host_for(claim: Claim, held: Any, scope: Scope, rows: Sequence[Row[Any]]) -> str | None:
    """A host with a live worker that has it, rather one whose lane and tools fit; calls spread over several by their ids."""
    alive = [row for row in rows if row.is_live and row.boot != scope.boot]
    fitting = [row for row in alive if row.lane == held.lane and claim.tool in row.tools]
    elsewhere = [row for row in alive if row.hostname != scope.hostname]
    for choice in ([row for row in fitting if row.hostname != scope.hostname], fitting, elsewhere):
        hosts: list[str] = sorted({row.hostname for row in choice})
        if hosts:
            return hosts[int(claim.id[-4:], 16) % len(hosts)]
    return None


async def _give_back(connection: AsyncConnection, claim: Claim, queue: str, delay: float) -> None:
    """As every give-back, but to another queue, and without more time: a call that only travels expires all the same."""
    values = {"status": ExecutionStatus.QUEUED.value, "attempt": claim.attempt - 1, "queue": queue}
    moved = update(execution_queue).where(live.id == claim.id)
    await connection.execute(moved.values(**values, **NOBODY, not_before=from_now(delay)))


async def _note(connection: AsyncConnection, claim: Claim, name: str, scope: Scope, host: str) -> None:
    event = {
        "execution_id": claim.id,
        "kind": KIND,
        "actor": scope.boot,
        "detail": {
            "reason": f"workspace {name} is not on host {scope.hostname}",
            "to": host,
            "queue": host_queue(host),
        },
        "token": claim.token,
    }
    await connection.execute(insert(execution_events).values(at=from_now(0.0)), [event])


def _why_nowhere(name: str, scope: Scope, rows: Sequence[Row[Any]]) -> str:
    here = f"Workspace {shown(name)} is not on host {scope.hostname}, where the call came"
    way_out = "The call was not run. Start a worker there, or name another workspace"
    others = [row for row in rows if row.hostname != scope.hostname]
    if others:
        last = min(others, key=lambda row: row.silent_seconds)
        return f"{here}; host {last.hostname} has it, and its workers have been silent for {last.silent_seconds:.0f} s. {way_out}."
    if rows:
        return (
            f"{here}, as far as the worker that took it knows: others on that host have it or had it. The call was not run. "
            f"Start all workers on {scope.hostname} with the same FORGE_WORKSPACES."
        )
    return f"{here}, nor on any other host that is known. The call was not run. Name a workspace that a worker has."


def _why_no_more(name: str, scope: Scope, host: str) -> str:
    return (
        f"Workspace {name} is not on host {scope.hostname}, where the call came, and it was sent on {MOST_MOVES} times "
        f"already. It was not run. Start all workers on {host} with the same FORGE_WORKSPACES."
    )
