"""What the parts of a worker know of the whole: what is under way, and for how long others take it for alive."""

import asyncio
import time
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


class Lease:
    """How long the others take this worker for alive after a heartbeat of its own that was answered."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.renewed_at = float("-inf")
        """When the last heartbeat that was answered was sent, on the monotonic clock."""
        self._seconds = seconds
        self._clock = clock

    def renew(self, sent_at: float) -> None:
        """A heartbeat that was sent then has been answered."""
        self.renewed_at = sent_at

    @property
    def is_held(self) -> bool:
        """Whether the others know that this worker lives: else it must start nothing."""
        return self._clock() - self.renewed_at <= self._seconds
