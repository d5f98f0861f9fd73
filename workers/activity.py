"""What the parts of a worker know of the whole: what is under way, and how long others consider it alive."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress


class Activity:
    """One condition for all waits in an engine: waits are rare, and their predicates cheap."""

    def __init__(self) -> None:
        self.claiming = 0
        """Claims under way, in the database."""
        self.sending = 0
        """Claims on their way to another host, which hold their slots until they arrive."""
        self.is_due = asyncio.Event()
        """Set when there are rows to claim for which no message comes."""
        self._changed = asyncio.Condition()

    @property
    def is_quiet(self) -> bool:
        """Whether no claim is under way, neither here nor to another host."""
        return not (self.claiming or self.sending)

    def due_in(self, seconds: float) -> None:
        """Record that a call went back to its queue here, and is due again after so many seconds."""
        asyncio.get_running_loop().call_later(seconds, self.is_due.set)

    async def announce(self) -> None:
        """Make every waiter check again."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_so: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until `is_so` holds, for `seconds` at most."""
        if is_so():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: bool(is_so()))


class Lease:
    """How long others consider this worker alive after its last answered heartbeat."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.renewed_at = float("-inf")
        """When the last answered heartbeat was sent, on the monotonic clock."""
        self._seconds = seconds
        self._clock = clock

    def renew(self, sent_at: float) -> None:
        """Record that the heartbeat sent then was answered."""
        self.renewed_at = sent_at

    @property
    def is_held(self) -> bool:
        """Whether others know that this worker lives; otherwise it must start nothing."""
        return self._clock() - self.renewed_at <= self._seconds
