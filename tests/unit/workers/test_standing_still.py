"""The engine stands still while a process is forked, which would never see a lock opened that the engine held."""

import asyncio
import os
import threading
import time
from concurrent.futures import Future

import pytest

from forge_tools.time_limits import TimeLimits
from tests.unit.workers.child_bench import no_walls
from tests.unit.workers.host import LaneHost
from tests.waiting import within
from workers.lanes.children import ChildrenLane


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_no_step_of_the_engine_is_under_way_in_a_forked_process() -> None:
    held, is_over, started = threading.Lock(), threading.Event(), Future[ChildrenLane]()

    async def engine() -> None:
        limits = TimeLimits(grace=5.0, lease=15)
        lane = ChildrenLane(hostname="here", time_limits=limits, max_output_bytes=1, walls=no_walls())
        await lane.start(LaneHost())
        started.set_result(lane)
        for _ in within(60, "the forks are not over"):
            if is_over.is_set():
                break
            with held:
                time.sleep(0.002)
            await asyncio.sleep(0)
        await lane.stop()

    thread = threading.Thread(target=asyncio.run, args=(engine(),))
    thread.start()
    lane = started.result(30)
    try:
        for _ in range(20):
            with lane.standing_still():
                if (pid := os.fork()) == 0:
                    os._exit(held.locked())
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        is_over.set()
        thread.join()
    with lane.standing_still():  # it has ended
        pass
