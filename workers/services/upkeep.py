"""Duties that keep the database and the host in order: audit chain, retention, roll-ups, artifacts, keys, leftovers."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ForgeError, SandboxError
from forge_tools.model.audit import Head, Pruning
from forge_tools.model.execution import new_id
from forge_tools.sandbox.processes.endings import end, marked_instances
from forge_tools.sandbox.processes.environment import instance_mark
from forge_tools.setting_types import RetentionRule
from forge_tools.storage import Store
from forge_tools.storage.audit import HeadFile, OvertakenError, Signer
from forge_tools.storage.heartbeat import NOW, Answers, Question, Reach, unchained
from forge_tools.storage.retention import PruneRun
from workers.services.service import Leadership, Service

REST = 4.0
"""Rest this many times as long as a batch, or an hour, took: a fifth of one processor at most, less under load."""

AUDIT_LEASE = "audit"
HURRIED_REST = 1.0
HURRY_SECONDS = 60.0
"""A chain that is further behind than this rests less."""

PATIENCE_SECONDS = 60.0
"""How long at most a worker that has calls to run postpones the chain."""

LONGEST_REST = 2.0

RETENTION_LEASE = "retention"
RETENTION_SECONDS = 600.0
ROLLUP_SECONDS = 300.0
PURGE_SECONDS = 300.0
KEYS_AT_ONCE = 500
PAUSE_SECONDS = 0.1

T = TypeVar("T")

logger = logging.getLogger(__name__)


def signer_of(settings: Settings) -> Signer | None:
    """Return the key in the settings; the embedded stack generates its own.

    Raises:
        ConfigurationError: the file is missing, is not a key, or is open to others.
    """
    if settings.audit_key is not None:
        return Signer.load(settings.audit_key)
    return Signer.load_or_make(settings.embedded_audit_key) if settings.is_embedded else None


class AuditChain(Service):
    """Asks every few seconds, with a heartbeat, whether there is anything to append.

    The lease keeps two workers that both think they lead from doing it twice. While `is_idle` returns False, calls come
    first.
    """

    name = "audit chain"
    failure = "Ended executions are not sealed yet"
    leader_only = True

    def __init__(
        self,
        store: Store,
        worker_id: str,
        settings: Settings,
        signer: Signer | None,
        *,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(settings.audit_interval or None)
        self._store = store
        self._worker_id = worker_id
        self._lease = settings.lease
        self._signer = signer
        self._is_idle = is_idle
        self._busy_since: float | None = None
        self._heads = HeadFile(settings.audit_heads_file)
        self._complaint = ""
        self._reach: Reach | None = None
        self._asked: Reach | None = None
        self._answer: asyncio.Future[bool] | None = None

    def ask(self) -> Sequence[Question[Any]]:
        self._asked = None if self._answer is None else self._reach
        return () if self._asked is None else (NOW, unchained(self._asked))

    def hear(self, answers: Answers) -> None:
        """Advance the next question's start if there is nothing to append."""
        if self._asked is None or self._answer is None:
            return
        now, is_behind = datetime.fromtimestamp(answers[NOW], UTC), answers[unchained(self._asked)]
        self._reach = None if is_behind else replace(self._asked, end=max(self._asked.end, now))
        if not self._answer.done():
            self._answer.set_result(is_behind)
        self._answer = None

    async def step(self) -> None:
        if self._is_for_later():
            return
        self._reach = self._reach or await self._store.audit.reach()
        self._answer = asyncio.get_running_loop().create_future()
        if await self._answer:
            await self.append()

    async def append(self) -> int:
        """Append all there is, if no other worker does; returns how many executions that were."""
        if not await self._may_append():
            return 0
        is_continued = await self._is_continued()
        count, began = 0, time.monotonic()
        with suppress(OvertakenError):  # somebody prunes, or seals by hand
            async for sealed in self._store.audit.sweep(self._signer, sealer=self._worker_id):
                if is_continued:
                    await self._keep(sealed.head)
                count += sealed.executions
                await asyncio.sleep(_rest(time.monotonic() - began, sealed.ended_until))
                began = time.monotonic()
                if self._is_for_later() or not await self._may_append():
                    break
        return count

    def _is_for_later(self) -> bool:
        now = time.monotonic()
        if self._is_idle():
            self._busy_since = None
            return False
        self._busy_since = self._busy_since or now
        return now - self._busy_since < PATIENCE_SECONDS

    async def _may_append(self) -> bool:
        return await self._store.workers.take_lease(AUDIT_LEASE, self._worker_id, self._lease)

    async def _is_continued(self) -> bool:
        """Whether the last head in the file is in the chain. If not, the file stays as it is, and proves that."""
        if (kept := await self._in_file(self._heads.read)) is None:
            return False
        if not kept or await self._store.audit.holds(kept[-1]):
            return True
        self._complain(
            logging.ERROR,
            "A batch that was sealed is gone from the audit chain: the database was restored, or the chain was truncated. The file "
            "stays as it is, for audit verify; move it away to begin another",
            head="{}:{}".format(*kept[-1]),
            file=str(self._heads.path),
        )
        return False

    async def _keep(self, head: Head) -> None:
        """Keep it out of reach of those who write to the database. If this worker dies first, a later head covers it."""
        if await self._in_file(self._heads.keep, head) and head.sequence > 1:
            facts = {"head": str(head), "file": str(self._heads.path)}
            logger.warning("No head of the audit chain was kept here before, or the file of them is lost", extra=facts)

    async def _in_file(self, work: Callable[..., T], *arguments: Head) -> T | None:
        try:
            return await asyncio.to_thread(work, *arguments)
        except ConfigurationError as error:
            said = "Heads of the audit chain are not kept outside the database"
            self._complain(logging.WARNING, said, error=str(error))
            return None

    def _complain(self, level: int, said: str, **facts: str) -> None:
        """Log it once, not every few seconds."""
        if (complaint := f"{said} {facts}") != self._complaint:
            self._complaint = complaint
            logger.log(level, said, extra=facts)


