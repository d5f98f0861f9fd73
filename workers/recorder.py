"""Commits outcomes, and keeps them through an outage."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from forge_tools.errors import ForgeError
from forge_tools.model import Claim, Outcome
from forge_tools.storage import Store
from workers.activity import Activity
from workers.middleware.base import Middleware, Stored, hooks

Pending = tuple[Outcome, Claim | None]
"""An outcome and the claim that it ends, if this worker made that."""

logger = logging.getLogger(__name__)


class Recorder:
    """Outcomes gather while one flush is under way; each goes through the middleware before and after."""

    def __init__(
        self, store: Store, activity: Activity, middleware: Sequence[Middleware], *, retry_seconds: float
    ) -> None:
        self._store = store
        self._activity = activity
        self._ended = hooks(middleware, "ended")
        self._storing = hooks(middleware, "storing")
        self._stored = hooks(middleware, "stored")
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
        """Remember whose outcomes will come, in an `add` each."""
        self._claims.update((claim.token, claim) for claim in claims)

    def forget(self, claim: Claim) -> None:
        """That claim is no longer this worker's: there will be no outcome."""
        self._claims.pop(claim.token, None)

    def add(self, outcome: Outcome) -> None:
        """Take an outcome, which is stored soon."""
        claim = self._claims.pop(outcome.token, None)
        if claim is not None:
            for hook in self._ended:
                outcome = hook(claim, outcome)
        self._pending.append((outcome, claim))
        self._work.set()

    async def run(self) -> None:
        """Record for ever. A loop of its own and no service: nothing is as hot, and a failure keeps what it could not store."""
        while True:
            await self._work.wait()
            self._work.clear()
            self._flushing, self._pending = self._pending, []
            outcomes = [outcome for outcome, _ in self._flushing]
            for hook in self._storing:
                await hook(outcomes)
            try:
                kept = await self._store.queue.finish_many(outcomes)
            except ForgeError as error:
                self._keep(error)
            else:
                flushed, self._flushing = self._flushing, []
                stored = [Stored(*one, how) for one, how in zip(flushed, kept, strict=True) if how]
                for hook in self._stored:
                    hook(stored)
                for seconds in {one.outcome.retry_in for one in stored if one.outcome.retry_in is not None}:
                    self._activity.due_in(seconds)
            await self._activity.announce()

    def _keep(self, error: ForgeError) -> None:
        logger.error(
            "Outcomes cannot be stored; they are kept", extra={"count": len(self._flushing), "error": str(error)}
        )
        self._pending, self._flushing = [*self._flushing, *self._pending], []
        asyncio.get_running_loop().call_later(self._retry_seconds, self._work.set)
