"""The counts of the house: what is counted once, and what is not counted."""

import subprocess
import sys
from pathlib import Path

from benchmarks.house import journeys, size
from benchmarks.house.journeys import TRACE_FOLDER, TRACING, Event
from tests.fleet import ROOT

PROGRAM = """
import asyncio
from forge_tools.model import new_id
async def main():
    await asyncio.sleep(0)
    new_id()
asyncio.run(main())
"""


def call(at: int, thread: str, file: str) -> Event:
    return Event(at, thread, "call", f"{file}\tfunction")


def test_jumps_are_counted_in_each_thread_and_hand_overs_between_them() -> None:
    events = [call(1, "1.1", "a.py"), call(2, "1.1", "b.py"), call(3, "1.2", "c.py"), call(4, "1.1", "a.py")]
    events.insert(2, Event(2, "1.1", "sql", "INSERT INTO execution_queue (id)"))
    journey = journeys._journey(events)
    assert (journey.calls, journey.files, journey.jumps, journey.hand_overs) == (4, 3, 2, 2)
    assert journey.calls_before_insert == 1


def test_only_processes_that_touch_the_call_count() -> None:
    insert, other = Event(2, "7.1", "sql", "INSERT INTO execution_queue (id)"), call(3, "8.1", "a.py")
    assert journeys._within([insert, other, call(1, "7.2", "b.py"), call(9, "7.2", "b.py")], 0, 5) == [
        call(1, "7.2", "b.py"),
        insert,
    ]


def test_each_start_of_a_function_of_ours_is_noted_once(tmp_path: Path) -> None:
    environment = {TRACE_FOLDER: str(tmp_path), "PYTHONPATH": f"{TRACING}:{ROOT}"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, cwd=ROOT)
    noted = [event.what for event in journeys._events(tmp_path) if event.what.endswith("\tnew_id")]
    assert len(noted) == 1


def test_the_total_is_the_sum_of_its_parts() -> None:
    *parts, total = size.sizes()
    assert (total.lines, total.files) == (sum(one.lines for one in parts), sum(one.files for one in parts))
    assert all(size.places(pattern) for pattern in size.PLACES.values())
