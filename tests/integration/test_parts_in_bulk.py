"""A part of many megabytes passes worker, store and client in pieces: none of them grows by more than a few."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from forge_tools.client import ExecutorClient
from tests.fleet import Fleet

SIZE = 128 << 20
GROWTH = 32 << 20


@pytest.fixture
def fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    kept = {"max_part_size": str(SIZE)}
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0, **kept)
    fleet.start("process", concurrency=1, tools="tests.part_tools:make", **kept)
    yield fleet
    fleet.stop()


def peaks(*roots: int) -> dict[int, int]:
    """The most memory that each process under these has had since it was forgotten."""
    found = {}
    for root in roots:
        for one in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            status = Path(f"/proc/{one.pid}/status").read_text()
            if "VmHWM:" in status:  # one that has ended holds nothing
                found[one.pid] = int(status.partition("VmHWM:")[2].split()[0]) << 10
    return found


def forget(pids: dict[int, int]) -> dict[int, int]:
    for pid in pids:
        with suppress(OSError):  # it has ended
            Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peaks(*pids)


async def test_neither_worker_nor_client_holds_a_large_part(fleet: Fleet) -> None:
    [worker] = fleet.workers
    with (fleet.folder / "large.bin").open("wb") as file:
        file.truncate(SIZE)
    async with ExecutorClient(fleet.settings) as client:
        await client.call("leading", {"to": "missing"})  # what everything needs is loaded
        before = forget(peaks(worker.pid)) | forget({os.getpid(): 0})

        result = await client.call("leading", {"to": "large.bin"})
        path = await result.files[0].save(fleet.folder / "saved")

    after = peaks(worker.pid) | peaks(os.getpid())
    assert (result.error, path.stat().st_size) == (None, SIZE)
    beside = fleet.folder / "forge.db.artifacts"
    assert result.files[0].uri in [f"artifact://{kept.name}" for kept in beside.iterdir()]
    assert {pid: after[pid] - size for pid, size in before.items() if after[pid] - size > GROWTH} == {}
