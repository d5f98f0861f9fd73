"""Keeps a sick worker from taking calls: it claims none while unable to run them, says why, and leaves if it lasts."""

import logging
import os
import signal
import threading
import time

from forge_tools.errors import ForgeError
from forge_tools.model.execution import Claim, Outcome
from forge_tools.storage import Store
from workers.lanes.base import BodyLane
from workers.lanes.process_state import ProcessState, fell_short, shortage
from workers.middleware.base import Activity, Middleware
from workers.services.service import Lease, Service

LONGEST_RUN = 5
"""After this many bodies in a row that fell short, a worker is unfit, even if everything else looks well."""

PATIENCE = 5.0
"""Seconds of shortage without a body that could cause it, before a worker leaves."""

logger = logging.getLogger(__name__)


class Fitness(Middleware, Service):
    """Whether this worker may claim. A shortage passes when bodies end; a change since the start or a run of failures does not."""

    name = "fitness"
    failure = "The unfitness of this worker cannot be recorded"
    starts_at_once = True

    def __init__(
        self, store: Store, worker_id: str, lease: Lease, activity: Activity, lane: BodyLane, *, interval: float
    ) -> None:
        super().__init__(interval)
        self.is_left = False
        """Whether this worker ends because it is unfit."""
        self._store = store
        self._worker_id = worker_id
        self._lease = lease
        self._activity = activity
        self._lane = lane
        self._first_state: ProcessState | None = None
        self.lacks: str | None = None
        """Why it is unfit, as of the last check."""
        self._said: str | None = None
        self._run = 0
        self._well_at = time.monotonic()

    def begin(self) -> None:
        """Record the current state of this process as its first."""
        self._first_state = ProcessState()

    def ended(self, claim: Claim, outcome: Outcome) -> Outcome:
        if not outcome.give_back:
            self._run = self._run + 1 if fell_short(outcome) else 0
        return outcome

    def may_claim(self) -> bool:
        """Check what bodies use up first; the rest is known from the last check."""
        if self.lacks is None:
            self.lacks = shortage()
        return self.may_run()

    def may_run(self) -> bool:
        """Return whether claimed calls may begin: others know that this worker lives, and no shortage is known."""
        return self.lacks is None and self._lease.is_held

    async def step(self) -> None:
        """Check everything, report changes, and leave if the fault will not pass."""
        lasting, before = self._lasting(), self.lacks
        self.lacks = lasting or shortage() or _thread_shortage()
        if self.lacks is None or self._lane.running():
            self._well_at = time.monotonic()
        if self.lacks != self._said:
            await self._say()
        if (self.lacks is None) != (before is None):
            self._activity.announce()
        is_to_last = lasting or time.monotonic() - self._well_at > PATIENCE
        if self.lacks is not None and is_to_last and not self.is_left:
            self.is_left = True
            logger.critical("This worker ends, so that its supervisor starts a new one", extra={"why": self.lacks})
            os.kill(os.getpid(), signal.SIGTERM)

    def _lasting(self) -> str | None:
        if self._run >= LONGEST_RUN:
            return f"{self._run} calls in a row failed for lack of descriptors, memory or threads"
        return self._first_state.changes(only_harm=True) if self._first_state is not None else None

    async def _say(self) -> None:
        logger.warning("This worker is unfit" if self.lacks else "This worker is fit again", extra={"why": self.lacks})
        try:
            await self._store.workers.say_unfit(self._worker_id, self.lacks)
            self._said = self.lacks  # only now: what could not be recorded is tried again at the next step
        except ForgeError as error:
            logger.warning(self.failure, extra={"error": str(error)})


def _thread_shortage() -> str | None:
    try:
        threading.Thread(name="forge-probe", daemon=True).start()  # it has nothing to do
    except RuntimeError as error:
        return str(error)
    return None
