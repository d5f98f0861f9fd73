"""What a worker asks and is told once a heartbeat, and which due rows it may claim: one statement each, on both databases."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from forge_tools.errors import StorageError
from forge_tools.records import Ring, Scope

OVERLAP = timedelta(seconds=30)
"""By how much an end may come to light after a later one: the longest that a transaction of ours takes to commit."""

EVER = datetime.min.replace(tzinfo=UTC) + OVERLAP
"""The end behind which everything is looked at; no end is taken for an earlier one, whoever wrote that."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Up to where all of the history is sealed: an end, and an event. What others sealed since only takes it further."""

    end: datetime
    event: int


@dataclass(frozen=True, slots=True)
class Question:
    """Who looks, whether it could take due rows now, and which tool keys have left its lane for good.

    With `sealed` it asks too whether anything behind that waits for its seal. `dropped` and `answering`, how many bodies its
    lane could run at once, are for others to read in its row.
    """

    scope: Scope
    _: KW_ONLY
    asks_due: bool = True
    banned: tuple[str, ...] = ()
    sealed: Reach | None = None
    dropped: int = 0
    answering: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What the database showed at one moment, to the boot whose beat it took with it."""

    now: float
    """The database's clock, in Unix seconds."""
    cancels: tuple[Ring, ...]
    """The boot's own running executions whose cancel was asked."""
    beats: Mapping[str, int]
    """The beat of every boot that has not stopped."""
    is_due: bool
    """Whether there is a row that the scope could claim; False if that was not asked."""
    is_over: bool
    """Whether an execution waits for what will not come: it expired, its cancel was asked, or it has no attempt."""
    demoted: frozenset[tuple[str, str]]
    """(name, digest) of every demoted definition of a tool."""
    disabled: frozenset[str]
    """The names of the tools that are switched off."""
    is_misplaced: bool
    """Whether a call of a banned tool waits in the async lane."""
    pinned: frozenset[tuple[str, str]] = frozenset()
    """(name, digest) of the definition that a tool is pinned to."""
    has_overdue_keys: bool = False
    """Whether an idempotency key may no longer hold."""
    is_unsealed: bool = False
    """Whether anything waits for its seal; False if that was not asked."""


# Everything is found through indexes that no claim has to change. On these connections plans are pinned: an empty table
# that filled up since it was analysed is not scanned.
POSTGRES_LOOK = """
WITH beaten AS (
    UPDATE workers w SET beat = w.beat + 1, last_seen_at = now(), stopped_at = NULL, dropped_messages = $11, answering = $12
    WHERE w.id = $1 RETURNING w.id)
SELECT extract(epoch FROM now())::float8,
  ARRAY(SELECT q.id::text || ' ' || q.attempt FROM execution_queue q
        WHERE q.cancel_requested_at IS NOT NULL AND q.owner = $1 AND q.status = 'running' ORDER BY q.id),
  ARRAY(SELECT w.id || ' ' || w.beat FROM workers w WHERE w.stopped_at IS NULL),
  $5 AND EXISTS (
    SELECT FROM execution_queue q
    WHERE q.lane = $2 AND q.tool_key = ANY($4::text[]) AND q.queue = ANY($3::text[]) AND q.not_before <= now()
      AND q.status = 'queued' AND q.expires_at > now() AND q.cancel_requested_at IS NULL AND q.attempt < q.max_attempts),
  EXISTS (SELECT FROM execution_queue q WHERE q.expires_at <= now() AND q.status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT FROM execution_queue q
               WHERE q.cancel_requested_at IS NOT NULL AND q.status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT FROM execution_queue q WHERE q.max_attempts < 1 AND q.status = 'queued'),
  ARRAY(SELECT t.name || ' ' || t.digest FROM tools t WHERE t.demoted_at IS NOT NULL),
  ARRAY(SELECT t.name FROM tools t WHERE t.enabled = false),
  EXISTS (SELECT FROM execution_queue q WHERE q.lane = 'async' AND q.tool_key = ANY($6::text[]) AND q.status = 'queued'),
  ARRAY(SELECT t.name || ' ' || t.digest FROM tools t WHERE t.pinned_at IS NOT NULL),
  EXISTS (SELECT FROM idempotency_keys k WHERE k.expires_at <= now()),
  $7 AND (
    EXISTS (SELECT FROM execution_attempts a
            WHERE a.final AND a.completed_at >= LEAST($8, now()) - $9::interval
              AND NOT EXISTS (SELECT FROM audit_executions s WHERE s.execution_id = a.execution_id))
    OR EXISTS (SELECT FROM execution_events e
               WHERE e.id > $10 AND NOT EXISTS (SELECT FROM audit_events s WHERE s.event_id = e.id)))
FROM beaten
"""
POSTGRES_DUE = """
SELECT d.id::text, d.attempt FROM (
    SELECT q.id, q.attempt FROM unnest($2::text[]) AS s(queue) CROSS JOIN unnest($3::text[]) AS k(tool_key)
    CROSS JOIN LATERAL (
        SELECT q.id, q.attempt, q.not_before FROM execution_queue q
        WHERE q.lane = $1 AND q.tool_key = k.tool_key AND q.queue = s.queue AND q.not_before <= now()
          AND q.status = 'queued' AND q.expires_at > now() AND q.cancel_requested_at IS NULL AND q.attempt < q.max_attempts
        ORDER BY q.not_before LIMIT $4) q
    ORDER BY q.not_before, q.id LIMIT $4) d
ORDER BY d.id
"""

