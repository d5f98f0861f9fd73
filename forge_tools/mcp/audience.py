"""Who is to hear that the list of tools has changed, and the look at the catalogue that finds out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ServerEvent, ToolsListChanged
from mcp.types import ToolListChangedNotification

from forge_tools.errors import ForgeError

PATIENCE = 2.0
"""Seconds that a client which does not read is waited for."""

logger = logging.getLogger(__name__)


class Audience:
    """Clients that are connected: sessions of the protocol with a handshake, and streams (`subscribe`) of the one without."""

    def __init__(self) -> None:
        self._sessions: set[ServerSession] = set()
        self._streams: dict[object, Callable[[ServerEvent], None]] = {}
        self._someone = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there to be told anything."""
        return not self._sessions and not self._streams

    def join(self, session: ServerSession, until: AsyncExitStack) -> None:
        """Tell that session of changes until its connection ends."""
        self._sessions.add(session)
        until.callback(self._leave, session)
        self._someone.set()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Tell a stream of changes; returns what ends that."""
        token = object()
        self._streams[token] = listener
        self._someone.set()

        def unsubscribe() -> None:
            self._streams.pop(token, None)
            self._note_who_left()

        return unsubscribe

    async def publish(self, event: ServerEvent) -> None:
        """Tell the streams."""
        for listener in list(self._streams.values()):
            listener(event)

    async def tell(self) -> None:
        """Tell everyone that the tools have changed."""
        await self.publish(ToolsListChanged())
        for session in list(self._sessions):
            with anyio.move_on_after(PATIENCE):
                await session.send_notification(ToolListChangedNotification())

    async def watch(
        self, fingerprint: Callable[[], object], refresh: Callable[[], Awaitable[None]], every: float
    ) -> None:
        """While anyone is connected, look for changes and tell of them; a database that is away is asked again later."""
        known = fingerprint()
        while True:
            await self._someone.wait()
            await asyncio.sleep(every)
            try:
                await refresh()
            except ForgeError as error:
                logger.warning("The catalogue cannot be read", extra={"error": str(error)})
                continue
            found = fingerprint()
            if found != known:
                known = found
                await self.tell()

    def _leave(self, session: ServerSession) -> None:
        self._sessions.discard(session)
        self._note_who_left()

    def _note_who_left(self) -> None:
        if self.is_empty:
            self._someone.clear()
