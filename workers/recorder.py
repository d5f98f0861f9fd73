"""Commits outcomes, keeps them through an outage, and then notifies the submitters, once each a flush."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from forge_tools.broker import Broker
from forge_tools.errors import ForgeError
from forge_tools.records import Claim, Outcome
from forge_tools.storage import Store
from workers.retries import with_retry

Pending = tuple[Outcome, str | None]
"""An outcome and the submitter to notify of it."""

logger = logging.getLogger(__name__)


class Recorder:
    """Outcomes gather while one flush is under way.

    `requeued` is told in how many seconds a call that went back to its queue is due again. `before` does what has to be
    done before outcomes are stored.
    """

    def __init__(
        self,
        broker: Broker,
        flushed: Callable[[], Awaitable[None]],
        *,
        retry_seconds: float,
        requeued: Callable[[float], None] = lambda _: None,
        before: Callable[[Sequence[Outcome]], Awaitable[None]] | None = None,
    ) -> None:
        self._broker = broker
        self._flushed = flushed
        self._requeued = requeued
        self._before = before
        self._retry_seconds = retry_seconds
        self._claims: dict[str, Claim] = {}
        self._pending: list[Pending] = []
        self._flushing: list[Pending] = []
        self._work = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether every outcome it was given is stored."""
        return not self._pending and not self._flushing

    def claimed(self, claims: Iterable[Claim]) -> None:
        """Remember whom to notify when those end, and what is to happen when they fail; each must come back in an `add`."""
        self._claims.update((claim.token, claim) for claim in claims)

    def forget(self, claim: Claim) -> None:
        """That claim is no longer this worker's: there will be no outcome."""
        self._claims.pop(claim.token, None)

    def add(self, outcome: Outcome) -> None:
        claim = self._claims.pop(outcome.token, None)
        if claim is None:
            self._pending.append((outcome, None))
        else:
            self._pending.append((with_retry(claim, outcome), claim.reply_to))
        self._work.set()

    def tell(self, ended: Iterable[tuple[str, str]]) -> None:
        """Notify the submitters, as (submitter, id), of executions that ended otherwise than by an outcome."""
        ids: dict[str, list[str]] = {}
        for submitter, execution_id in ended:
            ids.setdefault(submitter, []).append(execution_id)
        for submitter, its in ids.items():
            self._broker.notify(submitter, " ".join(its).encode())

    async def run(self, store: Store) -> None:
        """Record for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            self._flushing, self._pending = self._pending, []
            outcomes = [outcome for outcome, _ in self._flushing]
            if self._before is not None:
                await self._before(outcomes)
            try:
                applied = await store.queue.finish_many(outcomes)
            except ForgeError as error:
                self._keep(error)
            else:
                flushed, self._flushing = self._flushing, []
                self._settle([one for one, is_applied in zip(flushed, applied, strict=True) if is_applied])
            await self._flushed()

    def _keep(self, error: ForgeError) -> None:
        logger.error(
            "Outcomes cannot be stored; they are kept", extra={"count": len(self._flushing), "error": str(error)}
        )
        self._pending, self._flushing = [*self._flushing, *self._pending], []
        asyncio.get_running_loop().call_later(self._retry_seconds, self._work.set)

    def _settle(self, stored: Sequence[Pending]) -> None:
        over = [(outcome, submitter) for outcome, submitter in stored if not outcome.is_requeue]
        self.tell((submitter, outcome.id) for outcome, submitter in over if submitter)
        for seconds in {outcome.retry_in for outcome, _ in stored if outcome.retry_in is not None}:
            self._requeued(seconds)