_CLAIMABLE = """
  lane = :lane AND tool_key = k.value AND queue = s.value AND not_before <= :now
  AND status = 'queued' AND expires_at > :now AND cancel_requested_at IS NULL AND attempt < max_attempts
"""
# One statement is its own transaction. What it says of the very row that it writes is not defined, and not read.
SQLITE_LOOK = f"""
UPDATE workers SET beat = beat + 1, last_seen_at = :now, stopped_at = NULL, dropped_messages = :dropped, answering = :answering
WHERE id = :boot RETURNING
  (SELECT json_group_array(json_array(id, attempt)) FROM execution_queue INDEXED BY execution_queue_cancels
   WHERE cancel_requested_at IS NOT NULL AND owner = :boot AND status = 'running'),
  (SELECT json_group_object(id, beat) FROM workers WHERE stopped_at IS NULL),
  :asks_due AND EXISTS (
    SELECT 1 FROM json_each(:queues) AS s CROSS JOIN json_each(:keys) AS k
    CROSS JOIN execution_queue INDEXED BY execution_queue_due WHERE {_CLAIMABLE}),
  EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_expiry
          WHERE expires_at <= :now AND status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_cancels
               WHERE cancel_requested_at IS NOT NULL AND status IN ('queued', 'awaiting_approval'))
    OR EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_hopeless
               WHERE max_attempts < 1 AND status = 'queued'),
  (SELECT json_group_array(json_array(name, digest)) FROM tools WHERE demoted_at IS NOT NULL),
  (SELECT json_group_array(name) FROM tools WHERE enabled = false),
  EXISTS (SELECT 1 FROM execution_queue INDEXED BY execution_queue_due
          WHERE lane = 'async' AND tool_key IN (SELECT value FROM json_each(:banned)) AND status = 'queued'),
  (SELECT json_group_array(json_array(name, digest)) FROM tools WHERE pinned_at IS NOT NULL),
  EXISTS (SELECT 1 FROM idempotency_keys INDEXED BY idempotency_keys_expiry WHERE expires_at <= :now),
  :asks_unsealed AND (
    EXISTS (SELECT 1 FROM execution_attempts AS a INDEXED BY execution_attempts_completed
            WHERE a.final AND a.completed_at >= :sealed_end
              AND NOT EXISTS (SELECT 1 FROM audit_executions AS s WHERE s.execution_id = a.execution_id))
    OR EXISTS (SELECT 1 FROM execution_events AS e
               WHERE e.id > :sealed_event AND NOT EXISTS (SELECT 1 FROM audit_events AS s WHERE s.event_id = e.id)))
"""
SQLITE_DUE = f"""
SELECT id, attempt FROM (
    SELECT q.id, q.attempt FROM json_each(:queues) AS s CROSS JOIN json_each(:keys) AS k CROSS JOIN execution_queue AS q
    WHERE q.id IN (SELECT id FROM execution_queue INDEXED BY execution_queue_due WHERE {_CLAIMABLE}
                   ORDER BY not_before LIMIT :limit)
    ORDER BY q.not_before, q.id LIMIT :limit)
ORDER BY id
"""


