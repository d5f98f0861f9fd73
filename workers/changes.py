"""Wakes whoever waits for a slot, for a commit or for the end of this worker."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Changes:
    """One condition for all that waits in an engine: what is waited for is seldom, and cheap to look at."""

    def __init__(self) -> None:
        self.is_due = asyncio.Event()
        """Set when a call that went back to its queue here is due, since no message comes for it."""
        self._changed = asyncio.Condition()

    def due_in(self, seconds: float) -> None:
        """Say that a call went back to its queue here, to be due then."""
        asyncio.get_running_loop().call_later(seconds, self.is_due.set)

    async def announce(self) -> None:
        """Have every waiter look again."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_so: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until it is so, for `seconds` at most."""
        if is_so():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: bool(is_so()))
