"""Commits outcomes, keeps them through an outage, and then rings the submitters, once each a flush."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from forge_tools.bell import Ringer
from forge_tools.errors import ForgeError
from forge_tools.records import Claim, Outcome
from forge_tools.storage import Store

Pending = tuple[Outcome, str | None]
"""An outcome and the submitter to ring for it."""

logger = logging.getLogger(__name__)


class Recorder:
    """Outcomes gather while one flush is under way; rings gather while one ring is. A slow broker delays no commit."""

    def __init__(self, flushed: Callable[[], Awaitable[None]], *, retry_seconds: float) -> None:
        self._flushed = flushed
        self._retry_seconds = retry_seconds
        self._submitters: dict[str, str] = {}
        self._pending: list[Pending] = []
        self._flushing: list[Pending] = []
        self._work = asyncio.Event()
        self._ended: dict[str, list[str]] = {}
        self._ringing: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether every outcome it was given is stored."""
        return not self._pending and not self._flushing

    def claimed(self, claims: Iterable[Claim]) -> None:
        """Remember whom to ring when those end; every claim must come back in an `add`."""
        self._submitters.update((claim.token, claim.reply_to) for claim in claims if claim.reply_to)

    def add(self, outcome: Outcome) -> None:
        self._pending.append((outcome, self._submitters.pop(outcome.token, None)))
        self._work.set()

    async def run(self, store: Store, ringer: Ringer) -> None:
        """Record for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            self._flushing, self._pending = self._pending, []
            try:
                ended = await _flush(store, self._flushing)
            except ForgeError as error:
                self._keep(error)
            else:
                self._flushing = []
                self._ring(ended, ringer)
            await self._flushed()

    async def close(self, timeout: float) -> None:
        """Wait for the rings under way, within a bounded time."""
        ringing = self._ringing
        if ringing is not None:
            await asyncio.wait([ringing], timeout=timeout)
            ringing.cancel()

    def _keep(self, error: ForgeError) -> None:
        logger.error(
            "Outcomes cannot be stored; they are kept", extra={"count": len(self._flushing), "error": str(error)}
        )
        self._pending, self._flushing = [*self._flushing, *self._pending], []
        asyncio.get_running_loop().call_later(self._retry_seconds, self._work.set)

    def _ring(self, ended: Sequence[tuple[str, str]], ringer: Ringer) -> None:
        for submitter, execution_id in ended:
            self._ended.setdefault(submitter, []).append(execution_id)
        if self._ended and self._ringing is None:
            self._ringing = asyncio.ensure_future(self._ring_all(ringer))

    async def _ring_all(self, ringer: Ringer) -> None:
        try:
            while self._ended:
                ended, self._ended = self._ended, {}
                await ringer.ring(ended)
        finally:
            self._ringing = None


async def _flush(store: Store, outcomes: Sequence[Pending]) -> list[tuple[str, str]]:
    """Commit; return (submitter, id) of those executions that are over by it."""
    applied = await store.queue.finish_many([outcome for outcome, _ in outcomes])
    return [
        (submitter, outcome.id)
        for (outcome, submitter), is_applied in zip(outcomes, applied, strict=True)
        if is_applied and submitter and outcome.retry_in is None and not outcome.give_back
    ]
