"""Ends what workers of this host left running that others found dead: only here can it be reached. Drops spent keys."""

import asyncio
import logging
from collections.abc import Callable, Set

from forge_tools.errors import ForgeError
from forge_tools.sandbox.processes.endings import end, marked_boots
from forge_tools.sandbox.processes.environment import boot_mark
from forge_tools.storage import Store
from forge_tools.storage.looks import Look
from workers.recovery import is_eldest

KEYS_AT_ONCE = 500
PAUSE_SECONDS = 0.1

logger = logging.getLogger(__name__)


class Tidying:
    """Looks, at once and then `every` so many seconds, for processes of workers that have stopped, and for idempotency keys
    that no longer hold. The processes of a host are every worker's business, the keys that of the oldest boot.
    """

    def __init__(self, store: Store, boot: str, living: Callable[[], Set[str]], every: float) -> None:
        self._store = store
        self._boot = boot
        self._living = living
        self._every = every
        self._has_overdue_keys = False

    def hear(self, look: Look) -> None:
        """A look shows whether keys are overdue: without any, there is nothing to send."""
        self._has_overdue_keys = look.has_overdue_keys

    async def keep(self) -> None:
        """Do so for ever."""
        while True:
            try:
                await tidy(self._store, self._living() | {self._boot})
            except (ForgeError, OSError) as error:
                logger.warning("What other workers left cannot be looked for", extra={"error": str(error)})
            try:
                if self._has_overdue_keys and is_eldest(self._boot, self._living()):
                    await drop_spent_keys(self._store)
            except ForgeError as error:
                logger.warning("Idempotency keys that no longer hold are kept for now", extra={"error": str(error)})
            await asyncio.sleep(self._every)


async def drop_spent_keys(store: Store) -> None:
    """Delete all that there are, a small batch at a time, and let calls go between two."""
    is_more = True
    while is_more:
        is_more = await store.keys.purge(KEYS_AT_ONCE) == KEYS_AT_ONCE
        await asyncio.sleep(PAUSE_SECONDS)


async def tidy(store: Store, living: Set[str]) -> None:
    """Look once. What belongs to a `living` boot, or to a worker that the database does not call stopped, lives on."""
    found = await asyncio.to_thread(marked_boots) - living
    for stopped in sorted(await store.workers.stopped(found) if found else ()):
        count = await asyncio.to_thread(end, boot_mark(stopped))
        logger.warning(
            "A worker that stopped had left processes; they are ended", extra={"boot": stopped, "count": count}
        )
