"""Blocking functions on a worker: whatever stops their call stops them too, and the next call finds a worker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext, ExecutionStatus, Output
from tests.fleet import Fleet
from tests.waiting import is_alive, reached, wait_until

PLACE = {"place": {"city": "Bonn"}}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[Fleet]:
    """A process worker with two children that hosts functions."""
    folder = tmp_path_factory.mktemp("functions")
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=1.0)
    fleet.start("process", tools="tests.function_tools:make_all", secret_weather="hunter22-hunter33")
    yield fleet
    fleet.stop()


async def blocked(client: ExecutorClient, mark: Path, **context: Any) -> Any:
    """Submit a call that blocks, and wait until its body has said which process it is."""
    handle = await client.submit(
        "block", {"seconds": 60, "mark": str(mark)}, ExecutionContext(working_dir=".", **context)
    )
    await reached(lambda: mark.exists() and mark.read_text())
    return handle


async def test_a_timeout_ends_a_function_that_blocks(functions: Fleet, tmp_path: Path) -> None:
    async with ExecutorClient(functions.settings) as client:
        handle = await blocked(client, tmp_path / "pid", timeout=5.0)
        result = await handle.result(timeout=60)

        assert (result.error_code, result.error) == ("TIMEOUT", "Tool timed out after 5s")
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not is_alive(pid), 60, "its process goes on")
        assert (await client.call("greet", PLACE)).output["text"] == "Hello Bonn"


async def test_a_cancel_ends_a_function_that_blocks(functions: Fleet, tmp_path: Path) -> None:
    async with ExecutorClient(functions.settings) as client:
        handle = await blocked(client, tmp_path / "pid")
        await handle.cancel("enough")
        await handle.result(timeout=60)

        assert await handle.status() == ExecutionStatus.CANCELLED
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not is_alive(pid), 60, "its process goes on")
        assert (await client.call("greet", PLACE)).output["text"] == "Hello Bonn"


async def test_functions_of_both_children_run_at_once(functions: Fleet, tmp_path: Path) -> None:
    async with ExecutorClient(functions.settings) as client:
        marks, children = [tmp_path / "one", tmp_path / "two"], set[str]()
        async with asyncio.timeout(60):
            while len(children) < 2:  # a child that a call before was cancelled in is being replaced
                calls = (client.call("block", {"seconds": 1, "mark": str(mark)}) for mark in marks)
                assert [result.output for result in await asyncio.gather(*calls)] == ["late", "late"]
                children = {mark.read_text() for mark in marks}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_a_function_may_use_processes_of_its_own(functions: Fleet, method: str) -> None:
    async with ExecutorClient(functions.settings) as client:
        result = await client.call("sizes", {"words": ["a", "bc"], "method": method})

        assert (result.output, result.error) == ([1, 2], None)


async def test_a_secret_of_the_host_reaches_the_tool_that_names_it_and_nothing_else(functions: Fleet) -> None:
    async with ExecutorClient(functions.settings) as client:
        handle = await client.submit("keep_quiet")

        assert (await handle.result(timeout=60)).output == "17 False"
        told = [event.text async for event in handle.events() if isinstance(event, Output)]
        assert "".join(told) == "with [redacted]\n"
    assert "hunter22" not in functions.workers[0].log.read_text()
