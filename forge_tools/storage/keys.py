"""Idempotency keys and replays: executions that are inserted together with what ties them to others."""

import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial

from sqlalchemy import ColumnElement, delete, exists, or_, select

from forge_tools.errors import ForgeError, StorageError
from forge_tools.records import Holder, KeyClaim, LinkedExecution, Replay
from forge_tools.storage.batching import Batcher, Limits
from forge_tools.storage.definitions import refusal
from forge_tools.storage.engine import Database, forge_now
from forge_tools.storage.functions import from_now, seconds_between
from forge_tools.storage.models import execution_attempts, execution_queue, idempotency_keys
from forge_tools.storage.postgres import (
    CHECKED,
    ENQUEUED,
    REFUSED,
    PostgresHotPath,
    array_parameters,
    cast_values,
    transposed,
)
from forge_tools.storage.queue import bad_id, submit_failed
from forge_tools.storage.rows import EXECUTION_COLUMNS, GIVEN_COLUMNS, clean, execution_values
from forge_tools.storage.sqlite import Clock, SqliteHotPath, submit_one

Answer = Holder | ForgeError | None
"""Who had the key first, why the call cannot be stored, or None: it is stored."""

LinkedHotPath = Callable[[Sequence[LinkedExecution]], Awaitable[Sequence[Answer]]]

MOST_TRIES = 5
"""Of finding a key neither free nor held: others free it and take it at the same moments."""

kept = idempotency_keys.c


