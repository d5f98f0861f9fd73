"""What the parts of a client share: its store, its process and event loop, and steps nobody awaits."""

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any

from forge_tools.artifacts.parts import folder_of
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.model.execution import new_id
from forge_tools.secrets.encryption import new_reply_key
from forge_tools.storage import Store, open_store

NOT_CONNECTED = "The client is not connected, or was closed; enter it with `async with ExecutorClient.connect()`"

logger = logging.getLogger(__name__)


class Connection:
    """An open store for one event loop and process: connections and futures survive neither a fork nor another loop."""

    def __init__(self, settings: Settings) -> None:
        self.submitter = new_id()
        """The id by which workers notify this client."""
        self.reply_key = new_reply_key() if settings.result_notifications else None
        """The key with which they encrypt small results in notifications."""
        self._settings = settings
        self._store: Store | None = None
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: set[asyncio.Future[Any]] = set()

    async def open(self) -> None:
        """Connect to the database; from now on only this process and this loop may use it.

        Raises:
            ConfigurationError: it was connected before; other parts of a client end with its close.
        """
        if self._loop is not None:
            raise ConfigurationError(
                "A client connects once, and this one has; make another, with ExecutorClient.connect()"
            )
        settings = self._settings
        wait, limit, folder = settings.connect_timeout, settings.database_timeout, folder_of(settings)
        self._store = await open_store(settings.database, connect_timeout=wait, deadline=limit, artifact_dir=folder)
        self._pid, self._loop = os.getpid(), asyncio.get_running_loop()

    @property
    def is_open(self) -> bool:
        return self._store is not None

    @property
    def store(self) -> Store:
        """The open store.

        Raises:
            ConfigurationError: it is not open, or not for this process or loop.
        """
        if self._store is None or self._pid != os.getpid() or self._loop is not asyncio.get_running_loop():
            self.require_owner()
            raise ConfigurationError(NOT_CONNECTED)
        return self._store

    def require_owner(self) -> None:
        """Refuse use in another process or loop than it was opened in, open or not.

        Raises:
            ConfigurationError: saying what to do instead.
        """
        if self._loop is None:
            raise ConfigurationError(NOT_CONNECTED)
        if self._pid != os.getpid():
            raise ConfigurationError(
                f"This client was connected in process {self._pid}; connect a new one after a fork"
            )
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "This client belongs to another event loop; connect one per loop, or share a SyncExecutorClient"
            )

    def begin(self, step: Coroutine[Any, Any, Any]) -> None:
        """Run a step that nobody awaits, unless the client is closed; a failure is logged and stops nothing else."""
        if self._store is None:
            step.close()
            return
        task = asyncio.ensure_future(step)
        self._steps.add(task)
        task.add_done_callback(self._done)

    async def until_done(self) -> None:
        """Wait for all steps, including those that they begin."""
        while self._steps:
            await asyncio.wait(self._steps)  # unlike `gather`, this cancels nothing if it is cancelled

    async def close(self) -> None:
        """Wait for the steps, and close the database."""
        await self.until_done()
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    def _done(self, step: "asyncio.Future[Any]") -> None:
        self._steps.discard(step)
        error = None if step.cancelled() else step.exception()
        if error is not None:
            is_defect = not isinstance(error, ForgeError)
            logger.warning("Background step failed", extra={"error": str(error)}, exc_info=error if is_defect else None)
