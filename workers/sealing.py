"""Seals what is over into the audit chain: one worker at a time, afterwards, and only as fast as others leave room."""

import asyncio
import logging
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.records.audit import Head
from forge_tools.storage import Store
from forge_tools.storage.audit import OvertakenError, Signer
from forge_tools.storage.looks import Look, Question, Reach
from workers.recovery import is_eldest

LEASE = "audit"
REST = 4.0
"""A batch is followed by a rest of so many times what it took: a fifth of one processor at most, less under load."""

HURRIED_REST = 1.0
HURRY_SECONDS = 60.0
"""Behind by more than this, it rests less."""

PATIENCE_SECONDS = 60.0
"""A worker that has calls to run leaves sealing for later, for so long at most."""

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


class Sealing:
    """The oldest boot has it looked up every few seconds whether there is anything to seal: the look of a heartbeat brings
    the answer. The lease keeps two that both think they are it from doing it twice.

    While `is_idle` denies it, calls come first.
    """

    def __init__(
        self,
        store: Store,
        boot: str,
        settings: Settings,
        signer: Signer | None,
        living: Callable[[], Set[str]],
        *,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._boot = boot
        self._lease = settings.lease
        self._interval = settings.audit_interval
        self._signer = signer
        self._living = living
        self._is_idle = is_idle
        self._busy_since: float | None = None
        self._last: Head | None = None
        self._sealed: Reach | None = None
        self._answer: asyncio.Future[bool] | None = None

    def question(self) -> Reach | None:
        """Up to where all is sealed, if the next look is to say what is behind that."""
        return None if self._answer is None else self._sealed

    def hear(self, question: Question, look: Look) -> None:
        """Take the answer. If there is nothing, the next look need not go back as far."""
        if question.sealed is None or self._answer is None:
            return
        now = datetime.fromtimestamp(look.now, UTC)
        self._sealed = None if look.is_unsealed else replace(question.sealed, end=max(question.sealed.end, now))
        if not self._answer.done():
            self._answer.set_result(look.is_unsealed)
        self._answer = None

    async def keep(self) -> None:
        """Seal for ever."""
        while self._interval:
            await asyncio.sleep(self._interval)
            if self._is_for_later():
                continue
            try:
                if await self._is_anything_unsealed():
                    await self.step()
            except ForgeError as error:
                logger.warning("What is over is not sealed yet", extra={"error": str(error)})

    async def step(self) -> int:
        """Seal all there is, if it is this worker's to do; returns how many executions that were."""
        if not is_eldest(self._boot, self._living()) or not await self._may_seal():
            return 0
        await self._look_behind()
        count = 0
        with suppress(OvertakenError):  # somebody prunes, or seals by hand
            async for sealed in self._store.audit.sweep(self._signer, sealer=self._boot):
                self._last = sealed.head
                count += sealed.executions
                await asyncio.sleep(_rest(sealed.seconds, sealed.ended_until))
                if self._is_for_later() or not await self._may_seal():
                    break
        return count

    async def _is_anything_unsealed(self) -> bool:
        if not is_eldest(self._boot, self._living()):
            return False
        self._sealed = self._sealed or await self._store.audit.reach()
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    def _is_for_later(self) -> bool:
        now = time.monotonic()
        if self._is_idle():
            self._busy_since = None
            return False
        self._busy_since = self._busy_since or now
        return now - self._busy_since < PATIENCE_SECONDS

    async def _may_seal(self) -> bool:
        return await self._store.workers.take_lease(LEASE, self._boot, self._lease)

    async def _look_behind(self) -> None:
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
