"""Prunes what the settings no longer want kept, and clears away what is left behind: one worker at a time, never in a hurry."""

import logging
import time
from datetime import UTC, datetime, timedelta

from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.model import new_id
from forge_tools.model.audit import Pruning
from forge_tools.setting_types import RetentionRule
from forge_tools.storage import Store
from forge_tools.storage.audit import Signer
from forge_tools.storage.retention import PruneRun
from workers.services.service import Service

LEASE = "retention"
INTERVAL_SECONDS = 600.0

logger = logging.getLogger(__name__)


class Retention(Service):
    """The lease keeps two workers that both think they lead apart."""

    name = "retention"
    failure = "What is too old is not pruned yet"
    leader_only = True

    def __init__(self, store: Store, worker_id: str, settings: Settings, signer: Signer | None) -> None:
        super().__init__(INTERVAL_SECONDS)
        self._store = store
        self._worker_id = worker_id
        self._rules = settings.retention
        self._lease = settings.lease
        self._shells_kept = settings.shell_kept
        self._signer = signer

    async def step(self) -> None:
        await self._clear()
        await self.prune()

    async def prune(self) -> int:
        """Prune by every rule; returns how many executions went."""
        return sum([await self._apply(rule) for rule in self._rules])

    async def _clear(self) -> None:
        """What cannot be cleared away keeps nothing else from being pruned."""
        try:
            count = await self._store.leftovers.clear(shells_kept=self._shells_kept)
        except ForgeError as error:
            logger.warning("What others left behind is not cleared away yet", extra={"error": str(error)})
            return
        if count:
            logger.info("Cleared away what workers, shells and sessions left behind", extra={"rows": count})

    async def _apply(self, rule: RetentionRule) -> int:
        before = datetime.now(UTC) - timedelta(days=rule.days)
        what = Pruning(ended_before=before, **rule.model_dump(exclude={"days"}))
        run = PruneRun(new_id(), f"retention of {rule.days:g} days", self._signer)
        count, taken_at = 0, float("-inf")
        async for gone in self._store.retention.sweep(what, run):
            count += gone.executions
            if time.monotonic() - taken_at > self._lease / 3:
                if not await self._store.workers.take_lease(LEASE, self._worker_id, self._lease):
                    break
                taken_at = time.monotonic()
        if count:
            logger.info("Pruned what is too old", extra={"executions": count, "days": rule.days, "run": run.id})
        return count
