"""New databases with this version's tables: each is a copy of one that was migrated once in this process."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forge_tools.storage.connection.database import Database, create_engine
from forge_tools.storage.connection.drivers import Address
from forge_tools.storage.migrate import upgrade
from tests.services import Databases, empty

SQLITE = "sqlite:///"


def migrated(url: str) -> str:
    """Bring the database at `url`, which is new, to this version's tables; return the URL."""
    file = Path(url.removeprefix(SQLITE))
    if url.startswith(SQLITE) and not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(sqlite_template())
    elif server := empty.get(url):
        server.drop_database(url)
        server.fill(url, postgres_template(server))
    else:
        upgrade(url)
    return url


@cache
def sqlite_template() -> bytes:
    """The file to be copied."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "forge.db"
        upgrade(f"{SQLITE}{file}")
        return file.read_bytes()


@cache
def postgres_template(server: Databases) -> str:
    """The name of a database of that server to be copied."""
    url = server.create_database()
    upgrade(url)
    return urlsplit(url).path[1:]


@asynccontextmanager
async def database(url: str) -> AsyncIterator[Database]:
    """Statements of a test's own, beside the store and on connections of their own: rows to plant, and to look at."""
    opened = Database(Address.parse(url), connect_timeout=10.0)
    try:
        yield opened
    finally:
        await opened.close()


def look(url: str, question: Any) -> Any:
    """Ask a migrated database something, in a transaction that is then rolled back."""

    async def ask() -> Any:
        engine = create_engine(Address.parse(url), connect_timeout=5)
        async with engine.connect() as connection:
            answer = await connection.run_sync(question)
        await engine.dispose()
        return answer

    return asyncio.run(ask())
