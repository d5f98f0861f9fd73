"""Which host has which workspace, which session uses which one, and rerouting for calls that arrive elsewhere."""

import builtins
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, case, delete, exists, false, func, insert, or_, select, true, update

from forge_tools.errors import ConfigurationError
from forge_tools.model.execution import Claim, ExecutionStatus, Scope
from forge_tools.model.places import Moved, NamedWorkspace, Stranded, WorkspaceRecord, host_queue
from forge_tools.schema import shown
from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.queue.workers import beat_within, is_alive
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import (
    execution_events,
    execution_queue,
    session_workspaces,
    workers,
    workspaces,
)
from forge_tools.storage.tables import NOBODY

KEPT_SECONDS = 30 * 86_400.0
"""How long the workspaces of a host that is gone are remembered."""

MAX_SESSION_ID = 500

KIND = "rerouted"
MOST_MOVES = 5
"""How often one execution may be moved. One move is enough, since a host that has the workspace keeps it; this ends loops."""

RETRY_HERE_SECONDS = 1.0
"""When a call is due again that only another worker of the same host can run."""

live = execution_queue.c

known = workspaces.c


class Workspaces:
    """Each worker instance announces its workspaces at its start. Those of a dead one are remembered."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def announce(
        self, instance: str, hostname: str, named: Sequence[NamedWorkspace], *, within: float
    ) -> builtins.list[str]:
        """Write which workspaces `instance`, which must be registered, has; instances seen `within` seconds are alive.

        Announcements of dead workers of this host are deleted: its configuration may have changed. A workspace bound to
        a host without live workers is taken over. Returns a sentence for each one taken.
        """

        async def work(connection: AsyncConnection) -> list[str]:
            await prepare(connection, "workspaces_in_turn")
            there = [_record(row) for row in (await connection.execute(_rows(within))).all()]
            taken = [_resolved(theirs, hostname) for theirs in rivals(named, there, hostname)]
            await connection.execute(delete(workspaces).where(_is_stale(instance, hostname, named, within)))
            if named:
                rows = [{"name": one.name, "shared": one.is_shared, "roots": list(one.roots)} for one in named]
                await connection.execute(_ANNOUNCE.values(instance=instance, hostname=hostname), rows)
            return list(dict.fromkeys(taken))

        return await self._database.write(work)

    async def list(self, *, within: float) -> builtins.list[WorkspaceRecord]:
        """List every announcement, by name; the newest of each name first."""
        return [_record(row) for row in await self._database.rows(_rows(within))]

    async def send_home(self, claim: Claim, name: str, scope: Scope, *, within: float) -> Moved | Stranded | None:
        """Give a call that `scope` claimed back without counting the attempt, to be claimed where its workspace is.

        None: the claim is no longer this worker's.
        """
        there = _rows(within).where(known.name == clean(name))
        return await self._database.write(partial(_move, claim, name, scope, there))

    async def bind_session(self, session_id: str, name: str | None) -> None:
        """Make calls of a session that name no workspace use this one; None ends that."""
        if not 0 < len(session_id) <= MAX_SESSION_ID:
            raise ConfigurationError(
                f"A session id of {len(session_id)} characters cannot be bound to a workspace; use 1 to {MAX_SESSION_ID}."
            )
        session_id = clean(session_id)
        statement: Any = delete(session_workspaces).where(session_workspaces.c.session_id == session_id)
        if name is not None:
            bound = {"workspace": clean(name), "bound_at": from_now(0.0)}
            row = self._database.upsert(session_workspaces).values(session_id=session_id, **bound)
            statement = row.on_conflict_do_update(index_elements=["session_id"], set_=bound)
        await self._database.execute(statement)


def rivals(
    mine: Iterable[NamedWorkspace], known_ones: Iterable[WorkspaceRecord], hostname: str
) -> Sequence[WorkspaceRecord]:
    """Return the announcements of other hosts than `hostname` that clash with `mine`: one of the two is not shared."""
    by_name = {one.name: one for one in mine}
    others = [one for one in known_ones if one.hostname != hostname and one.name in by_name]
    return [theirs for theirs in others if not (theirs.is_shared and by_name[theirs.name].is_shared)]


_ANNOUNCE = insert(workspaces).values(announced_at=from_now(0.0))


def _rows(within: float) -> Select[Any]:
    """Select announcements with what is known of their worker instances, by name, the newest first."""
    silence = func.coalesce(seconds_between(workers.c.last_seen_at, from_now(0.0)), KEPT_SECONDS)
    return (
        select(
            workspaces,
            case((is_alive(within), true()), else_=false()).label("is_live"),  # without a row it would be NULL
            workers.c.stopped_at.is_not(None).label("has_stopped"),
            silence.label("silent_seconds"),
            workers.c.lane,
            workers.c.tools,
        )
        .select_from(workspaces)
        .outerjoin(workers, workers.c.id == known.instance)
        .order_by(known.name, known.announced_at.desc(), known.instance)
    )


def _resolved(theirs: WorkspaceRecord, hostname: str) -> str:
    """Report that the workspace of a dead host is taken over; refuse to take that of a live one."""
    name, host, silence = theirs.name, theirs.hostname, f"{theirs.silent_seconds:.0f} s"
    if not theirs.is_live:
        how = "was shared on" if theirs.is_shared else "was bound to"
        return (
            f"Workspace {name} {how} host {host}, which has had no live worker with it for {silence}; "
            f"host {hostname} takes it over."
        )
    how = f"is shared on host {host} and not on {hostname}" if theirs.is_shared else f"is bound to host {host}"
    raise ConfigurationError(
        f"FORGE_WORKSPACES: workspace {name} {how}; a live worker on {host} has it (last seen {silence} ago). If all hosts "
        f'see the same files, set "shared": true on each; otherwise rename it on {hostname}, or stop the workers on {host}.'
    )


def _is_stale(instance: str, hostname: str, named: Sequence[NamedWorkspace], within: float) -> ColumnElement[bool]:
    """Select announcements that this one replaces: had one clashed with a live instance, it would have been refused.

    Shared workspaces of instances that stopped, or were found dead, are forgotten; one that is only silent may come
    back.
    """
    has_owner = exists().where(workers.c.id == known.instance, is_alive(within))
    is_recent = exists().where(workers.c.id == known.instance, beat_within(KEPT_SECONDS))
    bound, shared = ([one.name for one in named if one.is_shared is kind] for kind in (False, True))
    elsewhere = (known.hostname != hostname) & or_(known.name.in_(bound), known.name.in_(shared) & ~known.shared)
    has_stopped = ~exists().where(workers.c.id == known.instance, workers.c.stopped_at.is_(None))
    is_had_again = known.name.in_(shared) & known.shared & has_stopped
    return or_(
        known.instance == instance, is_had_again, ~has_owner & or_(known.hostname == hostname, elsewhere, ~is_recent)
    )


def _record(row: Row[Any]) -> WorkspaceRecord:
    return record_of(
        WorkspaceRecord,
        row,
        is_shared=row.shared,
        roots=tuple(row.roots),
        silent_seconds=max(0.0, row.silent_seconds),
    )


async def _move(
    claim: Claim, name: str, scope: Scope, there: Select[Any], connection: AsyncConnection
) -> Moved | Stranded | None:
    rows = (await connection.execute(there)).all()
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
    await _give_back(connection, claim, name, scope, host)
    return Moved(queue=host_queue(host), hostname=host)


def _host_for(claim: Claim, held: Any, scope: Scope, rows: Sequence[Row[Any]]) -> str | None:
    """Choose a host with a live worker that has the workspace, preferably with its lane and tool; ids spread calls."""
    living = [row for row in rows if row.is_live and row.instance != scope.instance]
    fitting = [row for row in living if row.lane == held.lane and claim.tool in row.tools]
    elsewhere = [row for row in living if row.hostname != scope.hostname]
    for choice in ([row for row in fitting if row.hostname != scope.hostname], fitting, elsewhere):
        hosts: list[str] = sorted({row.hostname for row in choice})
        if hosts:
            return hosts[int(claim.id[-4:], 16) % len(hosts)]
    return None


async def _give_back(connection: AsyncConnection, claim: Claim, name: str, scope: Scope, host: str) -> None:
    """Give the claim back, to another queue, without extending its expiry: a call that is only moved still expires."""
    values = {"status": ExecutionStatus.QUEUED.value, "attempt": claim.attempt - 1, "queue": host_queue(host)}
    due = from_now(RETRY_HERE_SECONDS if host == scope.hostname else 0.0)
    moved = update(execution_queue).where(live.id == claim.id)
    await connection.execute(moved.values(**values, **NOBODY, not_before=due))
    why = {"reason": f"workspace {name} is not on host {scope.hostname}", "to": host, "queue": host_queue(host)}
    event = {"execution_id": claim.id, "kind": KIND, "actor": scope.instance, "detail": why, "token": claim.token}
    await connection.execute(insert(execution_events).values(at=from_now(0.0), **event))


def _why_nowhere(name: str, scope: Scope, rows: Sequence[Row[Any]]) -> str:
    here = f"Workspace {shown(name)} is not on host {scope.hostname}, which received the call"
    way_out = "The call did not run. Start a worker there, or name another workspace"
    others = [row for row in rows if row.hostname != scope.hostname]
    if others:
        last = min(others, key=lambda row: row.silent_seconds)
        return f"{here}; host {last.hostname} has it, and its workers have been silent for {last.silent_seconds:.0f} s. {way_out}."
    if rows:
        return (
            f"{here}, according to the worker that took it: others on that host have it or had it. The call did not run. "
            f"Start all workers on {scope.hostname} with the same FORGE_WORKSPACES."
        )
    return f"{here}, nor on any other known host. The call did not run. Name a workspace that a worker has."


def _why_no_more(name: str, scope: Scope, host: str) -> str:
    return (
        f"Workspace {name} is not on host {scope.hostname}, which received the call, and it was already forwarded {MOST_MOVES} times. "
        f"It did not run. Start all workers on {host} with the same FORGE_WORKSPACES."
    )
