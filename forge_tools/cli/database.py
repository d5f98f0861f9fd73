"""The database as commands use it: opened for one piece of work, and closed afterwards."""

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from forge_tools import storage
from forge_tools.config import Settings
from forge_tools.urls import without_passwords

if TYPE_CHECKING:
    from forge_tools.storage import Store
    from forge_tools.storage.history.history import History

T = TypeVar("T")


def with_store(work: Callable[["Store"], Awaitable[T]], settings: Settings | None = None) -> T:
    """Open the configured database, do `work`, and close it.

    Raises:
        StorageError: the database cannot be reached or used, or does not exist yet.
    """
    settings = settings or Settings.load()

    async def run() -> T:
        async with await storage.open_store(
            settings.database, connect_timeout=settings.connect_timeout, artifact_dir=settings.artifact_dir
        ) as store:
            return await work(store)

    return asyncio.run(run())


def with_history(work: Callable[["History"], Awaitable[T]], settings: Settings | None = None) -> T:
    """Do `work` with only the history of that database; raises what `with_store` does."""
    settings = settings or Settings.load()

    async def run() -> T:
        async with storage.open_history(settings.database, connect_timeout=settings.connect_timeout) as history:
            return await work(history)

    return asyncio.run(run())


def asked() -> str:
    """Name the database, for messages about something not found in it."""
    return f"The database is {without_passwords(Settings.load().database)}"


def whoami() -> str:
    """Name the person at the command line, for the record: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