class IdempotencyKeys:
    """Who holds which key, and the one way in for executions that have one or repeat another."""

    def __init__(self, hot: PostgresHotPath | SqliteHotPath, database: Database, *, limits: Limits) -> None:
        submit = _on_sqlite(hot) if isinstance(hot, SqliteHotPath) else _on_postgres(hot)
        self._database = database
        self._submits: Batcher[LinkedExecution, Holder | None] = Batcher(
            submit,
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


_WIDTH = len(GIVEN_COLUMNS)
_LINK_TYPES = ("text", "text", "text", "float8", "uuid", "text", "text", "text")
_LINK_COLUMNS = ("scope", "key", "fingerprint", "ttl", "replay_of", "actor", "as_replay", "as_replayed")
_LINKS = ", ".join(f"${_WIDTH + 2 + n}::{type_}[]" for n, type_ in enumerate(_LINK_TYPES))

_IS_INSERTED = "(f.id IN (SELECT id FROM inserted)) IS TRUE"
"""In a form that the planner answers from a hash: a join of two parts of a statement has no index on these connections."""

# The key's own order keeps two batches from waiting for each other. Whoever finds a key taken waits until that transaction
# is over, and inserts nothing if it was committed: who holds it then, only the next statement can see.
_SUBMIT = f"""
WITH new AS (
    SELECT * FROM unnest({array_parameters(GIVEN_COLUMNS)}, ${_WIDTH + 1}::float8[], {_LINKS})
      WITH ORDINALITY AS n({", ".join(GIVEN_COLUMNS)}, issued_at, {", ".join(_LINK_COLUMNS)}, ord)),
  {CHECKED},
  claimed AS (
    INSERT INTO idempotency_keys (scope, key, execution_id, fingerprint, ttl, claimed_at, expires_at)
    SELECT f.scope, f.key, f.id, f.fingerprint::json, f.ttl, now(), now() + make_interval(secs => f.ttl) FROM fresh f
    WHERE f.key IS NOT NULL ORDER BY f.scope, f.key, f.id ON CONFLICT DO NOTHING RETURNING execution_id),
  inserted AS (
    INSERT INTO executions ({", ".join(EXECUTION_COLUMNS)}, idempotency_key, replay_of, queued_at)
    SELECT {cast_values(EXECUTION_COLUMNS, "f")}, f.key, f.replay_of, now() FROM fresh f
    WHERE f.key IS NULL OR f.id IN (SELECT execution_id FROM claimed)
    ON CONFLICT (id) DO NOTHING RETURNING *),
  {ENQUEUED.strip()},
  noted AS (
    INSERT INTO execution_events (execution_id, at, kind, actor, detail, token)
    SELECT n.execution_id, now(), n.kind, f.actor, n.detail::json, f.id FROM fresh f
    CROSS JOIN LATERAL (VALUES (f.id, 'replay', f.as_replay), (f.replay_of, 'replayed', f.as_replayed))
      AS n(execution_id, kind, detail)
    WHERE f.replay_of IS NOT NULL AND {_IS_INSERTED} ON CONFLICT DO NOTHING)
{REFUSED} UNION ALL SELECT f.ord, NULL, NULL, NULL, NULL, NULL, NULL FROM fresh f WHERE {_IS_INSERTED}
"""
_HOLDERS = """
SELECT a.ord, k.execution_id::text, k.fingerprint::text,
       k.expires_at <= now() OR NOT EXISTS (SELECT FROM executions e WHERE e.id = k.execution_id)
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a(scope, key, ord)
JOIN idempotency_keys k ON k.scope = a.scope AND k.key = a.key
"""
# In a statement of its own, which sees all of the transaction that made the key: it is there, or never was.
_FREE = """
DELETE FROM idempotency_keys k USING unnest($1::text[], $2::text[]) AS a(scope, key)
WHERE k.scope = a.scope AND k.key = a.key
  AND NOT EXISTS (SELECT FROM execution_queue q WHERE q.id = k.execution_id)
  AND (k.expires_at <= now() OR NOT EXISTS (SELECT FROM executions e WHERE e.id = k.execution_id))
  AND NOT EXISTS (SELECT FROM execution_attempts t WHERE t.execution_id = k.execution_id AND t.final
                  AND t.completed_at > now() - make_interval(secs => k.ttl))
"""


def _on_postgres(hot: PostgresHotPath) -> LinkedHotPath:
    """Two statements where a key is held, one where none is."""

    async def submit(rows: Sequence[LinkedExecution]) -> list[Answer]:
        answers: list[Answer] = [_TAKEN] * len(rows)
        left = list(range(len(rows)))
        for _ in range(MOST_TRIES):
            part = [rows[index] for index in left]
            for index, answer in zip(left, await _submit_part(hot, part), strict=True):
                answers[index] = answer
            left = [index for index in left if answers[index] is _TAKEN]
            if not left:
                break
        return answers

    return submit


_TAKEN = StorageError(
    "This idempotency key is neither free nor to be seen: others took and freed it at the same moments, or another user of "
    "the database has it. Try again, or use another scope."
)


async def _submit_part(hot: PostgresHotPath, rows: Sequence[LinkedExecution]) -> list[Answer]:
    """Store what can be stored; `_TAKEN` for a key that was freed meanwhile."""
    columns = transposed([execution_values(row.new) for row in rows])
    links = transposed([_link_values(row) for row in rows])
    settled = await hot.fetch(_SUBMIT, *columns, [row.new.issued_at for row in rows], *links)
    answers: list[Answer] = [None] * len(rows)
    for ord_, skew, *current in settled:
        answers[ord_ - 1] = None if skew is None else refusal(rows[ord_ - 1].new, skew, *current)
    known = {row[0] - 1 for row in settled}
    held = [index for index, row in enumerate(rows) if row.claim is not None and index not in known]
    if held:
        for index, answer in zip(held, await _holders(hot, [rows[index] for index in held]), strict=True):
            answers[index] = answer
    return answers


async def _holders(hot: PostgresHotPath, rows: Sequence[LinkedExecution]) -> list[Answer]:
    """Who holds the keys of `rows`; `_TAKEN` where nobody does, now that those which no longer hold are freed."""
    keys = transposed([(clean(row.claim.scope), clean(row.claim.key)) for row in rows if row.claim is not None])
    found = await hot.fetch(_HOLDERS, *keys)
    doubtful = [ord_ - 1 for ord_, *_, is_doubtful in found if is_doubtful]
    if doubtful:
        await hot.fetch(_FREE, *([column[index] for index in doubtful] for column in keys))
        found = await hot.fetch(_HOLDERS, *keys)
    holders = {ord_ - 1: Holder(execution_id, fingerprint) for ord_, execution_id, fingerprint, _ in found}
    return [_answer(row, holders.get(index)) for index, row in enumerate(rows)]


def _answer(row: LinkedExecution, holder: Holder | None) -> Answer:
    """None where the holder is the call itself: the reply to its commit was lost."""
    if holder is None:
        return _TAKEN
    return None if holder.execution_id == row.new.id else holder


def _link_values(row: LinkedExecution) -> tuple[object, ...]:
    """The values of `_LINK_COLUMNS`."""
    claim, replay = row.claim, row.replay
    key = (None,) * 4 if claim is None else (clean(claim.scope), clean(claim.key), claim.fingerprint, float(claim.ttl))
    return (*key, *((None,) * 4 if replay is None else (replay.of, clean(replay.actor), *_details(row.new.id, replay))))


def _details(new_id: str, replay: Replay) -> tuple[str, str]:
    """What the event of the replay says, and that of what it repeats."""
    said = {"dry_run": replay.dry_run, **({"reason": clean(replay.reason)} if replay.reason else {})}
    return json.dumps({"of": replay.of, **said}), json.dumps({"as": new_id, **said})


def _on_sqlite(hot: SqliteHotPath) -> LinkedHotPath:
    """All of a batch in one transaction; no other writer is in between."""

    async def submit(rows: Sequence[LinkedExecution]) -> list[Answer]:
        return await hot.write(partial(_submit, rows))

    return submit


def _submit(rows: Sequence[LinkedExecution], connection: sqlite3.Connection) -> list[Answer]:
    clock = cache(forge_now)
    return [_submit_linked(connection, row, clock) for row in rows]


_FREE_ONE = """
DELETE FROM idempotency_keys AS k WHERE k.scope = ? AND k.key = ?
  AND NOT EXISTS (SELECT 1 FROM execution_queue q WHERE q.id = k.execution_id)
  AND (k.expires_at <= ? OR NOT EXISTS (SELECT 1 FROM executions e WHERE e.id = k.execution_id))
  AND NOT EXISTS (SELECT 1 FROM execution_attempts t WHERE t.execution_id = k.execution_id AND t.final
                  AND (julianday(?) - julianday(t.completed_at)) * 86400.0 < k.ttl)
"""
_HOLDER = "SELECT execution_id, fingerprint FROM idempotency_keys WHERE scope = ? AND key = ?"
_CLAIM = """
INSERT INTO idempotency_keys (scope, key, execution_id, fingerprint, ttl, claimed_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_LINK = "UPDATE executions SET idempotency_key = ?, replay_of = ? WHERE id = ?"
_NOTE = """
INSERT INTO execution_events (execution_id, at, kind, actor, detail, token) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""


def _submit_linked(connection: sqlite3.Connection, row: LinkedExecution, clock: Clock) -> Answer:
    claim, replay, new = row.claim, row.replay, row.new
    if claim is not None and (holder := _holder(connection, claim, clock)) is not None:
        return None if holder.execution_id == new.id else holder
    if (refusal := submit_one(connection, new, clock)) is not None:
        return refusal
    connection.execute(_LINK, (clean(claim.key) if claim else None, replay.of if replay else None, new.id))
    if claim is not None:
        key = (clean(claim.scope), clean(claim.key), new.id, claim.fingerprint, claim.ttl)
        connection.execute(_CLAIM, (*key, clock(0.0), clock(claim.ttl)))
    if replay is not None:
        mine, its = _details(new.id, replay)
        for id_, kind, detail in ((new.id, "replay", mine), (replay.of, "replayed", its)):
            connection.execute(_NOTE, (id_, clock(0.0), kind, clean(replay.actor), detail, new.id))
    return None


def _holder(connection: sqlite3.Connection, claim: KeyClaim, clock: Clock) -> Holder | None:
    now, key = clock(0.0), (clean(claim.scope), clean(claim.key))
    row = connection.execute(_HOLDER, key).fetchone()
    if row is None or connection.execute(_FREE_ONE, (*key, now, now)).rowcount:
        return None
    return Holder(*row)
