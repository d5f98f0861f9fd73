"""The statements that a store sends, and how the database goes about them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.storage import Store
from tests.waiting import reached

Sent = tuple[str, Any]
"""A statement and its arguments."""


@asynccontextmanager
async def noted(store: Store) -> AsyncIterator[list[Sent]]:
    """What is sent meanwhile."""
    statements: list[Sent] = []

    def note(_connection: Connection, _cursor: Any, statement: str, arguments: Any, *_: Any) -> None:
        statements.append((statement, arguments))

    engines = set()
    for is_long in (False, True):
        async with store.database.reading(is_long=is_long) as connection:
            engines.add(connection.engine.sync_engine)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)


async def plan(connection: AsyncConnection, statement: str, arguments: Any) -> tuple[str, int]:
    """The plan as text, and how many pages one run reads, where that is told."""
    if connection.dialect.name == "sqlite":
        rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", arguments)
        return "\n".join(row[-1] for row in rows), 0
    row = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", arguments)
    found = row.scalar_one()
    root = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return json.dumps(root), root["Shared Hit Blocks"] + root["Shared Read Blocks"]


async def blocked_statements(connection: asyncpg.Connection, count: int) -> None:
    """Wait until that many other statements wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    await reached(lambda: connection.fetchval(query), when=lambda waiting: waiting >= count)
