"""A whole worker on a database in which somebody else has written: it lives, ends what cannot be read, and serves the others."""

import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.storage import open_store
from forge_tools.tool.base import ExecutionContext, ToolResult
from tests.unit.workers.test_engine import build, settings
from tests.waiting import reached

__all__ = ["settings"]  # the fixture

NO_TEXT = "CAST(x'ff41fe' AS TEXT)"

UNREADABLE = ("parameters = '{'", "context = '{'", "parameters = '[1]'", "context = '[1]'")
"""What the checks refuse, so that somebody has to switch them off."""

NO_TEXTS = tuple(f"{column} = {NO_TEXT}" for column in ("tool", "reply_to", "category"))


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals by which an engine would have ended its process."""
    sent: list[int] = []
    kill: Callable[[int, int], None] = os.kill

    def noted(pid: int, number: int) -> None:
        if pid == os.getpid() and number == signal.SIGTERM:
            sent.append(number)
        else:
            kill(pid, number)

    monkeypatch.setattr(os, "kill", noted)
    return sent


async def ends_of(settings: Settings, ids: Sequence[str]) -> list[ToolResult]:
    async with await open_store(settings.database) as store:

        async def are_over() -> bool:
            return len(await store.queue.results(ids)) == len(ids)

        await reached(are_over, seconds=30)
        return await store.queue.results(ids)


async def test_a_worker_ends_calls_that_cannot_be_read_and_runs_the_others(
    settings: Settings, ended: list[int]
) -> None:
    async with ExecutorClient(settings) as client:
        engine = build(settings)
        engine.start()  # publishes the tools
        engine.stop(drain=0)
        await client.catalogue.refresh()
        spoilt = (*UNREADABLE, *NO_TEXTS)
        calls = [await client.submit("Nap", context=ExecutionContext(working_dir=".")) for _ in spoilt]
        with closing(sqlite3.connect(settings.database.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for call, change in zip(calls, spoilt, strict=True):
                connection.execute(f"UPDATE executions SET {change} WHERE id = ?", (call.id,))
            connection.execute("CREATE TEMP TABLE other AS SELECT * FROM workers LIMIT 1")
            connection.execute(f"UPDATE other SET id = {NO_TEXT}, stopped_at = NULL")
            connection.execute("INSERT INTO workers SELECT * FROM other")
        again = build(settings)
        again.start()
        try:
            assert (await client.execute("Nap", ExecutionContext(working_dir="."))).success
            results = await ends_of(settings, [call.id for call in calls])
            assert [result.error_code for result in results[:2]] == ["FOREIGN_ROW"] * 2
            assert "its parameters is not JSON" in str(results[0].error)
            assert [result.success for result in results] == [False] * 5 + [True] * 2
            assert (await client.execute("Nap", ExecutionContext(working_dir="."))).success
        finally:
            again.stop(drain=0)
    assert ended == []
