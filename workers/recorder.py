"""Commits outcomes, keeps them through an outage, and then notifies the submitters, once each a flush."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from forge_tools.broker import REPLY_MARK, Broker
from forge_tools.errors import ForgeError
from forge_tools.records import Claim, Kept, Outcome
from forge_tools.secrecy import encrypted_reply, replies
from forge_tools.storage import Store, result_text
from workers.retries import with_retry

MOST_WITH_RESULTS = 8
"""Ends of one flush that are told with their results; of more the ids are, which the client then reads together."""
LONGEST_REPLY = 32_768
"""Bytes of a result that rides in a notification."""

Pending = tuple[Outcome, Claim | None]
"""An outcome and the claim that it ends, if this worker made that."""

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
        tells_results: bool = True,
        requeued: Callable[[float], None] = lambda _: None,
        before: Callable[[Sequence[Outcome]], Awaitable[None]] | None = None,
    ) -> None:
        self._broker = broker
        self._flushed = flushed
        self._requeued = requeued
        self._before = before
        self._retry_seconds = retry_seconds
        self._tells_results = tells_results
        if tells_results:  # now: a worker that has run out of descriptors could load nothing
            replies.load()
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
        self._pending.append((outcome if claim is None else with_retry(claim, outcome), claim))
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
                kept = await store.queue.finish_many(outcomes)
            except ForgeError as error:
                self._keep(error)
            else:
                flushed, self._flushing = self._flushing, []
                self._settle([(*one, how) for one, how in zip(flushed, kept, strict=True) if how])
            await self._flushed()

    def _keep(self, error: ForgeError) -> None:
        logger.error(
            "Outcomes cannot be stored; they are kept", extra={"count": len(self._flushing), "error": str(error)}
        )
        self._pending, self._flushing = [*self._flushing, *self._pending], []
        asyncio.get_running_loop().call_later(self._retry_seconds, self._work.set)

    def _settle(self, stored: Sequence[tuple[Outcome, Claim | None, Kept]]) -> None:
        over = [one for one in stored if not one[0].is_requeue]
        ids: list[tuple[str, str]] = []
        for outcome, claim, kept in over:
            if claim is None or not claim.reply_to:
                continue
            reply = self._reply(claim, outcome) if kept is Kept.WHOLE and len(over) <= MOST_WITH_RESULTS else None
            if reply is None:
                ids.append((claim.reply_to, outcome.id))
            else:
                self._broker.notify(claim.reply_to, outcome.id.encode() + REPLY_MARK + reply)
        self.tell(ids)
        for seconds in {outcome.retry_in for outcome, *_ in stored if outcome.retry_in is not None}:
            self._requeued(seconds)

    def _reply(self, claim: Claim, outcome: Outcome) -> bytes | None:
        """The result itself, as it is stored and encrypted, if it is small and its client can read it."""
        if not self._tells_results or claim.reply_key is None or outcome.size > LONGEST_REPLY:
            return None
        return encrypted_reply(claim.reply_key, outcome.id, result_text(outcome))
