"""What a service is, which worker leads, the runner that keeps services going, and the first service: the heartbeat."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from forge_tools.errors import ForgeError
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import Answers, Heartbeat, Question

logger = logging.getLogger(__name__)


class Lease:
    """How long others consider this worker alive after its last answered heartbeat."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.renewed_at = float("-inf")
        """When the last answered heartbeat was sent, on the monotonic clock."""
        self._seconds = seconds
        self._clock = clock

    def renew(self, sent_at: float) -> None:
        """Record that the heartbeat sent then was answered."""
        self.renewed_at = sent_at

    @property
    def is_held(self) -> bool:
        """Whether others know that this worker lives; otherwise it must start nothing."""
        return self._clock() - self.renewed_at <= self._seconds


class Leadership:
    """Which worker does what one does for all: the oldest live one, since worker instances' ids are ordered by time."""

    def __init__(self, worker_id: str) -> None:
        self.living: frozenset[str] = frozenset()
        """The worker instances that had not stopped at the last valid heartbeat."""
        self._worker_id = worker_id

    @property
    def is_mine(self) -> bool:
        """Whether this worker leads, as far as it knows."""
        return self._worker_id == min(self.living, default=self._worker_id)


class Service:
    """A duty of a worker: it takes a step every `interval` seconds, and whenever it is `woken`.

    A step that fails with a ForgeError is logged as `failure`, and retried after `retry` seconds, or the interval. Any
    other error ends the worker.
    """

    name: ClassVar[str]
    failure: ClassVar[str]
    leader_only: ClassVar[bool] = False
    starts_at_once: ClassVar[bool] = False
    """Whether the first step is taken without waiting for an interval."""

    def __init__(self, interval: float | None = None, *, retry: float | None = None) -> None:
        """`interval`: None takes a step only when woken."""
        self.interval = interval
        self.retry = retry or interval
        self.woken = asyncio.Event()

    async def step(self) -> float | None:
        """Do what is to be done now; returns after how many seconds to continue, None for the interval."""
        raise NotImplementedError

    def ask(self) -> Sequence[Question[Any]]:
        """Return what to ask with the heartbeat that is about to be sent."""
        return ()

    def hear(self, answers: Answers) -> None:
        """Handle the answers to what it asked."""

    def missed(self) -> None:
        """Handle a failed heartbeat: nothing is known."""

    def lead_is_lost(self) -> None:
        """Forget what only the leader knows: called instead of a step if `leader_only` keeps this worker from one."""

    def close(self) -> None:
        """Release what the service holds; it takes no more steps."""


async def keep(service: Service, leadership: Leadership) -> None:
    """Take the steps of a service for ever."""
    pause = 0.0 if service.starts_at_once else service.interval
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await service.woken.wait()
            service.woken.clear()
            pause = await _step(service, leadership)
    finally:
        service.close()


async def _step(service: Service, leadership: Leadership) -> float | None:
    if service.leader_only and not leadership.is_mine:
        service.lead_is_lost()
        return service.interval
    try:
        pause = await service.step()
    except ForgeError as error:
        logger.warning(service.failure, extra={"service": service.name, "error": str(error)})
        return service.retry
    return service.interval if pause is None else pause


class ServiceRunner:
    """Runs services, and loops that are not services, as tasks. `broken` receives an error that ended one of them."""

    def __init__(self, leadership: Leadership, broken: Callable[[BaseException], None]) -> None:
        self._leadership = leadership
        self._broken = broken
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, services: Iterable[Service], *loops: Coroutine[Any, Any, None]) -> None:
        """Keep them running until `stop`."""
        for work in (*(keep(service, self._leadership) for service in services), *loops):
            self._tasks.append(task := asyncio.create_task(work))
            task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)


class Heartbeats(Service):
    """Sends heartbeats. `describe` builds them; `lapsed` is awaited before a lease that ran out is renewed."""

    name = "heartbeat"
    failure = "Heartbeat failed"
    starts_at_once = True

    def __init__(
        self,
        store: Store,
        interval: float,
        lease: Lease,
        describe: Callable[[tuple[Question[Any], ...]], Heartbeat],
        askers: Iterable[Service],
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
        sent_at = self._clock()  # not when the answer came: in between, this process may have been suspended
        try:
            answers = await self._store.workers.beat(heartbeat)
            if not self._lease.is_held:  # when it came, since the others judge by that
                await self._lapsed()
        except ForgeError:
            for asker in self._askers:
                asker.missed()
            raise
        self._lease.renew(sent_at)
        for asker in self._askers:
            asker.hear(answers)
