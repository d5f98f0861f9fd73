"""The client from scripts, threads, notebooks and forked processes, with services present and absent."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from forge_tools.client import Call, ExecutorClient, SyncExecutorClient, SyncHandle
from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, ErrorCode
from forge_tools.model import ExecutionContext
from tests.fleet import ROOT, Fleet, warm_worker

DATABASES = ("postgres",)


def test_a_synchronous_script_runs_tools(fleet: Fleet, context: ExecutionContext) -> None:
    with SyncExecutorClient(fleet.settings) as client:
        result = client.execute("Echo", context, message="hello")
        handle = client.submit("Echo", {"message": "again"}, context)

        assert (result.output, handle.result(30).output) == ("hello", "again")
        assert [execution.tool_name for execution in client.get_executions()] == ["Echo"]
        assert client.history.get(handle.id).output == "again"


def test_ten_threads_share_one_client(fleet: Fleet, context: ExecutionContext) -> None:
    with SyncExecutorClient(fleet.settings) as client, ThreadPoolExecutor(10) as threads:
        outputs = threads.map(lambda n: client.execute("Echo", context, message=str(n)).output, range(50))

        assert list(outputs) == [str(n) for n in range(50)]


def test_submit_many_from_a_script(fleet: Fleet, context: ExecutionContext) -> None:
    with SyncExecutorClient(fleet.settings) as client:
        handles = client.calls.submit_many([Call("Echo", {"message": str(n)}, context) for n in range(20)])

        assert [h.result(30).output for h in handles if isinstance(h, SyncHandle)] == [str(n) for n in range(20)]


def test_a_forked_process_connects_again_by_itself(fleet: Fleet, context: ExecutionContext) -> None:
    script = """
import os, sys
from forge_tools.client import SyncExecutorClient
from forge_tools.model import ExecutionContext
client = SyncExecutorClient()
context = ExecutionContext(working_dir=".")
assert client.execute("Echo", context, message="parent").output == "parent"
pid = os.fork()
output = client.execute("Echo", context, message=str(pid == 0)).output
if pid == 0:
    os._exit(0 if output == "True" else 1)
assert output == "False"
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = warm_worker().run(["-c", script], cwd=ROOT, env=fleet.environment())

    assert done.returncode == 0, done.stderr


async def test_a_synchronous_client_works_inside_a_running_loop(fleet: Fleet, context: ExecutionContext) -> None:
    with SyncExecutorClient(fleet.settings) as client:
        assert client.execute("Echo", context, message="notebook").output == "notebook"


async def test_a_client_used_on_another_loop_says_so(client: ExecutorClient, context: ExecutionContext) -> None:
    def elsewhere() -> None:
        asyncio.run(client.execute("Echo", context, message="x"))

    with pytest.raises(ConfigurationError, match="another event loop"):
        await asyncio.to_thread(elsewhere)


async def test_a_client_that_was_never_connected_says_so(fleet: Fleet, context: ExecutionContext) -> None:
    with pytest.raises(ConfigurationError, match="not connected"):
        await ExecutorClient(fleet.settings).submit("Echo", {"message": "x"}, context)


async def test_a_broker_that_is_down_neither_fails_nor_blocks_submit(fleet: Fleet, context: ExecutionContext) -> None:
    settings = fleet.settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"})
    times = []
    for _ in range(2):  # each client finds out for itself that it is down
        async with ExecutorClient(settings) as client:
            started = time.monotonic()
            handle = await client.submit("Echo", {"message": "slowly"}, context)
            times.append(time.monotonic() - started)
            assert (await handle.result(timeout=60)).output == "slowly"

    assert min(times) < 4.5  # giving up on the broker takes 5 s


async def test_a_database_that_is_down_fails_fast_with_one_clear_error(fleet: Fleet) -> None:
    url = "postgresql://forge:secret@127.0.0.1:1/forge"
    client = ExecutorClient(fleet.settings.model_copy(update={"database_url": url}))
    started = time.monotonic()

    with pytest.raises(DatabaseUnavailableError) as caught:
        await client.open()

    assert time.monotonic() - started < 30
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_history_pages_newest_first_and_filters(client: ExecutorClient, context: ExecutionContext) -> None:
    mine = context.model_copy(update={"session_id": f"history-{os.getpid()}-{time.time_ns()}"})
    for n in range(5):
        await client.execute("Echo", mine, message=str(n))
    await client.execute("Echo", mine)

    first = await client.history.list(session_id=mine.session_id, limit=4)
    rest = await client.history.list(session_id=mine.session_id, before=first[-1].id)
    failed = await client.history.list(session_id=mine.session_id, error_code=ErrorCode.VALIDATION_ERROR)

    assert [record.output for record in first + rest] == [None, "4", "3", "2", "1", "0"]
    assert len(failed) == 1
