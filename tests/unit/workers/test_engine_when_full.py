"""An engine without room: in a full SQLite database what ended waits in its worker, and bodies end without new threads."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import DatabaseUnavailableError, ErrorCode
from forge_tools.model import ExecutionStatus
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from tests.full_database import ROOMY, Pages
from tests.migrated import migrated
from tests.unit.workers.engines import begun, setup_of, take
from tests.waiting import reached
from workers.engine import Engine

BULK = "x" * 100_000


class Bulky(BaseTool):
    """Return much, once let go."""

    name = "Bulky"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = ()
    may_end = asyncio.Event()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        while not self.may_end.is_set():  # no deadline: the test lets it end, or the lane does
            await asyncio.sleep(0.02)  # set by another thread, so it cannot be awaited
        return ToolResult.ok(BULK)


class Leaving(BaseTool):
    """Start a process that does not end by itself, and wait."""

    name = "Leaving"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = ()
    begun = 0

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
        Leaving.begun += 1
        await asyncio.sleep(60)
        return ToolResult.ok(None)


@pytest.fixture
def settings(tmp_path: Path, valkey_url: str) -> Settings:
    database = f"sqlite:///{tmp_path / 'forge.db'}"
    migrated(database)
    return Settings.load(home=tmp_path, broker_url=valkey_url, database_url=database, kill_grace=0.5)


async def test_a_full_database_refuses_calls_with_a_way_out_and_results_wait_for_room(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(monkeypatch)
    engine = Engine(setup_of(settings, Bulky))
    await asyncio.to_thread(engine.start)
    try:
        async with ExecutorClient(settings) as client:
            handles = [await client.submit("Bulky") for _ in range(3)]
            await reached(lambda: len(engine.worker.lane.running()) >= 3, 30)
            pages.most = 1

            refused = await client.call("Bulky", {}, ExecutionContext(working_dir=BULK))
            with pytest.raises(DatabaseUnavailableError, match="Make room"):
                await client.submit("Bulky", context=ExecutionContext(working_dir=BULK))
            Bulky.may_end.set()
            await reached(lambda: not engine.worker.lane.running(), 30)
            held = await client.history.list()
            pages.most = ROOMY
            results = [await handle.result(timeout=20) for handle in handles]
    finally:
        await asyncio.to_thread(engine.stop, 0)

    assert refused.error_code == ErrorCode.STORAGE_UNAVAILABLE
    assert "is full" in (refused.error or "")
    assert {record.status for record in held} == {ExecutionStatus.RUNNING}
    assert [result.output == BULK for result in results] == [True] * 3


async def test_what_bodies_left_is_ended_though_no_thread_can_be_started(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool may use up all that its worker may have."""
    engine = await asyncio.to_thread(begun, Engine(setup_of(settings, Leaving)))
    try:
        async with ExecutorClient(settings) as client:
            context = ExecutionContext(working_dir=".", timeout=1.0)
            handles = [await client.submit("Leaving", {}, context) for _ in range(4)]
            await take(engine, *(handle.id for handle in handles))
            await reached(lambda: Leaving.begun == len(handles), 30)

            def refuse(_: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                await reached(lambda: not engine.worker.lane.running(), 30)
            results = [await handle.result(timeout=20) for handle in handles]
    finally:
        await asyncio.to_thread(engine.stop, 0)

    assert [result.error_code for result in results] == [ErrorCode.TIMEOUT] * 4