_NOTHING = Reach(EVER, 0)


def postgres_arguments(question: Question) -> tuple[object, ...]:
    """The arguments of `POSTGRES_LOOK`."""
    scope = question.scope
    banned = list(question.banned)
    asked = scope.boot, scope.lane, list(scope.queues), list(scope.tool_keys), question.asks_due, banned
    sealed = question.sealed or _NOTHING
    return *asked, question.sealed is not None, sealed.end, OVERLAP, sealed.event, question.dropped, question.answering


def postgres_look(question: Question, rows: Sequence[Sequence[Any]]) -> Look | StorageError:
    """Read what `POSTGRES_LOOK` returned."""
    if not rows:
        return _unknown(question)
    now, cancels, beats, is_due, is_over, demoted, disabled, is_misplaced, pinned, *chores = rows[0]
    return Look(
        now,
        tuple(Ring(id_, int(attempt)) for id_, _, attempt in (text.rpartition(" ") for text in cancels)),
        {boot: int(beat) for boot, _, beat in (text.rpartition(" ") for text in beats)},
        is_due,
        is_over,
        _definitions(demoted),
        frozenset(disabled),
        is_misplaced,
        _definitions(pinned),
        *chores,
    )


def _definitions(texts: Sequence[str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, digest) for name, _, digest in (text.rpartition(" ") for text in texts))


def sqlite_look(question: Question, now: str, connection: sqlite3.Connection) -> Look | StorageError:
    """Beat and look in a transaction of its own."""
    asked = _named(question.scope, now) | {
        "boot": question.scope.boot,
        "asks_due": question.asks_due,
        "banned": json.dumps(question.banned),
        "dropped": question.dropped,
        "answering": question.answering,
        **_sealed(question.sealed, now),
    }
    rows = connection.execute(SQLITE_LOOK, asked).fetchall()  # the commit comes with the end of the rows
    if not rows:
        return _unknown(question)
    cancels, beats, is_due, is_over, demoted, disabled, is_misplaced, pinned, *chores = rows[0]
    return Look(
        datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp(),
        tuple(Ring(id_, attempt) for id_, attempt in sorted(json.loads(cancels))),
        json.loads(beats),
        bool(is_due),
        bool(is_over),
        frozenset((name, digest) for name, digest in json.loads(demoted)),
        frozenset(json.loads(disabled)),
        bool(is_misplaced),
        frozenset((name, digest) for name, digest in json.loads(pinned)),
        *map(bool, chores),
    )


def _sealed(sealed: Reach | None, now: str) -> dict[str, object]:
    known, moment = sealed or _NOTHING, datetime.fromisoformat(now).replace(tzinfo=UTC)
    since = (max(EVER, min(known.end, moment)) - OVERLAP).replace(tzinfo=None)
    return {
        "asks_unsealed": sealed is not None,
        "sealed_end": since.isoformat(" ", "microseconds"),
        "sealed_event": known.event,
    }


def sqlite_due(scope: Scope, limit: int, now: str, connection: sqlite3.Connection) -> list[Ring]:
    """Up to `limit` rows that `scope` could claim now."""
    return [Ring(*row) for row in connection.execute(SQLITE_DUE, _named(scope, now) | {"limit": limit})]


def _unknown(question: Question) -> StorageError:
    """No beat was taken, so the boot must not count as acknowledged: whatever it runs is taken for ownerless."""
    return StorageError(
        f"Worker {question.scope.boot} has no row in the table `workers` any more, so it starts no call. Restart it."
    )


def _named(scope: Scope, now: str) -> dict[str, object]:
    keys, queues = json.dumps(scope.tool_keys), json.dumps(scope.queues)
    return {"lane": scope.lane, "keys": keys, "queues": queues, "now": now}
