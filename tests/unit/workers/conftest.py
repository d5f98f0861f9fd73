"""Lanes and children for the tests of both halves of the process lane."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.unit.workers.child_bench import Bench, Speaker, a_process


@pytest.fixture
def pid() -> Iterator[int]:
    with a_process() as pid:
        yield pid


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.lane.start()
    yield bench
    await bench.lane.stop()


@pytest.fixture
async def child(bench: Bench, pid: int) -> AsyncIterator[Speaker]:
    child = await bench.connect(pid)
    yield child
    child.die()


@pytest.fixture
async def other(bench: Bench) -> AsyncIterator[Speaker]:
    with a_process() as pid:
        other = await bench.connect(pid)
        yield other
        other.die()
