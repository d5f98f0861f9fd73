"""What PostgreSQL and Valkey count by themselves: statements, commits and commands."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from tests import services

if TYPE_CHECKING:
    from benchmarks.scene import Scene

T = TypeVar("T")

STATEMENTS = """
SELECT COALESCE(sum(s.calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = $1
"""
# Every transaction that writes takes a number, and each of those is one commit that the disk must confirm.
# The server's own counter of commits lags by up to ten seconds.
WRITES = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
UNCOUNTED = {"cmdstat_info", "cmdstat_client|setinfo", "cmdstat_hello"}


def count_statements(administration: str) -> None:
    """Let the server of this database count statements, once it has loaded the extension."""
    services.admin(administration, "CREATE EXTENSION pg_stat_statements")


def database_counts(scene: "Scene", url: str) -> dict[str, float]:
    """Return the statements sent to the database of `url`, and the writing transactions of the whole server."""
    name = urlsplit(url).path[1:]

    async def read(connection: Any) -> dict[str, float]:
        return {
            "statements": float(await connection.fetchval(STATEMENTS, name)),
            "commits": float(await connection.fetchval(WRITES)),
        }

    return in_database(scene.administration, read)


def broker_commands(url: str) -> float:
    """Return the commands that the broker has run, from any client."""
    with services.client(url) as broker:
        counted: dict[str, Any] = broker.info("commandstats")
    return float(sum(one["calls"] for name, one in counted.items() if name not in UNCOUNTED))


def in_database(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run `work` with a connection, on a thread of its own: the caller may be inside an event loop."""

    async def run() -> T:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            return await work(connection)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(run())).result()
