"""The counts of the house: what is counted once, and what is not counted."""

import subprocess
import sys
from pathlib import Path

from benchmarks.house import size
from benchmarks.house.journeys import TRACE_FOLDER, TRACING, Journey, journeys_in
from tests.fleet import ROOT

PROGRAM = """
import asyncio
from forge_tools.model import new_id
async def main():
    await asyncio.sleep(0)
    new_id()
asyncio.run(main())
"""


INSERT = "sql\tINSERT INTO execution_queue (id)"


def call(at: int, thread: str, file: str) -> str:
    return f"{at}\t{thread}\tcall\t{file}\tfunction"


def read(folder: Path, *events: str, until: int = 9) -> Journey:
    (folder / "1.trace").write_text("\n".join(events))
    [journey] = journeys_in(folder, [(0, until)])
    return journey


def test_jumps_are_counted_in_each_thread_and_hand_overs_between_them(tmp_path: Path) -> None:
    events = [call(1, "1.1", "a.py"), call(2, "1.1", "b.py"), call(3, "1.2", "c.py"), call(4, "1.1", "a.py")]
    events.insert(2, f"2\t1.1\t{INSERT}")
    journey = read(tmp_path, *events)
    assert (journey.calls, journey.files, journey.jumps, journey.hand_overs) == (4, 3, 2, 2)
    assert journey.calls_before_insert == 1


def test_only_processes_that_touch_the_call_count_and_only_while_it_lasts(tmp_path: Path) -> None:
    other, late = call(3, "8.1", "a.py"), call(9, "7.2", "b.py")
    journey = read(tmp_path, f"2\t7.1\t{INSERT}", other, call(1, "7.2", "b.py"), late, until=5)
    assert (journey.calls, len(journey.statements), journey.calls_before_insert) == (1, 1, 1)


def test_each_start_of_a_function_of_ours_is_noted_once(tmp_path: Path) -> None:
    environment = {TRACE_FOLDER: str(tmp_path), "PYTHONPATH": f"{TRACING}:{ROOT}"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, cwd=ROOT)
    noted = [
        line for trace in tmp_path.glob("*.trace") for line in trace.read_text().splitlines() if "\tnew_id" in line
    ]
    assert len(noted) == 1


def test_the_total_is_the_sum_of_its_parts() -> None:
    *parts, total = size.sizes()
    assert (total.lines, total.files) == (sum(one.lines for one in parts), sum(one.files for one in parts))
    assert all(size.places(pattern) for pattern in size.PLACES.values())
