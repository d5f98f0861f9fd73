"""The guard fires once, in time, and not at a body that the loop itself has kept waiting."""

import asyncio
import weakref
from types import SimpleNamespace

import pytest

from workers.lanes import base
from workers.lanes.base import Guard


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


class Fuse:
    """What a guard fires; waits for it, and counts."""

    def __init__(self) -> None:
        self.count = 0
        self._fired = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._fired.set()

    async def wait(self) -> None:
        async with asyncio.timeout(30):
            await self._fired.wait()

    async def fires_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._fired.wait()
        except TimeoutError:
            return False
        return True


async def test_a_guard_fires_when_its_time_is_up() -> None:
    fuse = Fuse()
    started = asyncio.get_running_loop().time()

    Guard(0.05, fuse, patience=5)
    await fuse.wait()

    assert asyncio.get_running_loop().time() - started >= 0.05


async def test_a_guard_fires_once() -> None:
    fuse = Fuse()
    Guard(0.01, fuse, patience=0.01)
    await fuse.wait()

    await asyncio.sleep(0.05)

    assert fuse.count == 1


async def test_a_guard_that_is_stopped_never_fires() -> None:
    fuse = Fuse()
    guard = Guard(0.02, fuse, patience=0.01)

    guard.stop()

    assert not await fuse.fires_within(0.1)


async def test_a_guard_whose_loop_was_late_waits_once_more(clock: Clock) -> None:
    fuse = Fuse()
    Guard(0.01, fuse, patience=0.2)
    clock.now += 30  # a suspended machine: the timer comes due long after its time

    assert not await fuse.fires_within(0.1), "an outcome may be waiting behind this timer"
    clock.now += 0.2
    await fuse.wait()


async def test_the_second_wait_can_be_stopped_too(clock: Clock) -> None:
    fuse = Fuse()
    guard = Guard(0.01, fuse, patience=0.1)
    clock.now += 30
    assert not await fuse.fires_within(0.05)

    guard.stop()

    assert not await fuse.fires_within(0.2)


async def test_a_loop_that_is_a_little_late_is_no_reason_to_wait(clock: Clock) -> None:
    fuse = Fuse()
    Guard(0.01, fuse, patience=60)
    clock.now += 0.01 + base.STALL_SECONDS

    await fuse.wait()


async def test_a_guard_that_is_stopped_keeps_nothing_alive() -> None:
    """A body holds its guard: left to the collector, each burst of calls would stop the worker for a while."""
    fuse = Fuse()
    gone = weakref.ref(fuse)
    guarded = Guard(60, fuse, patience=1)
    guarded.stop()
    del fuse

    assert gone() is None
