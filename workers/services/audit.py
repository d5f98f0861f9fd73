"""Appends what is over to the audit chain: one worker at a time, afterwards, and only as fast as others leave room."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from forge_tools.config import Settings
from forge_tools.model.audit import Head
from forge_tools.storage import Store
from forge_tools.storage.audit import OvertakenError, Signer
from forge_tools.storage.heartbeat import NOW, Answers, Question, Reach, unchained
from workers.services.heartbeat import Asker
from workers.services.service import Service

LEASE = "audit"
REST = 4.0
"""A batch is followed by a rest of so many times what it took: a fifth of one processor at most, less under load."""

HURRIED_REST = 1.0
HURRY_SECONDS = 60.0
"""Behind by more than this, it rests less."""

PATIENCE_SECONDS = 60.0
"""A worker that has calls to run leaves the chain for later, for so long at most."""

LONGEST_REST = 2.0

logger = logging.getLogger(__name__)


def signer_of(settings: Settings) -> Signer | None:
    """The key of the settings; the embedded stack makes one of its own.

    Raises:
        ConfigurationError: the file is not there, no key, or open to others.
    """
    if settings.audit_key is not None:
        return Signer.load(settings.audit_key)
    return Signer.load_or_make(settings.embedded_audit_key) if settings.is_embedded else None


class AuditChain(Service, Asker):
    """Asks every few seconds, with a heartbeat, whether there is anything to append. The lease keeps two workers that both think they
    lead from doing it twice.

    While `is_idle` denies it, calls come first.
    """

    name = "audit chain"
    failure = "What is over is not sealed yet"
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
        self._last: Head | None = None
        self._reach: Reach | None = None
        self._asked: Reach | None = None
        self._answer: asyncio.Future[bool] | None = None

    def ask(self) -> Sequence[Question[Any]]:
        self._asked = None if self._answer is None else self._reach
        return () if self._asked is None else (NOW, unchained(self._asked))

    def hear(self, answers: Answers) -> None:
        """If there is nothing, the next question need not go back as far."""
        if self._asked is None or self._answer is None:
            return
        now, is_behind = datetime.fromtimestamp(answers[NOW], UTC), answers[unchained(self._asked)]
        self._reach = None if is_behind else replace(self._asked, end=max(self._asked.end, now))
        if not self._answer.done():
            self._answer.set_result(is_behind)
        self._answer = None

    async def step(self) -> None:
        if not self._is_for_later() and await self._is_behind():
            await self.append()

    async def append(self) -> int:
        """Append all there is, if no other worker does; returns how many executions that were."""
        if not await self._may_append():
            return 0
        await self._check_last()
        count = 0
        with suppress(OvertakenError):  # somebody prunes, or seals by hand
            async for sealed in self._store.audit.sweep(self._signer, sealer=self._worker_id):
                self._last = sealed.head
                count += sealed.executions
                await asyncio.sleep(_rest(sealed.seconds, sealed.ended_until))
                if self._is_for_later() or not await self._may_append():
                    break
        return count

    async def _is_behind(self) -> bool:
        self._reach = self._reach or await self._store.audit.reach()
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    def _is_for_later(self) -> bool:
        now = time.monotonic()
        if self._is_idle():
            self._busy_since = None
            return False
        self._busy_since = self._busy_since or now
        return now - self._busy_since < PATIENCE_SECONDS

    async def _may_append(self) -> bool:
        return await self._store.workers.take_lease(LEASE, self._worker_id, self._lease)

    async def _check_last(self) -> None:
        """Say so, where logs are kept, if the chain that this worker made is no longer there."""
        if self._last is not None and not await self._store.audit.holds(self._last):
            logger.error(
                "A batch that this worker sealed is gone from the audit chain: the database was restored, or the chain cut",
                extra={"head": str(self._last)},
            )
            self._last = None


def _rest(took: float, ended_until: datetime | None) -> float:
    delay = (datetime.now(UTC) - ended_until).total_seconds() if ended_until else 0.0
    return min(LONGEST_REST, took * (HURRIED_REST if delay > HURRY_SECONDS else REST))
