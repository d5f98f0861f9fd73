"""What bodies of the async lane start ends with them when they are stopped, however it was started; neighbours go on."""

import asyncio
import gc
import json
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forge_tools.model import ExecutionStatus
from tests.rogue_tools import noted
from tests.starting_tools import WAYS, Starts
from tests.unit.workers.test_loop_lane import Bench, claim
from tests.waiting import is_alive

pytestmark = pytest.mark.filterwarnings(  # whoever would have waited for it was stopped
    "ignore:subprocess [0-9]+ is still running:ResourceWarning", "ignore:unclosed transport:ResourceWarning"
)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(Starts)
    await bench.lane.start(bench)
    yield bench
    await bench.lane.stop()
    gc.collect()  # what is warned of is warned of here


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "notes"
    for file in tmp_path.glob("*notes"):
        for pid in filter(is_alive, noted(file)):
            os.kill(pid, signal.SIGKILL)


async def started(
    bench: Bench, notes: Path, *ways: str, how: str = "await", id: str = "id", timeout: float = 60
) -> None:
    parameters = json.dumps({"ways": ways, "notes": str(notes), "how": how})
    bench.lane.run([claim("", id=id, tool="Starts", parameters=parameters, timeout=timeout)])
    await bench.until(Path(f"{notes}.started").exists)


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_cancelled_body_started_is_gone_when_its_outcome_is_told(
    bench: Bench, notes: Path, way: str
) -> None:
    await started(bench, notes, way)

    bench.lane.cancel("id", 1)
    outcome = await bench.outcome()

    assert outcome.status == ExecutionStatus.CANCELLED
    assert [pid for pid in noted(notes) if is_alive(pid)] == []


@pytest.mark.parametrize(("how", "status"), [("await", "timed_out"), ("swallow", "timed_out"), ("block", "failed")])
async def test_so_it_is_for_one_that_timed_out_swallowed_its_end_or_blocked(
    bench: Bench, notes: Path, how: str, status: str
) -> None:
    await started(bench, notes, "asyncio", "clean session", how=how, timeout=3)

    outcome = await bench.outcome()

    assert outcome.status == status
    assert [pid for pid in noted(notes) if is_alive(pid)] == []


async def test_so_it_is_when_no_descriptor_was_left_to_look_for_it(
    bench: Bench, notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await started(bench, notes, "clean session")

    with no_descriptors():
        bench.lane.cancel("id", 1)
        await bench.until(lambda: "are looked for again" in caplog.text)
    outcome = await bench.outcome()

    assert outcome.status == ExecutionStatus.CANCELLED
    assert [pid for pid in noted(notes) if is_alive(pid)] == []


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Take all that this process may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 10, limits[1]))
    try:
        with suppress(OSError):
            while True:  # no deadline: it ends where descriptors do
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)


async def test_what_its_neighbours_started_lives_on(bench: Bench, notes: Path) -> None:
    theirs = notes.with_name("their-notes")
    ways = ("asyncio", "shared pool", "clean session", "daemon", "multiprocessing, spawn", "orphan of a group")
    await started(bench, theirs, *ways, id="theirs")
    await started(bench, notes, *ways)

    bench.lane.cancel("id", 1)
    await bench.outcome()

    assert [is_alive(pid) for pid in noted(theirs)] == [True] * len(ways)
    assert not any(is_alive(pid) for pid in noted(notes))


async def test_what_a_finished_body_left_lives_on_until_its_worker_stops(bench: Bench, notes: Path) -> None:
    await started(bench, notes, "asyncio", how="return")

    outcome = await bench.outcome()

    assert outcome.status == ExecutionStatus.SUCCEEDED
    assert all(is_alive(pid) for pid in noted(notes))


async def test_a_thread_of_a_stopped_body_starts_nothing_more(bench: Bench, notes: Path) -> None:
    await started(bench, notes, "one after the other")

    bench.lane.cancel("id", 1)
    await bench.until(Path(f"{notes}.refused").exists)

    assert "was stopped" in Path(f"{notes}.refused").read_text()
    assert len(noted(notes)) == 1


async def test_a_start_that_is_under_way_as_its_body_is_stopped_is_waited_for(bench: Bench, notes: Path) -> None:
    parameters = json.dumps({"ways": ["slow fork"], "notes": str(notes)})
    bench.lane.run([claim("", tool="Starts", parameters=parameters)])
    await bench.until(Path(f"{notes}.forking").exists)

    bench.lane.cancel("id", 1)
    await bench.outcome()

    assert Path(f"{notes}.forked").exists()
    assert [pid for pid in noted(notes) if is_alive(pid)] == []


async def test_what_a_stopped_lane_cuts_off_has_left_nothing(bench: Bench, notes: Path) -> None:
    await started(bench, notes, "asyncio", "clean session", how="swallow")

    assert [left.id for left in await bench.lane.stop()] == ["id"]

    assert [pid for pid in noted(notes) if is_alive(pid)] == []


async def test_a_process_whose_status_somebody_waits_for_is_not_reaped_with_orphans(bench: Bench, notes: Path) -> None:
    mine = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read line; exit 7", stdin=asyncio.subprocess.PIPE)
    await started(bench, notes, "daemon", "asyncio")
    bench.lane.cancel("id", 1)
    await bench.outcome()

    await mine.communicate(b"go\n")

    assert mine.returncode == 7
