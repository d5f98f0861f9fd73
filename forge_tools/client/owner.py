"""Whose a client is: connections and futures survive neither a fork nor a change of the event loop."""

import asyncio
import os

from forge_tools.errors import ConfigurationError

NOT_CONNECTED = "The client is not connected, or was closed; enter it with `async with ExecutorClient.connect()`"


class Owner:
    """The process and the event loop that a client was connected in; none before."""

    def __init__(self) -> None:
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Let it be those that run now."""
        self._pid, self._loop = os.getpid(), asyncio.get_running_loop()

    def require(self) -> None:
        """Refuse use by anybody else.

        Raises:
            ConfigurationError: saying what to do instead.
        """
        if self._loop is None:
            raise ConfigurationError(NOT_CONNECTED)
        if self._pid != os.getpid():
            raise ConfigurationError(
                f"This client was connected in process {self._pid}; connect another one after fork"
            )
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "This client belongs to another event loop; connect one per loop, or share a SyncExecutorClient"
            )
