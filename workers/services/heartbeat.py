"""The heartbeat: one statement an interval says that this worker lives, and brings what its parts asked for."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from forge_tools.errors import ForgeError
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import Answers, Heartbeat, Question
from workers.services.service import Service


class Lease:
    """How long the others take this worker for alive after a heartbeat of its own that was answered."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.renewed_at = float("-inf")
        """When the last heartbeat that was answered was sent, on the monotonic clock."""
        self._seconds = seconds
        self._clock = clock

    def renew(self, sent_at: float) -> None:
        """A heartbeat that was sent then has been answered."""
        self.renewed_at = sent_at

    @property
    def is_held(self) -> bool:
        """Whether the others know that this worker lives: else it must start nothing."""
        return self._clock() - self.renewed_at <= self._seconds


class Asker:
    """A part of the worker that asks something with each heartbeat."""

    def ask(self) -> Sequence[Question[Any]]:
        """What to ask with the heartbeat that is about to be sent."""
        return ()

    def hear(self, answers: Answers) -> None:
        """Take the answers to what it asked."""

    def missed(self) -> None:
        """The heartbeat failed: nothing is known."""


class Heartbeats(Service):
    """Sends them. `describe` says who beats and what is for others to read; `lapsed` is awaited before the lease is renewed after it ran out."""

    name = "heartbeat"
    failure = "Heartbeat failed"
    starts_at_once = True

    def __init__(
        self,
        store: Store,
        interval: float,
        lease: Lease,
        describe: Callable[[tuple[Question[Any], ...]], Heartbeat],
        askers: Iterable[Asker],
        *,
        lapsed: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(interval)
        self._store = store
        self._lease = lease
        self._describe = describe
        self._askers = tuple(askers)
        self._lapsed = lapsed
        self._clock = clock

    async def step(self) -> None:
        heartbeat = self._describe(tuple(question for asker in self._askers for question in asker.ask()))
        sent_at = self._clock()  # not when the answer came: in between this process may have been suspended
        try:
            answers = await self._store.workers.beat(heartbeat)
            if not self._lease.is_held:  # when it came: the others judge by that
                await self._lapsed()
        except ForgeError:
            for asker in self._askers:
                asker.missed()
            raise
        self._lease.renew(sent_at)
        for asker in self._askers:
            asker.hear(answers)
