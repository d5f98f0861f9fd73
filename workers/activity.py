"""What is under way in a worker, and how its parts wait for that: for a slot, for a commit, for the end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Activity:
    """One condition for all that waits in an engine: what is waited for is seldom, and cheap to look at."""

    def __init__(self) -> None:
        self.claiming = 0
        """Claims under way, in the database."""
        self.sending = 0
        """Claims that are on their way to another host, and hold their slots until they are there."""
        self.is_due = asyncio.Event()
        """Set when there are rows to be claimed that no message comes for."""
        self._changed = asyncio.Condition()

    @property
    def is_quiet(self) -> bool:
        """Whether no claim is under way, neither here nor to another host."""
        return not (self.claiming or self.sending)

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
