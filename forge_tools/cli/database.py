"""Commands meet the database here: opened for one piece of work, closed after it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from forge_tools.config import Settings
from forge_tools.storage import Store, open_store

T = TypeVar("T")


def with_store(work: Callable[[Store], Awaitable[T]], settings: Settings | None = None) -> T:
    """Open the database that the settings name, do `work`, and close it.

    Raises:
        StorageError: the database cannot be reached or used, or is not there yet.
    """
    settings = settings or Settings.load()

    async def run() -> T:
        async with await open_store(
            settings.database, connect_timeout=settings.connect_timeout, artifact_dir=settings.artifact_dir
        ) as store:
            return await work(store)

    return asyncio.run(run())
