"""What commands need around them: the database, open for one piece of work, and the stack of this folder, once it serves."""

import asyncio
import getpass
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from forge_tools import storage
from forge_tools.artifacts.parts import folder_of
from forge_tools.cli.face import Face
from forge_tools.config import Settings
from forge_tools.embedded.home import stack_holder
from forge_tools.errors import StackError
from forge_tools.storage.connection.drivers import Address
from forge_tools.urls import without_passwords

if TYPE_CHECKING:
    from forge_tools.storage import Store
    from forge_tools.storage.history.history import History

T = TypeVar("T")

STARTING_SECONDS = 60.0
"""How long commands wait for a stack to be ready, from its start; later they go on, and use what it serves."""

COMING_SECONDS = 3.0
"""How long to look for a stack that a script has just started: it loads its code before it holds the folder."""

POLL_SECONDS = 0.1


def with_store(work: Callable[["Store"], Awaitable[T]], settings: Settings | None = None) -> T:
    """Open the configured database, do `work`, and close it."""
    settings = settings or Settings.load()

    async def run() -> T:
        async with await storage.open_store(
            settings.database, connect_timeout=settings.connect_timeout, artifact_dir=folder_of(settings)
        ) as store:
            return await work(store)

    return asyncio.run(run())


def with_history(work: Callable[["History"], Awaitable[T]], settings: Settings | None = None) -> T:
    """Do `work` with only the history of that database: a store has more parts to load."""
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


def await_stack(face: Face, settings: Settings, *, patience: float = 0.0) -> bool:
    """Wait while the stack of this folder starts; return whether one runs, always true with servers of one's own.

    `patience` is how many seconds to look for one that does not hold the folder yet.
    """
    if not settings.is_embedded:
        return True
    home = settings.home.absolute()
    deadline = time.monotonic() + patience
    while (holder := stack_holder(home)) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if holder is None:
        return False
    age = (datetime.now(UTC) - datetime.fromisoformat(holder.since)).total_seconds()
    # abs: if the clock was set back, the age is negative, and the wait must end all the same.
    deadline = time.monotonic() + (0.0 if holder.is_ready else STARTING_SECONDS - abs(age))
    if time.monotonic() < deadline and face.err.is_terminal:
        face.note("The stack of this folder is starting ...")
    while holder is not None and not holder.is_ready and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        holder = stack_holder(home)
    return holder is not None


def require_stack(face: Face, settings: Settings, *, is_left: bool) -> None:
    """Wait until the stack of this folder serves calls. If none runs, refuse a call, unless it `is_left` to a later stack."""
    if await_stack(face, settings, patience=0.0 if is_left else COMING_SECONDS):
        return
    if not is_left:
        raise StackError(
            "No stack runs in this folder, so the call was not sent. Start one: forge-tools up. "
            "With --background, calls wait for it."
        )
    Address.parse(settings.database).require_file()  # if none ever ran, nothing can keep the call
    face.note("No stack runs in this folder: the call waits for the next one, forge-tools up, or expires.", "yellow")