class Retention(Service):
    """The lease keeps two workers that both think they lead from pruning at once."""

    name = "retention"
    failure = "Old history is not pruned yet"
    leader_only = True

    def __init__(self, store: Store, worker_id: str, settings: Settings, signer: Signer | None) -> None:
        super().__init__(RETENTION_SECONDS)
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
        """Prune by every rule; returns how many executions were deleted."""
        return sum([await self._apply(rule) for rule in self._rules])

    async def _clear(self) -> None:
        """Clear leftovers; a failure keeps nothing else from being pruned."""
        try:
            count = await self._store.leftovers.clear(shells_kept=self._shells_kept)
        except ForgeError as error:
            logger.warning("Leftovers are not cleared away yet", extra={"error": str(error)})
            return
        if count:
            logger.info("Cleared away leftovers of workers, shells and sessions", extra={"rows": count})

    async def _apply(self, rule: RetentionRule) -> int:
        before = datetime.now(UTC) - timedelta(days=rule.days)
        what = Pruning(ended_before=before, **rule.model_dump(exclude={"days"}))
        run = PruneRun(new_id(), f"retention of {rule.days:g} days", self._signer)
        count, taken_at = 0, float("-inf")
        async for gone in self._store.retention.sweep(what, run):
            count += gone.executions
            if time.monotonic() - taken_at > self._lease / 3:
                if not await self._store.workers.take_lease(RETENTION_LEASE, self._worker_id, self._lease):
                    break
                taken_at = time.monotonic()
        if count:
            logger.info("Pruned old history", extra={"executions": count, "days": rule.days, "run": run.id})
        return count


class RollUps(Service):
    """Rolls up the figures of past hours. Two workers that both think they lead do the work twice, without harm."""

    name = "roll-ups"
    failure = "Past hours are not rolled up yet"
    leader_only = True

    def __init__(self, store: Store) -> None:
        super().__init__(ROLLUP_SECONDS)
        self._store = store

    async def step(self) -> float | None:
        """Roll up what is ready, for at most one interval: by then another worker may lead."""
        began = time.monotonic()
        until = began + ROLLUP_SECONDS
        async for _ in self._store.rollups.sweep():
            await asyncio.sleep(REST * (time.monotonic() - began))
            began = time.monotonic()
            if began > until:
                return 0.0
        return None


class Expired(Service):
    """Deletes artifacts and idempotency keys that have expired, in batches, and lets calls through in between.

    Every worker does, not only the leader: artifacts in files can be deleted only where their folder is configured.
    """

    name = "expired"
    failure = "What has expired is not deleted yet"

    def __init__(self, store: Store) -> None:
        super().__init__(PURGE_SECONDS)
        self._store = store

    async def step(self) -> None:
        while await self._store.artifacts.purge():
            pass
        is_more = True
        while is_more:
            is_more = await self._store.transitions.purge_keys(KEYS_AT_ONCE) == KEYS_AT_ONCE
            await asyncio.sleep(PAUSE_SECONDS)


class Leftovers(Service):
    """Ends what dead workers of this host left running: it can only be reached here.

    What belongs to a worker that lives, or that the database does not list as stopped, is left alone.
    """

    name = "leftovers"
    failure = "Leftover processes of other workers cannot be looked for"
    starts_at_once = True

    def __init__(self, store: Store, worker_id: str, leadership: Leadership, interval: float) -> None:
        super().__init__(interval)
        self._store = store
        self._worker_id = worker_id
        self._leadership = leadership

    async def step(self) -> None:
        try:
            found = await asyncio.to_thread(marked_instances) - self._leadership.living - {self._worker_id}
            for stopped in sorted(await self._store.workers.stopped(found) if found else ()):
                facts = {"worker": stopped, "count": await asyncio.to_thread(end, instance_mark(stopped))}
                logger.warning("A stopped worker left processes; they are ended", extra=facts)
        except OSError as error:
            raise SandboxError(str(error)) from error


def _rest(took: float, ended_until: datetime | None) -> float:
    delay = (datetime.now(UTC) - ended_until).total_seconds() if ended_until else 0.0
    return min(LONGEST_REST, took * (HURRIED_REST if delay > HURRY_SECONDS else REST))
