"""A call goes from a client to a worker to SQL and back."""

import asyncio
import logging
from pathlib import Path

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.errors import ErrorCode, ResultTimeoutError
from forge_tools.model import ExecutionContext, ExecutionStatus, ToolCategory
from tests.fleet import Fleet
from tests.waiting import is_alive, reached, wait_until


async def test_a_call_returns_what_the_tool_returned_and_is_a_row(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    result = await client.execute("Echo", context, message="hello")

    record = await client.history.get(result.metadata["execution_id"])
    assert (result.success, result.output, result.metadata["agent"]) == (True, "hello", "agent-1")
    assert (record.status, record.output, record.attempt) == (ExecutionStatus.SUCCEEDED, "hello", 1)
    assert (record.agent_id, record.session_id, record.lane) == ("agent-1", "session-1", "async")
    assert record.started_at is not None
    assert record.queued_at <= record.started_at <= (record.completed_at or record.started_at)


async def test_the_process_lane_runs_the_same_calls(client: ExecutorClient, context: ExecutionContext) -> None:
    result = await client.execute("EchoInProcess", context, message="hello")

    record = await client.history.get(result.metadata["execution_id"])
    assert (result.output, record.lane, record.status) == ("hello", "process", ExecutionStatus.SUCCEEDED)


@pytest.mark.parametrize("name", ["Echo", "EchoInProcess"])
async def test_a_hundred_concurrent_calls_each_get_their_own_result(
    client: ExecutorClient, context: ExecutionContext, name: str
) -> None:
    results = await asyncio.gather(*(client.execute(name, context, message=str(n)) for n in range(100)))

    assert [result.output for result in results] == [str(n) for n in range(100)]


async def test_many_submits_in_one_go_give_one_handle_or_failure_each(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    calls = [Call("Echo", {"message": "a"}, context), Call("Nope", {}, context), Call("Echo", {}, context)]

    handles = await client.calls.submit_many(calls)

    results = [await handle.result(30) for handle in handles if isinstance(handle, Handle)]
    assert [result.error_code for result in results] == [None, ErrorCode.TOOL_NOT_FOUND, ErrorCode.VALIDATION_ERROR]


async def test_an_unknown_tool_is_rejected_at_once_and_recorded(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    result = await client.execute("No\x00pe\ud800", context, x=1)

    record = await client.history.get(result.metadata["execution_id"])
    assert result.error_code == ErrorCode.TOOL_NOT_FOUND
    assert result.error is not None
    assert result.error.startswith("Unknown tool: No")
    assert record.status == ExecutionStatus.REJECTED
    assert record.parameters == {"x": 1}


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "Missing required parameter: message"),
        ({"message": 3}, "Invalid type for message: expected string"),
        ({"mesage": "x", "message": "x"}, "Unknown parameter 'mesage'"),
        ({"message": float("nan")}, "NaN"),
        ({"message": b"x"}, "bytes"),
        ({"message": {1, 2}}, "set"),
        ({"message": "x" * 10_000_001}, "10,000,000"),
    ],
)
async def test_bad_parameters_are_rejected_with_a_sentence_and_recorded(
    client: ExecutorClient, context: ExecutionContext, parameters: dict[str, object], said: str
) -> None:
    result = await client.execute("Echo", context, **parameters)

    record = await client.history.get(result.metadata["execution_id"])
    assert result.error_code == ErrorCode.VALIDATION_ERROR
    assert said in (result.error or "")
    assert (record.status, record.error) == (ExecutionStatus.REJECTED, result.error)


async def test_a_context_with_a_live_object_is_rejected_by_its_path(client: ExecutorClient) -> None:
    context = ExecutionContext(working_dir=".", metadata={"engine": object()})

    result = await client.execute("Echo", context, message="x")

    assert result.error_code == ErrorCode.VALIDATION_ERROR
    assert "context.metadata.engine" in (result.error or "")


@pytest.mark.parametrize(
    ("what", "output"), [("number", 42), ("nothing", None), ("nul", "a\x00b"), ("surrogate", "\ud800")]
)
async def test_whatever_a_tool_returns_comes_back_as_it_was(
    client: ExecutorClient, context: ExecutionContext, what: str, output: object
) -> None:
    result = await client.execute("ReturnAnything", context, what=what)

    assert (result.success, result.output) == (True, output)


@pytest.mark.parametrize("what", ["object", "nan"])
async def test_a_result_that_json_cannot_carry_fails_that_call_and_says_so(
    client: ExecutorClient, context: ExecutionContext, what: str
) -> None:
    result = await client.execute("ReturnAnything", context, what=what)

    assert result.error_code == ErrorCode.UNSTORABLE
    assert "cannot be stored" in (result.error or "")


async def test_a_coroutine_that_awaits_too_long_times_out(client: ExecutorClient, context: ExecutionContext) -> None:
    context = context.model_copy(update={"timeout": 0.3})

    result = await client.execute("Sleep", context, seconds=30)

    record = await client.history.get(result.metadata["execution_id"])
    assert (result.error, result.error_code) == ("Tool timed out after 0.3s", ErrorCode.TIMEOUT)
    assert (record.status, record.timeout, record.timeout_source) == (ExecutionStatus.TIMED_OUT, 0.3, "call")


