"""What a middleware is: one concern around calls, from their claim to their stored end; and what is under way in a worker."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from forge_tools.model.execution import Claim, Kept, Outcome, Wakeup


class Stored(NamedTuple):
    """An outcome that took effect, its claim if this worker made that, and what was kept of it."""

    outcome: Outcome
    claim: Claim | None
    kept: Kept


class Ends(Protocol):
    """Where claims end that a middleware does not let through."""

    def add(self, outcome: Outcome) -> None:
        """Record that outcome."""

    def forget(self, claim: Claim) -> None:
        """Forget a claim that is no longer this worker's: there will be no outcome."""


class SendOn(Protocol):
    """Sends ids to a queue, for whoever has room for them."""

    def __call__(self, wakeups: Sequence[Wakeup], queue: str, *, is_bulk: bool = False) -> None: ...


class Middleware:
    """Every method is called on the engine's loop. A hook that a class does not override is not called."""

    def claimed(self, claims: list[Claim], ends: Ends) -> list[Claim]:
        """Return the claims that run here, as their tools get them; end the others, or send them away."""
        return claims

    def ended(self, claim: Claim, outcome: Outcome) -> Outcome:
        """Return how to record a body that ended, or was not begun."""
        return outcome

    async def storing(self, outcomes: Sequence[Outcome]) -> None:
        """Handle outcomes that are about to be stored."""

    def stored(self, stored: Sequence[Stored]) -> None:
        """Handle outcomes that have been stored."""


def hooks(middleware: Iterable[Middleware], name: str) -> list[Any]:
    """Return the methods of that name which are overridden, in order."""
    idle = getattr(Middleware, name)
    return [getattr(one, name) for one in middleware if getattr(type(one), name) is not idle]


class Activity:
    """One event for all waits in an engine: waits are rare, and their predicates cheap."""

    def __init__(self) -> None:
        self.claiming = 0
        """Calls being claimed, in the database; each holds a slot."""
        self.sending = 0
        """Claims on their way to another host, which hold their slots until they arrive."""
        self.is_due = asyncio.Event()
        """Set when there are rows to claim for which no message comes."""
        self._news = asyncio.Event()

    @property
    def is_quiet(self) -> bool:
        """Whether no claim is under way, neither here nor to another host."""
        return not (self.claiming or self.sending)

    def due_in(self, seconds: float) -> None:
        """Record that a call went back to its queue here, and is due again after so many seconds."""
        asyncio.get_running_loop().call_later(seconds, self.is_due.set)

    def announce(self) -> None:
        """Make every waiter check again, in order of arrival."""
        self._news.set()  # wakes who waits now
        self._news.clear()

    async def until(self, is_so: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until `is_so` holds, for `seconds` at most."""
        if is_so():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    await self._news.wait()
