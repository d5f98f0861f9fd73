"""A queue that records nothing: id and payload, claimed with SKIP LOCKED, instead of the real tables."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from benchmarks.counters import in_database
from forge_tools.errors import ForgeError
from forge_tools.model import ToolResult
from forge_tools.model.execution import Claim, NewExecution, Outcome, Scope
from forge_tools.storage import store
from forge_tools.storage.queue.postgres import PostgresHotPath, transposed
from forge_tools.storage.rows import Ask, outcome_values, stored_result

TABLES = """
CREATE TABLE bare_calls (id uuid PRIMARY KEY, queue text NOT NULL, status text NOT NULL, token uuid, payload text NOT NULL)
  WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE bare_results (id uuid PRIMARY KEY, result text NOT NULL)
"""
SUBMIT = """
INSERT INTO bare_calls (id, queue, status, payload)
SELECT id, queue, 'queued', payload FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(id, queue, payload)
ON CONFLICT DO NOTHING
"""
CLAIM = """
WITH asked AS (SELECT * FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS a(id, token, ord)),
  locked AS MATERIALIZED (
    SELECT c.id, a.token, a.ord FROM asked a JOIN bare_calls c ON c.id = ANY (ARRAY[a.id])
    WHERE c.status = 'queued' AND c.queue = ANY($3::text[]) ORDER BY a.id FOR UPDATE OF c SKIP LOCKED)
UPDATE bare_calls c SET status = 'running', token = l.token FROM locked l WHERE c.id = ANY (ARRAY[l.id])
RETURNING l.ord, c.payload, extract(epoch FROM now())::float8
"""
FINISH = """
WITH ended AS (
    DELETE FROM bare_calls c USING unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY AS o(id, token, result, ord)
    WHERE c.id = ANY (ARRAY[o.id]) AND c.token = o.token RETURNING c.id, o.result, o.ord),
  kept AS (INSERT INTO bare_results (id, result) SELECT id, result FROM ended)
SELECT ord FROM ended
"""
RESULTS = """
SELECT a.ord, r.result FROM unnest($1::uuid[]) WITH ORDINALITY AS a(id, ord)
JOIN bare_results r ON r.id = ANY (ARRAY[a.id])
"""
CARRIED = (
    "tool",
    "tool_version",
    "parameters",
    "context",
    "timeout",
    "max_attempts",
    "idempotent",
    "reply_to",
    "options",
    "encrypted",
)
"""What a worker needs to run a call: the payload."""


class BareHotPath(PostgresHotPath):
    """It makes as many statements and commits as the real one, in the same batches, but keeps only the result."""

    async def submit(self, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        values = [(new.id, new.queue, json.dumps([getattr(new, name) for name in CARRIED])) for new in rows]
        await self.fetch(SUBMIT, *transposed(values))
        return [None] * len(rows)

    async def claim(self, rows: Sequence[Ask], scope: Scope) -> list[Claim | None]:
        claims: list[Claim | None] = [None] * len(rows)
        asked = [(row.id, row.token) for row in rows]
        for ord_, payload, started_at in await self.fetch(CLAIM, *transposed(asked), list(scope.queues)):
            ask, carried = rows[ord_ - 1], dict(zip(CARRIED, json.loads(payload), strict=True))
            claims[ord_ - 1] = Claim(
                id=ask.id, attempt=ask.attempt + 1, token=ask.token, started_at=started_at, **carried
            )
        return claims

    async def finish(self, rows: Sequence[Outcome]) -> list[bool]:
        values = [(o.id, o.token, json.dumps([o.attempt, *outcome_values(o)])) for o in rows]
        ended = [False] * len(rows)
        for (ord_,) in await self.fetch(FINISH, *transposed(values)):
            ended[ord_ - 1] = True
        return ended

    async def results(self, ids: Sequence[str]) -> list[ToolResult | None]:
        found: list[ToolResult | None] = [None] * len(ids)
        for ord_, result in await self.fetch(RESULTS, ids):
            found[ord_ - 1] = stored_result(ids[ord_ - 1], json.loads(result))
        return found


def make_tables(url: str) -> None:
    """Add its tables to a migrated database."""

    async def work(connection: Any) -> None:
        await connection.execute(TABLES)

    in_database(url, work)


def swapped() -> AbstractContextManager[object]:
    """While entered, stores that are opened in this process use the bare queue."""
    return patch.object(store, "PostgresHotPath", BareHotPath)