async def test_a_tool_that_blocks_its_process_is_ended_and_its_neighbours_live(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    short = context.model_copy(update={"timeout": 0.5})

    stuck, neighbour = await asyncio.gather(
        client.execute("Block", short, seconds=60, mark=str(mark)),
        client.execute("Block", context, seconds=1, mark=str(tmp_path / "other")),
    )

    assert (stuck.error, stuck.error_code) == ("Tool timed out after 0.5s", ErrorCode.TIMEOUT)
    assert neighbour.success
    wait_until(lambda: not is_alive(int(mark.read_text())), 5, "the blocked process still runs")


async def test_the_child_processes_of_an_ended_tool_end_with_it(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"

    await client.execute("SpawnAndBlock", context.model_copy(update={"timeout": 1.0}), mark=str(mark))

    pids = [int(pid) for pid in mark.read_text().split()]
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 5, f"some of {pids} still run")


async def test_a_tool_that_kills_its_process_is_lost_when_it_may_not_run_again(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"

    result = await client.execute("KillItself", context, mark=str(mark))

    record = await client.history.get(result.metadata["execution_id"])
    assert (result.error_code, record.status) == (ErrorCode.LOST, ExecutionStatus.LOST)
    assert "unknown" in (result.error or "")
    assert len(mark.read_text().splitlines()) == 1


async def test_an_idempotent_tool_that_kills_its_process_runs_max_attempts_times_and_no_more(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"

    result = await client.execute("KillItselfIdempotent", context, mark=str(mark))

    assert result.error_code == ErrorCode.LOST
    assert len(mark.read_text().splitlines()) == 3


async def test_tools_in_a_process_do_not_see_the_database_url(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    result = await client.execute("Environment", context)

    assert not [name for name in result.output if name in {"FORGE_DATABASE_URL", "FORGE_BROKER_URL"}]


async def test_sensitive_parameters_are_redacted_wherever_people_look(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    result = await client.execute("Login", context, user="ada", password="hunter22")

    record = await client.history.get(result.metadata["execution_id"])
    assert result.output == "ada has a password of 8 characters"
    assert record.parameters == {"user": "ada", "password": "[redacted]"}
    assert client.get_executions()[-1].parameters["password"] == "[redacted]"


async def test_a_dry_run_is_recorded_and_runs_no_body(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"

    result = await client.execute("Block", context.model_copy(update={"dry_run": True}), mark=str(mark))

    assert "[Dry Run]" in result.output
    assert not mark.exists()


async def test_a_handle_can_be_awaited_by_another_client(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext
) -> None:
    handle = await client.submit("Sleep", {"seconds": 0.5}, context, queue="background")

    async with ExecutorClient(fleet.settings) as other:
        result = await other.calls.attach(handle.id).result(timeout=30)

    assert (result.output, (await handle.record()).queue) == ("slept 0.5s", "background")


async def test_waiting_for_a_result_may_end_before_the_execution_does(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    handle = await client.submit("Sleep", {"seconds": 6}, context)

    with pytest.raises(ResultTimeoutError, match="keeps running"):
        await handle.result(timeout=0.1)
    assert (await handle.result(timeout=30)).success


async def test_a_running_call_is_cancelled_within_a_second_or_so(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    handle = await client.submit("Sleep", {"seconds": 60, "mark": str(mark)}, context)
    await asyncio.to_thread(wait_until, mark.exists, 40, "the body did not start")

    asked = await handle.cancel("changed my mind")

    result = await handle.result(timeout=30)
    assert (asked, result.error_code) == ("requested", ErrorCode.CANCELLED)
    assert await handle.status() == ExecutionStatus.CANCELLED
    assert await handle.cancel() == "over"


async def test_cancelling_the_task_that_executes_cancels_its_call(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    task = asyncio.ensure_future(client.execute("Sleep", context, seconds=60, mark=str(mark)))
    await asyncio.to_thread(wait_until, mark.exists, 40, "the body did not start")

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await reached(
        lambda: client.history.list(tool="Sleep", limit=1),
        when=lambda rows: rows[0].status is ExecutionStatus.CANCELLED,
    )


async def test_a_delayed_call_waits_in_sql_until_it_is_due(client: ExecutorClient, context: ExecutionContext) -> None:
    handle = await client.submit("Echo", {"message": "later"}, context, delay=1.5)

    result = await handle.result(timeout=30)

    record = await handle.record()
    assert result.output == "later"
    assert record.started_at is not None
    assert (record.started_at - record.queued_at).total_seconds() >= 1.4


async def test_schemas_come_from_the_catalogue_without_io(client: ExecutorClient) -> None:
    schemas = client.get_schemas_by_category(ToolCategory.FILE, "anthropic")

    assert {"Read", "Grep"} <= {schema["name"] for schema in schemas}
    assert all("input_schema" in schema for schema in schemas)


async def test_a_queue_that_nobody_serves_is_warned_about_and_the_call_expires(
    client: ExecutorClient, context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "forge_tools.client"):
        handle = await client.submit("Echo", {"message": "x"}, context, queue="nowhere", expires_in=0.5)
        result = await handle.result(timeout=60)
        await reached(lambda: "No live worker serves queue nowhere" in caplog.text)

    assert result.error_code == ErrorCode.EXPIRED
