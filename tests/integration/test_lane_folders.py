"""The folder in which a process lane listens: with its worker it goes, and after a killed one at the next start."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.records import ExecutionContext
from tests.fleet import Fleet, WorkerProcess, is_alive
from tests.waiting import wait_until


@pytest.fixture
def tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder of the workers; its path is short, for a socket's has to be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def folders(tmp: Path) -> set[Path]:
    return set(tmp.glob("forge-lanes-*"))


def children(worker: WorkerProcess) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]


async def echoes(fleet: Fleet) -> bool:
    async with ExecutorClient(fleet.settings) as client:
        said = await client.execute("EchoInProcess", ExecutionContext(working_dir=".", timeout=60), message="hello")
    return said.output == "hello"


async def test_a_killed_worker_leaves_its_folder_no_longer_than_until_the_next_start(
    fresh_fleet: Fleet, tmp: Path
) -> None:
    killed = fresh_fleet.start("process", concurrency=2, from_nothing=True)
    [left] = folders(tmp)
    assert await echoes(fresh_fleet)
    pids = children(killed)
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: pids[0] not in children(killed), 30, "it is not replaced")
    assert await echoes(fresh_fleet)
    assert folders(tmp) == {left}, "a child that ends takes nothing along"

    pids = children(killed)
    killed.kill()
    wait_until(lambda: not any(map(is_alive, pids)), 30, "its children live on")
    assert list(left.iterdir()) == [left / "sock"]

    following = fresh_fleet.start("process", concurrency=1, from_nothing=True)
    [used] = folders(tmp)
    assert used != left
    beside = fresh_fleet.start("process", concurrency=1, from_nothing=True)
    assert len(folders(tmp)) == 2, "that of a living worker stays"
    assert await echoes(fresh_fleet)

    following.stop()
    assert used not in folders(tmp)
    beside.stop()
    assert folders(tmp) == set()
