"""Keeps a sick worker from swallowing calls: it claims nothing while it cannot run them, says why, and leaves if that lasts."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable

from forge_tools.errors import ForgeError
from forge_tools.records import Outcome
from forge_tools.storage import Store
from workers.lanes.birth import Birth, fell_short, shortage

LONGEST_RUN = 5
"""Bodies in a row that fell short, whatever else says that all is well."""

PATIENCE = 5.0
"""Seconds of shortage without a body that could be its cause, before a worker leaves."""

logger = logging.getLogger(__name__)


class Fitness:
    """Whether this worker may claim. A shortage passes when bodies end; a change since birth or a run of failures does not.

    `is_acknowledged` tells whether the others know that this worker lives.
    """

    def __init__(
        self,
        is_acknowledged: Callable[[], bool],
        changed: Callable[[], Awaitable[None]],
        is_busy: Callable[[], bool],
    ) -> None:
        self.is_left = False
        """Whether this worker ends because it is unfit."""
        self._is_acknowledged = is_acknowledged
        self._changed = changed
        self._is_busy = is_busy
        self._birth: Birth | None = None
        self._why: str | None = None
        self._said: str | None = None
        self._run = 0
        self._well_at = time.monotonic()

    def begin(self) -> None:
        """Take what this process is now for its birth."""
        self._birth = Birth()

    def hear(self, outcome: Outcome) -> None:
        """A body ended, or was not begun."""
        if not outcome.give_back:
            self._run = self._run + 1 if fell_short(outcome) else 0

    def may_claim(self) -> bool:
        """Look at what bodies take first; the rest is known from the last look."""
        if self._why is None:
            self._why = shortage()
        return self.may_run()

    def may_run(self) -> bool:
        """Whether what is claimed by now may begin, by what is known."""
        return self._why is None and self._is_acknowledged()

    @property
    def is_unfit(self) -> bool:
        """What is known, without a look."""
        return self._why is not None

    async def keep(self, store: Store, boot: str, interval: float) -> None:
        """Look for ever."""
        while True:
            await self.step(store, boot)
            await asyncio.sleep(interval)

    async def step(self, store: Store, boot: str) -> None:
        """Look at everything, say what changed, and leave if it is not to pass."""
        lasting, before = self._lasting(), self._why
        self._why = lasting or shortage() or _thread_shortage()
        if self._why is None or self._is_busy():
            self._well_at = time.monotonic()
        if self._why != self._said:
            await self._say(store, boot)
        if (self._why is None) != (before is None):
            await self._changed()
        if self._why is not None and (lasting or time.monotonic() - self._well_at > PATIENCE):
            self._leave(self._why)

    def _lasting(self) -> str | None:
        if self._run >= LONGEST_RUN:
            return f"{self._run} calls in a row failed for want of descriptors, memory or threads"
        return self._birth.changes(only_harm=True) if self._birth is not None else None

    async def _say(self, store: Store, boot: str) -> None:
        logger.warning("This worker is unfit" if self._why else "This worker is fit again", extra={"why": self._why})
        try:
            await store.workers.say_unfit(boot, self._why)
            self._said = self._why
        except ForgeError as error:
            logger.warning("What this worker lacks cannot be written", extra={"error": str(error)})

    def _leave(self, why: str) -> None:
        if not self.is_left:
            self.is_left = True
            logger.critical("This worker ends, so that its supervisor starts another", extra={"why": why})
            os.kill(os.getpid(), signal.SIGTERM)


def _thread_shortage() -> str | None:
    try:
        threading.Thread(target=_nothing, name="forge-probe", daemon=True).start()
    except RuntimeError as error:
        return str(error)
    return None


def _nothing() -> None:
    """A thread that could be started."""
