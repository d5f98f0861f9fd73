"""What a service is, which worker leads, and the one runner that keeps services going."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, ClassVar

from forge_tools.errors import ForgeError

logger = logging.getLogger(__name__)


class Leadership:
    """Which worker does what one does for all: the oldest that lives, since the ids of worker instances are in the order of time."""

    def __init__(self, worker_id: str) -> None:
        self.living: frozenset[str] = frozenset()
        """The worker instances that had not stopped at the last heartbeat that counts."""
        self._worker_id = worker_id

    @property
    def is_mine(self) -> bool:
        """Whether it falls to this worker, as far as it knows."""
        return self._worker_id == min(self.living, default=self._worker_id)


class Service:
    """A duty of a worker: it takes a step every `interval` seconds, and whenever it is `woken`.

    A step that fails with a ForgeError is logged as `failure`, and tried again after `retry` seconds, or the interval.
    Whatever else it raises ends the worker.
    """

    name: ClassVar[str]
    failure: ClassVar[str]
    leader_only: ClassVar[bool] = False
    starts_at_once: ClassVar[bool] = False
    """Whether the first step is taken without waiting for an interval to pass."""

    def __init__(self, interval: float | None = None, *, retry: float | None = None) -> None:
        """`interval`: None takes a step only when woken."""
        self.interval = interval
        self.retry = retry or interval
        self.woken = asyncio.Event()

    async def step(self) -> float | None:
        """Do what there is to do now; returns in how many seconds to go on, None for the interval."""
        raise NotImplementedError

    def lead_is_lost(self) -> None:
        """Forget what only the leader knows: called in place of a step where `leader_only` keeps this worker from one."""

    def close(self) -> None:
        """Let go of what the service holds; it takes no more steps."""


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
    """Runs services, and loops that are no services, as tasks. `broken` is told of an error that one of them ended with."""

    def __init__(self, leadership: Leadership, broken: Callable[[BaseException], None]) -> None:
        self._leadership = leadership
        self._broken = broken
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, services: Iterable[Service], *loops: Coroutine[Any, Any, None]) -> None:
        """Keep them until `stop`."""
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
