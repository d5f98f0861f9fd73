"""Small duties that keep the database and the host tidy: roll-ups, expired artifacts, spent keys, processes that were left behind."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.sandbox.processes.endings import end, marked_instances
from forge_tools.sandbox.processes.environment import instance_mark
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import SPENT_KEYS, Answers, Question
from workers.services.heartbeat import Asker
from workers.services.service import Leadership, Service

ROLLUP_SECONDS = 300.0
REST = 4.0
"""An hour is followed by a rest of so many times what it took: a fifth of one processor at most, while there are many."""

PURGE_SECONDS = 300.0
KEYS_AT_ONCE = 500
PAUSE_SECONDS = 0.1

logger = logging.getLogger(__name__)


class RollUps(Service):
    """Rolls up the figures of hours that are over. Two workers that both think they lead do the same work twice, and no harm."""

    name = "roll-ups"
    failure = "Hours that are over are not rolled up yet"
    leader_only = True

    def __init__(self, store: Store) -> None:
        super().__init__(ROLLUP_SECONDS)
        self._store = store

    async def step(self) -> float | None:
        """Roll up what is ready, for one interval at most: by then another worker may lead."""
        until = time.monotonic() + ROLLUP_SECONDS
        async for rolled in self._store.rollups.sweep():
            await asyncio.sleep(REST * rolled.seconds)
            if time.monotonic() > until:
                return 0.0
        return None


class ExpiredArtifacts(Service):
    """Deletes artifacts that have expired."""

    name = "expired artifacts"
    failure = "Expired artifacts are not deleted yet"

    def __init__(self, store: Store) -> None:
        super().__init__(PURGE_SECONDS)
        self._store = store

    async def step(self) -> None:
        while await self._store.artifacts.purge():
            pass


class SpentKeys(Service, Asker):
    """Deletes idempotency keys that no longer hold, a small batch at a time, and lets calls go between two.

    A heartbeat shows whether there are any: without, there is nothing to send.
    """

    name = "spent keys"
    failure = "Idempotency keys that no longer hold are kept for now"
    leader_only = True
    starts_at_once = True

    def __init__(self, store: Store, interval: float) -> None:
        super().__init__(interval)
        self._store = store
        self._are_there = False

    def ask(self) -> Sequence[Question[Any]]:
        return (SPENT_KEYS,)

    def hear(self, answers: Answers) -> None:
        self._are_there = answers[SPENT_KEYS]

    async def step(self) -> None:
        is_more = self._are_there
        while is_more:
            is_more = await self._store.transitions.purge_keys(KEYS_AT_ONCE) == KEYS_AT_ONCE
            await asyncio.sleep(PAUSE_SECONDS)


class Leftovers(Service):
    """Ends what workers of this host left running that others found dead: only here can it be reached.

    What belongs to a worker that lives, or that the database does not call stopped, lives on.
    """

    name = "leftovers"
    failure = "What other workers left cannot be looked for"
    starts_at_once = True

    def __init__(self, store: Store, worker_id: str, leadership: Leadership, interval: float) -> None:
        super().__init__(interval)
        self._store = store
        self._worker_id = worker_id
        self._leadership = leadership

    async def step(self) -> None:
        try:
            await self._look()
        except OSError as error:
            raise SandboxError(str(error)) from error

    async def _look(self) -> None:
        found = await asyncio.to_thread(marked_instances) - self._leadership.living - {self._worker_id}
        for stopped in sorted(await self._store.workers.stopped(found) if found else ()):
            count = await asyncio.to_thread(end, instance_mark(stopped))
            logger.warning(
                "A worker that stopped had left processes; they are ended", extra={"worker": stopped, "count": count}
            )
