"""A whole worker on a database in which somebody else has written: it lives, ends what is foreign, and serves the others."""

import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from forge_tools.base import ExecutionContext, ToolResult
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.storage import open_store
from tests.unit.workers.test_engine import build, settings
from tests.waiting import reached

__all__ = ["settings"]  # the fixture

NO_TEXT = "CAST(x'ff41fe' AS TEXT)"

FOREIGN = (
    *(
        f"UPDATE executions SET {column} = {NO_TEXT}"
        for column in ("parameters", "context", "options", "tool", "reply_to")
    ),
    *(f"UPDATE executions SET {column} = x'ff00'" for column in ("parameters", "context", "timeout", "max_attempts")),
    "UPDATE executions SET parameters = '[1]'",
    "UPDATE executions SET context = '{'",
    "UPDATE executions SET timeout = 9e999",
)
"""A call each, to be changed so."""


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
        return [one.result for one in await store.queue.results(ids)]


async def test_a_worker_ends_foreign_calls_and_runs_the_others(settings: Settings, ended: list[int]) -> None:
    async with ExecutorClient(settings) as client:
        engine = build(settings)
        engine.start()  # publishes the tools
        engine.stop(drain=0)
        await client.refresh()
        foreign = [await client.submit("Nap", ExecutionContext(working_dir=".")) for _ in FOREIGN]
        with closing(sqlite3.connect(settings.database.removeprefix("sqlite:///"))) as connection, connection:
            for call, statement in zip(foreign, FOREIGN, strict=True):
                connection.execute(f"{statement} WHERE id = ?", (call.id,))
            connection.execute("CREATE TEMP TABLE other AS SELECT * FROM workers LIMIT 1")
            connection.execute("UPDATE other SET id = x'00ff', stopped_at = NULL")
            connection.execute("INSERT INTO workers SELECT * FROM other")
            connection.execute(
                "UPDATE execution_queue SET expires_in = 'long', expires_at = '2020' WHERE id = ?", (foreign[0].id,)
            )
        again = build(settings)
        again.start()
        try:
            assert (await client.execute("Nap", ExecutionContext(working_dir="."))).success
            results = await ends_of(settings, [call.id for call in foreign])
            assert not any(result.success for result in results)
            assert all(result.error_code == "FOREIGN_ROW" for result in results[1:9])
            assert "its expires_at is" in str(results[0].error)
            assert (await client.execute("Nap", ExecutionContext(working_dir="."))).success
        finally:
            again.stop(drain=0)
    assert ended == []
