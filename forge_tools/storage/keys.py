"""Idempotency keys and replays: executions that are inserted together with what ties them to others."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, exists, or_, select

from forge_tools.records import Holder, LinkedExecution
from forge_tools.storage.batching import Batcher, Limits
from forge_tools.storage.engine import Database
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.models import execution_attempts, execution_queue, idempotency_keys
from forge_tools.storage.queue import HotPath, bad_id, submit_failed
from forge_tools.storage.rows import Answer

kept = idempotency_keys.c


class IdempotencyKeys:
    """Who holds which key, and the one way in for executions that have one or repeat another."""

    def __init__(self, hot: HotPath, database: Database, *, limits: Limits) -> None:
        self._database = database
        self._submits: Batcher[LinkedExecution, Holder | None] = Batcher(
            hot.submit_linked,
            limits,
            size=lambda row: row.size,
            give_up=lambda row, error: submit_failed(row.new, error),
        )

    async def submit_many(self, rows: Sequence[LinkedExecution]) -> list[Answer]:
        """Commit calls as queued, each with its key and its links in the same transaction; an answer each, in order.

        A call whose key another execution holds is not stored. Submitting an id again changes nothing.
        """
        self._database.guard()
        for row in rows:
            if (error := bad_id(row.new.id)) is not None:
                raise error
        return list(await self._submits.add_many(rows))

    async def of(self, execution_id: str) -> tuple[str, str] | None:
        """The scope and the key that still stand for an execution."""
        query = select(kept.scope, kept.key).where(kept.execution_id == execution_id)
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else (row.scope, row.key)

    async def purge(self, most: int = 500) -> int:
        """Delete keys that no longer hold, at most so many; returns how many."""
        overdue = select(kept.execution_id).where(_is_spent()).order_by(kept.expires_at).limit(most)
        gone = delete(idempotency_keys).where(kept.execution_id.in_(overdue.with_for_update(skip_locked=True)))
        return int((await self._database.write(lambda connection: connection.execute(gone))).rowcount)

    async def close(self) -> None:
        """Write what is under way and take no more."""
        await self._submits.close()


def _is_spent() -> ColumnElement[bool]:
    """Its execution has been over for as long as the key was to hold."""
    ended = execution_attempts.c
    is_under_way = exists().where(execution_queue.c.id == kept.execution_id)
    ended_lately = exists().where(
        ended.execution_id == kept.execution_id,
        ended.final,
        seconds_between(ended.completed_at, from_now(0.0)) < kept.ttl,
    )
    return (kept.expires_at <= from_now(0.0)) & ~or_(is_under_way, ended_lately)
