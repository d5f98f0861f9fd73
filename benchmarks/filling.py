"""Fills a database with executions like those of agents: ended, or waiting in a queue."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.counters import in_database
from benchmarks.scene import CONTEXT, succeeded
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings

UNSERVED = "background"
"""A queue that the workers of these measures do not serve, so that what waits there stays."""

COLUMNS = """
SELECT column_name FROM information_schema.columns WHERE table_name = $1 AND table_schema = 'public'
ORDER BY ordinal_position
"""
# A time-ordered id a millisecond, as clients make them: those of the past, oldest first.
ID = """
(lpad(to_hex($2::bigint + n), 12, '0') || '7' || substr(md5($2::text || n), 1, 3) || '8'
  || substr(md5($2::text || n), 4, 15))::uuid
"""


def fill(settings: Settings, rows: int) -> None:
    """Add that many ended and waiting executions; needs a worker on queue `default` for one call of each kind.

    Every row is a copy of the rows of that call, so it is as wide and as valid as the tables require.
    """
    over, waiting = asyncio.run(_examples(settings))
    now = int(time.time() * 1000)
    _copy(settings, ("executions", "execution_attempts"), over, rows, now - 3 * rows)
    _copy(settings, ("executions", "execution_queue"), waiting, rows, now - 2 * rows)
    in_database(settings.database_url, _settle)


async def _examples(settings: Settings) -> tuple[str, str]:
    async with ExecutorClient(settings) as client:
        over = await client.submit("NoOp", context=CONTEXT)
        succeeded(await over.result(timeout=60))
        waiting = await client.submit("NoOp", context=CONTEXT, queue=UNSERVED)
        return over.id, waiting.id


def _copy(settings: Settings, tables: Sequence[str], example: str, rows: int, first_millisecond: int) -> None:
    async def work(connection: Any) -> None:
        for table in tables:
            columns = [one["column_name"] for one in await connection.fetch(COLUMNS, table)]
            key = "execution_id" if "execution_id" in columns else "id"
            values = ", ".join(_value(column, key) for column in columns)
            await connection.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, generate_series(1, $3::int) n "
                f"WHERE {key} = $1::uuid AND $2::bigint > 0",
                example,
                first_millisecond,
                rows,
                timeout=600,
            )

    in_database(settings.database_url, work)


def _value(column: str, key: str) -> str:
    if column == key:
        return ID
    return "to_timestamp(($2::bigint + n) / 1000.0)" if column == "queued_at" else column


async def _settle(connection: Any) -> None:
    """Do what the server would do by itself within minutes, so that it does not do it during a measurement."""
    await connection.execute("VACUUM (ANALYZE)", timeout=600)
    await connection.execute("CHECKPOINT", timeout=600)
