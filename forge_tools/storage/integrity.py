"""Finds rows that break the schema: a restore, or somebody who disabled its checks, may have introduced them."""

import sqlite3
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from forge_tools.errors import StorageError
from forge_tools.storage.connection.database import Database
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import check_name, metadata, rules

LIMIT_SECONDS = 10.0
"""How long it may take: an SQLite file is read whole, PostgreSQL is asked which checks are missing, and for their rows."""

_STEPS = 100_000
"""How many steps SQLite's virtual machine runs between two checks of the clock."""

_TOGETHER = {
    "executions that ended twice": "SELECT count(*) FROM (SELECT 1 FROM execution_attempts WHERE final GROUP BY execution_id HAVING count(*) > 1) AS e",
    "executions that neither ended nor are queued": "SELECT count(*) FROM executions e WHERE NOT EXISTS (SELECT 1 FROM execution_queue q WHERE q.id = e.id) "
    "AND NOT EXISTS (SELECT 1 FROM execution_attempts a WHERE a.execution_id = e.id AND a.final)",
}
"""What no CHECK can express, since it concerns several rows."""

_ENFORCED = (
    "SELECT conname FROM pg_constraint WHERE contype = 'c' AND convalidated "
    "AND (contypid = 0 OR contypid IN (SELECT atttypid FROM pg_attribute))"
)
"""The checks that every row has passed, of tables and of the domains that columns have. SQLite cannot tell: any writer may disable them."""


async def violations(database: Database) -> list[str]:
    """List which columns break their rules, in how many rows; which checks are missing; which rows contradict others."""
    found: list[str] = []
    async with database.reading(is_long=True) as connection, _limited(connection):
        is_file = database.dialect == "sqlite"
        enforced = set() if is_file else set(await connection.scalars(text(_ENFORCED)))
        for table in metadata.sorted_tables:
            checks = {
                column: rule
                for column, rule in rules(table, database.dialect)
                if check_name(table.name, column) not in enforced
            }
            if is_file:
                checks["text"] = _is_text(table)
            else:
                found += [f"a missing check of {table.name}.{column}" for column in checks]
            found += [
                f"{table.name}.{column} ({count:,})"
                for column, count in await _broken(connection, table, checks)
                if count
            ]
        for said, query in _TOGETHER.items():
            if count := await connection.scalar(text(query)):
                found.append(f"{said} ({count:,})")
    return found


async def _broken(connection: AsyncConnection, table: Table, checks: dict[str, str]) -> Iterable[tuple[str, int]]:
    if not checks:
        return []
    counts = (f"sum(CASE WHEN {rule} THEN 0 ELSE 1 END)" for rule in checks.values())
    row = (await connection.exec_driver_sql(f"SELECT {', '.join(counts)} FROM {table.name}")).one()
    return zip(checks, row, strict=True)


def _is_text(table: Table) -> str:
    """Return the condition, on SQLite, that all texts of a row are UTF-8."""
    texts = (column.name for column in table.c if column.type.compile(sqlite.dialect()) == "TEXT")
    joined = " || ' ' || ".join(["''", *(f"coalesce({name}, '')" for name in texts)])
    return f"forge_is_text(CAST({joined} AS BLOB))"


@asynccontextmanager
async def _limited(connection: AsyncConnection) -> AsyncIterator[None]:
    end = time.monotonic() + LIMIT_SECONDS
    driver: Any = (await connection.get_raw_connection()).driver_connection
    is_file = connection.dialect.name == "sqlite"
    if is_file:
        await driver.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    else:
        await connection.execute(text(f"SET LOCAL statement_timeout = {LIMIT_SECONDS * 1000:.0f}"))
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:  # BEGIN speaks with the driver itself
        if time.monotonic() < end:
            raise
        raise StorageError(f"reading them takes longer than {LIMIT_SECONDS:g} s") from error
    finally:
        if is_file:
            await driver.set_progress_handler(None, 0)
