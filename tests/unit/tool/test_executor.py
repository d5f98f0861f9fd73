"""The executor at its edges: limits, secrets, cancellation, calls that are no calls."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import RetryPolicy
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tool.base import ExecutionContext, ToolResult
from forge_tools.tool.executor import CallOptions, ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.spec.sample_tools import Broken, Echo, Read, Recorder, Slow, parameter

LOGGER = "forge_tools.tools"
SECRET = parameter("key", sensitive=True, aliases=("api_key",))


def executor_of(*tools: Any, **settings: Any) -> ToolExecutor:
    registry = ScopedRegistry()
    registry.register_many(tools)
    return ToolExecutor(registry, **settings)


# Calls that are no calls


@pytest.mark.parametrize("name", ["", "Echo\n", "\x00\ud800", None, 5, ["Echo"], "x" * 10_000])
async def test_any_unknown_name_is_a_failed_result(name: Any, context: ExecutionContext) -> None:
    executor = executor_of(Echo())

    result = await executor.execute(name, context)

    assert (result.success, result.error_code, result.duration_ms) == (False, "TOOL_NOT_FOUND", 0.0)
    assert result.error is not None
    assert result.error.startswith("Unknown tool: ")
    assert len(result.error.encode()) < 200
    assert executor.get_stats()["rejected_count"] == 1


async def test_a_close_name_is_hinted_at(context: ExecutionContext) -> None:
    result = await executor_of(Read()).execute("Raed", context)

    assert (result.error, result.metadata) == ("Unknown tool: Raed", {"hint": "did you mean 'Read'?"})


@pytest.mark.parametrize("arguments", [[], "message=x", {1: "x"}, ExecutionContext(working_dir=".")])
async def test_arguments_that_are_not_an_object_are_a_failed_result(arguments: Any) -> None:
    result = await executor_of(Echo()).call("Echo", arguments)

    assert (result.success, result.error_code) == (False, "INVALID_CALL")
    assert "expected an object with names as keys" in (result.error or "")


@pytest.mark.parametrize("method", ["_execute", "execute"])
@pytest.mark.parametrize(
    "field", [{"metadata": None}, {"error_code": 404}, {"error_code": ["x"]}, {"error": OSError()}, {"success": "yes"}]
)
async def test_a_result_with_a_field_of_another_type_is_a_failed_result(
    field: dict[str, Any], method: str, context: ExecutionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: object, **__: object) -> ToolResult:
        return ToolResult.fail("no").model_copy(update=field)

    monkeypatch.setattr(Echo, method, answer)
    options = CallOptions(retry=RetryPolicy(max_attempts=2, delay_seconds=0))
    result = await executor_of(Echo()).call("Echo", {"message": "x"}, context, options)

    [(name, value)] = field.items()
    assert (result.success, result.error_code) == (False, "EXECUTION_ERROR")
    assert f"'{name}' of the tool's result is of type {type(value).__name__}" in (result.error or "")


@pytest.mark.parametrize("context", [None, {}, "/tmp"])
async def test_an_invalid_context_is_a_failed_result(context: Any) -> None:
    result = await executor_of(Echo()).execute("Echo", context, message="x")

    assert (result.success, result.error_code) == (False, "INVALID_CALL")
    assert result.error == (
        f"Invalid context: expected an ExecutionContext, not {type(context).__name__}. The form is "
        "execute(name, context, **parameters) or call(name, parameters, context=None, options=None)"
    )


async def test_a_tool_is_recorded_under_its_name_whatever_it_was_called_by(context: ExecutionContext) -> None:
    executor = executor_of(Read())

    await executor.execute("read_file", context, path="a", limit=None)

    (record,) = executor.get_executions()
    assert (record.tool_name, record.parameters) == ("Read", {"file_path": "a"})
    assert executor.get_stats()["executions_by_tool"] == {"Read": 1}


# Tools that replace `execute`


async def test_a_tool_that_replaces_execute_cannot_raise_either(context: ExecutionContext) -> None:
    class Own(Echo):
        async def execute(self, context: ExecutionContext, /, **kwargs: Any) -> ToolResult:
            raise RuntimeError("own way\x00")

    class Bare(Recorder):
        async def execute(self, context: ExecutionContext, /, **kwargs: Any) -> ToolResult:
            return "bare"

    executor = executor_of(Own(), Bare())

    failed, bare = await executor.execute("Echo", context), await executor.execute("Recorder", context)

    assert (failed.error, failed.error_code) == (r"Unexpected error: own way\x00", "EXECUTION_ERROR")
    assert (bare.success, bare.output) == (True, "bare")
    assert failed.duration_ms is not None
    assert bare.duration_ms is not None


# Timeouts


@pytest.mark.parametrize(
    ("tool_timeout", "context_timeout", "options_timeout", "effective"),
    [
        (None, None, None, "0.03"),
        (0.02, None, None, "0.02"),
        (0.02, 0.01, None, "0.01"),
        (0.02, 0.025, 0.015, "0.015"),
        (60, 60, 60, "0.03"),
    ],
)
async def test_the_operators_maximum_caps_what_the_others_ask_for(
    tool_timeout: float | None, context_timeout: float | None, options_timeout: float | None, effective: str
) -> None:
    tool = Slow()
    tool.timeout = tool_timeout
    given = {} if context_timeout is None else {"timeout": context_timeout}
    executor = executor_of(tool, max_timeout=0.03)
    context = ExecutionContext(working_dir=".", **given)

    result = await executor.call("Slow", {"seconds": 60}, context, CallOptions(timeout=options_timeout))

    assert result.error == f"Tool timed out after {effective}s"


async def test_a_body_that_raises_timeout_error_has_not_timed_out(context: ExecutionContext) -> None:
    result = await executor_of(Broken(TimeoutError("upstream"))).execute("Broken", context)

    assert (result.error, result.error_code) == ("Unexpected error: TimeoutError: upstream", "EXECUTION_ERROR")


# Cancellation


async def test_a_cancelled_call_is_recorded_and_stays_cancelled(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    tool = Slow()
    executor = executor_of(tool)
    call = asyncio.create_task(executor.execute("Slow", context, seconds=60))
    await tool.started.wait()

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    (record,) = executor.get_executions()
    assert (record.result.error, record.result.error_code) == ("Tool execution cancelled", "CANCELLED")
    assert "Tool Slow failed: Tool execution cancelled" in caplog.messages


class Abort(BaseException):
    """What no `except Exception` catches, as frameworks have them."""


@pytest.mark.parametrize(
    ("raised", "error", "code"),
    [
        (KeyboardInterrupt(), "Tool execution interrupted: KeyboardInterrupt", "CANCELLED"),
        (Abort("enough, hunter2hunter2"), "Tool execution interrupted: enough, [redacted]", "EXECUTION_ERROR"),
    ],
)
async def test_what_must_end_more_than_the_call_is_recorded_before_it_does(
    raised: BaseException, error: str, code: str, context: ExecutionContext
) -> None:
    executor = executor_of(Recorder(SECRET, answer=raised))

    with pytest.raises(type(raised)):
        await executor.execute("Recorder", context, key="hunter2hunter2")

    (record,) = executor.get_executions()
    assert (record.result.error, record.result.error_code) == (error, code)
    assert executor.get_stats()["error_count"] == 1


async def test_a_call_that_is_closed_while_it_waits_is_recorded(context: ExecutionContext) -> None:
    executor = executor_of(Slow())
    call = executor.execute("Slow", context, seconds=60)
    call.send(None)

    call.close()

    assert [one.result.error_code for one in executor.get_executions()] == ["CANCELLED"]


# Output


@pytest.mark.parametrize("output", ["x" * 1001, {"k": ["x" * 100] * 10}, [1] * 500, b"x" * 1001])
async def test_an_output_over_the_limit_is_shown_by_head_and_tail(output: Any, context: ExecutionContext) -> None:
    limited = context.model_copy(update={"max_output_size": 1000})

    result = await executor_of(Recorder(answer=[output])).execute("Recorder", limited)

    assert isinstance(result.output, str)
    assert len(result.output) <= 1000
    assert "omitted ...]" in result.output
    assert result.metadata["truncated"] is True
    assert result.metadata["total_chars"] > 1000


@pytest.mark.parametrize("output", ["x" * 1000, None, True, 10**2000, {"k": "x" * 900}, 1.5])
async def test_an_output_within_the_limit_stays_as_it_is(output: Any, context: ExecutionContext) -> None:
    limited = context.model_copy(update={"max_output_size": 1000})

    result = await executor_of(Recorder(answer=[output])).execute("Recorder", limited)

    assert (result.output, result.metadata) == (output, {})


async def test_a_failure_is_not_cut(context: ExecutionContext) -> None:
    failure = ToolResult(success=False, error="e", output="x" * 100)
    limited = context.model_copy(update={"max_output_size": 10})

    assert (await executor_of(Recorder(answer=failure)).execute("Recorder", limited)).output == "x" * 100


async def test_an_output_that_contains_itself_is_shown_too(context: ExecutionContext) -> None:
    endless: list[Any] = ["x" * 2000]
    endless.append(endless)
    limited = context.model_copy(update={"max_output_size": 1000})

    result = await executor_of(Recorder(answer=[endless])).execute("Recorder", limited)

    assert result.metadata["truncated"] is True


# What nobody may see


async def test_secrets_stay_out_of_logs_records_and_errors(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    tool = Recorder(SECRET, parameter("url"), answer=ValueError("401 for s3cret-key"))
    executor = executor_of(tool)

    await executor.execute("Recorder", context, api_key="s3cret-key", url="http://h/")
    await executor.execute("Recorder", context, key=["s3cret-key"], url="http://h/")
    await executor.execute("Recorder", context.model_copy(update={"dry_run": True}), key="s3cret-key", url="u")

    records = executor.get_executions()
    assert [record.parameters["key"] for record in records] == ["[redacted]"] * 3
    assert records[0].parameters["url"] == "http://h/"
    assert "s3cret-key" not in caplog.text
    assert "s3cret-key" not in str(records)
    assert tool.calls == [{"key": "s3cret-key", "url": "http://h/"}]


async def test_a_misspelt_secret_is_not_shown_either(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    class Closed(Echo):
        parameters = (parameter("message", sensitive=True),)

    caplog.set_level(logging.DEBUG, LOGGER)
    executor = executor_of(Closed())

    result = await executor.execute("Echo", context, mesage="s3cret-key")

    assert result.error == "Unknown parameter 'mesage' (did you mean 'message'?)"
    assert executor.get_executions()[0].parameters == {"mesage": "[redacted]"}
    assert "s3cret-key" not in caplog.text


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError


async def test_values_that_cannot_be_shown_do_not_break_the_log(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    values = [deep, Hostile(), 10**5000, b"x" * 1000, {"k": [Hostile()] * 100}, "\ud800"]

    executor = executor_of(Recorder(answer=list(values)))
    results = [await executor.execute("Recorder", context, x=value) for value in values]

    assert all(result.success for result in results)
    assert all(len(message) < 1000 for message in caplog.messages)


async def test_log_records_carry_data_beside_the_message(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    named = context.model_copy(update={"agent_id": "agent-1"})

    await executor_of(Echo()).execute("Echo", named, message="x")

    started, ended = (vars(record) for record in caplog.records)
    assert (started["tool"], started["agent_id"]) == ("Echo", "agent-1")
    assert ended["duration_ms"] > 0


async def test_silent_loggers_cost_no_messages(context: ExecutionContext, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)

    await executor_of(Echo()).execute("Echo", context, message="x")

    assert caplog.records == []


# Memory, folders, life cycle


async def test_the_executor_starts_and_stops_its_tools() -> None:
    log: list[str] = []

    class Living(Echo):
        async def initialize(self, context: ExecutionContext) -> None:
            log.append(f"up in {context.working_dir}")

        async def shutdown(self) -> None:
            log.append("down")

    executor = executor_of(Living(), default_context=ExecutionContext(working_dir="/w"))

    await executor.initialize()
    await executor.shutdown()

    assert log == ["up in /w", "down"]


async def test_only_the_last_calls_are_kept(context: ExecutionContext) -> None:
    executor = executor_of(Echo(), history_limit=2)

    for message in "abc":
        await executor.execute("Echo", context, message=message)

    assert [record.result.output for record in executor.get_executions()] == ["b", "c"]
    assert executor.get_stats()["total_executions"] == 3


async def test_the_root_holds_for_the_call_and_no_longer(context: ExecutionContext, tmp_path: Path) -> None:
    class Where(Recorder):
        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> Any:
            return str(REACH.get().root)

    inside = await executor_of(Where(), reach=Reach(root=tmp_path)).execute("Recorder", context)
    without = await executor_of(Where()).execute("Recorder", context)

    assert (inside.output, without.output, REACH.get().root) == (str(tmp_path), "None", None)


async def test_calls_side_by_side_do_not_share_their_root(tmp_path: Path, context: ExecutionContext) -> None:
    class Where(Recorder):
        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> Any:
            await asyncio.sleep(0.01)
            return str(REACH.get().root)

    executors = [executor_of(Where(), reach=Reach(root=tmp_path / name)) for name in "ab"]

    results = await asyncio.gather(*(executor.execute("Recorder", context) for executor in executors))

    assert [result.output for result in results] == [str(tmp_path / "a"), str(tmp_path / "b")]
