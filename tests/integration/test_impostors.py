"""Only a worker's own children can speak with its engine, whatever else the same user runs, and each only for itself."""

import asyncio
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext
from forge_tools.storage import open_store
from tests import impostor
from tests.fleet import Fleet, WorkerProcess, wait_until
from tests.waiting import reached

CHILDREN = 2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[Fleet]:
    """One for all: whatever is tried here, its worker serves on."""
    folder = tmp_path_factory.mktemp("fleet")
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


@pytest.fixture(scope="module")
def worker(fleet: Fleet) -> WorkerProcess:
    return fleet.start("process", concurrency=CHILDREN)


@pytest.fixture
async def client(fleet: Fleet, worker: WorkerProcess) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fleet.settings) as client:
        yield client


class Touch:
    """Makes a file wherever it is read back by pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def framed(said: bytes) -> bytes:
    return struct.pack(">i", len(said)) + said


def scribbles(touched: Path) -> list[bytes]:
    """What the pool would unpickle, and what it would take for the beginning of a message."""
    return [framed(pickle.dumps(Touch(touched))), b"\0" * 30_000]


async def answering(fleet: Fleet, worker: WorkerProcess) -> int | None:
    await fleet.looked_again()
    async with await open_store(fleet.settings.database) as store:
        return next(one.answering for one in await store.workers.list() if one.pid == worker.pid)


async def test_an_impostor_finds_nothing_to_join_and_the_worker_serves_on(
    fleet: Fleet, worker: WorkerProcess, client: ExecutorClient
) -> None:
    context = ExecutionContext(working_dir=str(fleet.folder), timeout=60)
    script = [sys.executable, impostor.__file__, str(worker.pid)]
    seeing = await asyncio.to_thread(fleet.start, "async", concurrency=2, walls_of='{"Bash": "plain"}')
    await client.catalogue.refresh()
    before = impostor.children(worker.pid)

    from_a_body = await client.execute("Impostor", context, worker=worker.pid)
    from_bash = await client.execute("Bash", context, command=" ".join(script))
    from_elsewhere = await asyncio.to_thread(subprocess.run, script, capture_output=True, check=True)

    assert [from_a_body.output, json.loads(str(from_bash.output)), json.loads(from_elsewhere.stdout)] == [[], [], []]
    echoes = await asyncio.gather(*(client.execute("EchoInProcess", context, message=str(n)) for n in range(20)))
    assert [echo.output for echo in echoes] == [str(n) for n in range(20)]
    assert impostor.children(worker.pid) == before
    assert await answering(fleet, worker) == CHILDREN
    await asyncio.to_thread(seeing.stop)


async def test_a_body_that_speaks_for_another_call_ends_itself_alone(
    fleet: Fleet, worker: WorkerProcess, client: ExecutorClient, tmp_path: Path
) -> None:
    context = ExecutionContext(working_dir=str(tmp_path), timeout=60)
    await client.catalogue.refresh()
    mark = tmp_path / "mark"
    victim = await client.submit("Block", {"seconds": 5, "mark": str(mark)}, context)
    await asyncio.to_thread(wait_until, mark.exists, 60, "the other body did not start")

    forger = await client.execute("Impostor", context, worker=worker.pid, victim=victim.id)

    assert forger.error_code == ErrorCode.LOST
    assert "was ended because of what it sent" in (forger.error or "")
    assert (await victim.result(60)).success
    assert (await victim.result(60)).output != "forged"
    async with asyncio.timeout(60):
        while await answering(fleet, worker) != CHILDREN:
            await asyncio.sleep(0.05)


async def test_whatever_a_body_writes_into_the_pipes_of_its_process_the_worker_runs_nothing_of_it_and_serves_on(
    fleet: Fleet, worker: WorkerProcess, client: ExecutorClient, tmp_path: Path
) -> None:
    context, touched = ExecutionContext(working_dir=str(tmp_path), timeout=60), tmp_path / "touched"
    await client.catalogue.refresh()

    for written in scribbles(touched):
        await client.execute("Scribbler", context, written=written.hex())
        served = await asyncio.gather(*(client.execute("EchoInProcess", context, message="served") for _ in range(3)))
        assert [(echo.output, echo.error) for echo in served] == [("served", None)] * 3, written

    assert worker.process.poll() is None
    assert not touched.exists()
    await reached(lambda: answering(fleet, worker), when=lambda now: now == CHILDREN)
