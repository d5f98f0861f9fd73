"""What anybody would write to hand bytes to another process through SQL: one row, one commit, one SELECT."""

import asyncio
import sqlite3
from functools import cache
from typing import Any

import asyncpg

from benchmarks.tools import picture
from forge_tools.storage.connection.drivers import SQLITE_SETUP

TABLE = "CREATE TABLE IF NOT EXISTS by_hand (number BIGINT PRIMARY KEY, data {})"


def insert(place: str, size: int, number: int) -> None:
    """Store a picture and commit; `place` is a URL of PostgreSQL or the path of an SQLite file."""
    data = picture(size, number)
    if _is_url(place):
        runner, connection = _postgres(place)
        runner.run(connection.execute("INSERT INTO by_hand VALUES ($1, $2)", number, data))
    else:
        _sqlite(place).execute("INSERT INTO by_hand VALUES (?, ?)", (number, data))


def select(place: str, number: int) -> bytes:
    """Read what `insert` stored in another process."""
    if _is_url(place):
        runner, connection = _postgres(place)
        data: bytes = runner.run(connection.fetchval("SELECT data FROM by_hand WHERE number = $1", number))
    else:
        [data] = _sqlite(place).execute("SELECT data FROM by_hand WHERE number = ?", (number,)).fetchone()
    return data


@cache
def _sqlite(path: str) -> sqlite3.Connection:
    """As durable as our own."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    for statement in (*SQLITE_SETUP, TABLE.format("BLOB")):
        connection.execute(statement)
    return connection


@cache
def _postgres(url: str) -> tuple[asyncio.Runner, Any]:
    runner = asyncio.Runner()
    connection = runner.run(asyncpg.connect(url))
    runner.run(connection.execute(TABLE.format("BYTEA")))
    return runner, connection


def _is_url(place: str) -> bool:
    return "://" in place
