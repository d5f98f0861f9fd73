"""Prunes what the settings no longer want kept, and clears away what is left behind: one worker at a time, never in a hurry."""

import logging
import time
from collections.abc import Callable, Set
from datetime import UTC, datetime, timedelta

from forge_tools.config import RetentionRule, Settings
from forge_tools.errors import ForgeError
from forge_tools.records import new_id
from forge_tools.records.audit import Pruning
from forge_tools.storage import Store
from forge_tools.storage.audit import Signer
from forge_tools.storage.retention import PruneRun
from workers.duties import repeat
from workers.recovery import is_eldest

LEASE = "retention"
LOOK_SECONDS = 600.0

logger = logging.getLogger(__name__)


class Keeper:
    """The oldest boot prunes, every few minutes; the lease keeps two that both think they are it apart."""

    def __init__(
        self, store: Store, boot: str, settings: Settings, signer: Signer | None, living: Callable[[], Set[str]]
    ) -> None:
        self._store = store
        self._boot = boot
        self._rules = settings.retention
        self._lease = settings.lease
        self._shells_kept = settings.shell_kept
        self._signer = signer
        self._living = living

    async def keep(self) -> None:
        """Clear away and prune for ever."""
        await repeat(self.step, LOOK_SECONDS, "What is too old is not pruned yet")

    async def step(self) -> int:
        """Clear away and prune by every rule, if it is this worker's to do; returns how many executions went."""
        if not is_eldest(self._boot, self._living()):
            return 0
        await self._clear()
        return sum([await self._apply(rule) for rule in self._rules])

    async def _clear(self) -> None:
        """What cannot be cleared away keeps nothing else from being pruned."""
        try:
            count = await self._store.remnants.clear(shells_kept=self._shells_kept)
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
                if not await self._store.workers.take_lease(LEASE, self._boot, self._lease):
                    break
                taken_at = time.monotonic()
        if count:
            logger.info("Pruned what is too old", extra={"executions": count, "days": rule.days, "run": run.id})
        return count
