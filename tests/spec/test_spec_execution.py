"""What `execute` of a tool does, whatever the tool does."""

import asyncio
import inspect
import logging
from abc import ABC
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from forge_tools.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from forge_tools.errors import ToolError
from forge_tools.executor import ToolExecutor
from forge_tools.registry import ScopedRegistry
from tests.spec.sample_tools import Broken, Echo, Read, Recorder, Slow, Write, parameter

spec = pytest.mark.spec


@spec("S0-15", "S3-188")
def test_a_subclass_shows_what_it_declares() -> None:
    class TestTool(BaseTool):
        name = "test_tool"
        description = "A test tool for verification"
        category = ToolCategory.OTHER
        parameters = (parameter("message"),)

        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> ToolResult:
            return ToolResult.ok(kwargs)

    tool = TestTool()

    assert (tool.name, tool.description, tool.category) == (
        "test_tool",
        "A test tool for verification",
        ToolCategory.OTHER,
    )
    assert len(tool.parameters) == 1


@spec("S3-026..032")
def test_the_base_is_abstract_in_all_that_a_tool_must_say() -> None:
    assert issubclass(BaseTool, ABC)
    assert BaseTool.__abstractmethods__ == {"name", "description", "category", "parameters", "_execute"}
    assert inspect.iscoroutinefunction(BaseTool._execute)  # noqa: SLF001  the specification names it
    assert inspect.iscoroutinefunction(BaseTool.execute)
    with pytest.raises(TypeError, match="abstract"):
        BaseTool()


@spec("S0-29")
async def test_a_default_reaches_the_tool(context: ExecutionContext) -> None:
    tool = Recorder(parameter("timeout", "integer", required=False, default=120))

    await tool.execute(context)

    assert tool.calls == [{"timeout": 120}]


@spec("S0-30", "S3-190")
async def test_a_tool_is_called_with_its_parameters(context: ExecutionContext) -> None:
    result = await Echo().execute(context, message="Hello")

    assert (result.success, result.output) == (True, "Hello")


@spec("S3-054")
async def test_a_body_gets_the_context_and_the_parameters(context: ExecutionContext) -> None:
    class Body(Recorder):
        async def _execute(self, context: ExecutionContext, /, **kwargs: Any) -> Any:
            return context.working_dir, kwargs

    assert (await Body(parameter("x")).execute(context, x="y")).output == (context.working_dir, {"x": "y"})


@spec("S4-10")
async def test_the_largest_output_is_counted_in_characters(registry: ScopedRegistry, context: ExecutionContext) -> None:
    registry.register(Echo())
    small = context.model_copy(update={"max_output_size": 1_000})

    fits, cut = [await ToolExecutor(registry).execute("Echo", small, message="é" * count) for count in (1_000, 1_001)]

    assert (fits.output, cut.metadata["truncated"]) == ("é" * 1_000, True)
    assert 500 < len(cut.output) <= 1_000
    assert isinstance(small.timeout, float)


@spec("S0-31", "S3-052", "S3-053", "S4-14", "S3-189", "S2-21", "S1-37")
async def test_an_invalid_call_fails_before_the_body(context: ExecutionContext) -> None:
    tool = Recorder(parameter("file_path"))

    result = await tool.execute(context)

    assert (result.success, result.error) == (False, "Missing required parameter: file_path")
    assert (result.error_code, result.metadata["required"]) == ("VALIDATION_ERROR", ["file_path"])
    assert result.error_details == result.metadata["errors"] == ["Missing required parameter: file_path"]
    assert tool.calls == []


@spec("S0-32", "S3-055", "S3-056", "S3-191", "S4-16")
async def test_a_slow_tool_is_stopped_at_its_timeout() -> None:
    tool = Slow()

    result = await tool.execute(ExecutionContext(working_dir=".", timeout=0.05), seconds=60)

    assert (result.success, result.error, result.error_code) == (False, "Tool timed out after 0.05s", "TIMEOUT")
    assert tool.was_cancelled


@spec("S2-22")
async def test_without_a_timeout_of_the_caller_the_default_cancels_the_body(context: ExecutionContext) -> None:
    class Hasty(Slow):
        timeout = 0.05

    tool = Hasty()

    result = await tool.execute(context, seconds=60)

    assert (result.error, tool.was_cancelled) == ("Tool timed out after 0.05s", True)
    assert Slow().spec.timeout_for(context)[0] == 120


@spec("S0-33", "S3-059", "S3-060", "S3-192", "S4-15")
async def test_a_dry_run_touches_nothing(context: ExecutionContext, tmp_path: Any) -> None:
    dry = context.model_copy(update={"dry_run": True})

    result = await Write().execute(dry, file_path="foo", content="bar")

    assert result.success
    assert result.output == "[Dry Run] Would execute Write with {'file_path': 'foo', 'content': 'bar'}"
    assert result.metadata["dry_run"] is True
    assert list(tmp_path.iterdir()) == []


@spec("S1-21")
async def test_a_tool_may_preview_a_dry_run_itself(context: ExecutionContext) -> None:
    class Preview(Echo):
        async def _dry_run(self, context: ExecutionContext, message: str) -> ToolResult:
            return ToolResult.ok(f"[Dry Run] would say {message}")

    dry = context.model_copy(update={"dry_run": True})

    assert (await Preview().execute(dry, message="hi")).output == "[Dry Run] would say hi"
    assert not (await Preview().execute(dry)).success


@spec("S0-34", "S0-68", "S3-057", "S3-058", "S3-124", "S4-19", "S4-21", "S1-39")
async def test_an_exception_becomes_a_failed_result(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    result = await Broken(RuntimeError("the disk is on fire")).execute(context)

    assert (result.success, result.error) == (False, "Unexpected error: the disk is on fire")
    assert result.error_code == "EXECUTION_ERROR"
    assert result.to_dict("nested")["metadata"]["executionTimeMs"] == result.duration_ms > 0
    assert "Traceback" in caplog.text


@spec("S4-18")
async def test_an_error_of_the_framework_speaks_for_itself(context: ExecutionContext) -> None:
    result = await Broken(ToolError("Broken", "no such file")).execute(context)

    assert result.error == "Tool 'Broken' error: no such file"


@spec("S4-17")
async def test_a_cancellation_that_the_body_raises_is_a_failure(context: ExecutionContext) -> None:
    result = await Broken(asyncio.CancelledError()).execute(context)

    assert (result.success, result.error, result.error_code) == (False, "Tool execution cancelled", "EXECUTION_ERROR")


@spec("S1-14")
async def test_a_cancelled_caller_cancels_the_body(context: ExecutionContext) -> None:
    tool = Slow()
    call = asyncio.create_task(tool.execute(context, seconds=60))
    await tool.started.wait()

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert tool.was_cancelled


@spec("S2-20")
async def test_a_network_failure_says_that_the_service_is_unavailable(context: ExecutionContext) -> None:
    result = await Broken(ConnectionRefusedError("10.0.0.1:80 refused")).execute(context)

    assert (result.error, result.error_code) == ("Service unavailable: 10.0.0.1:80 refused", "SERVICE_UNAVAILABLE")


@spec("S4-20", "S2-14")
@pytest.mark.parametrize("tool", [Echo(), Broken(), Read()], ids=["succeeded", "failed", "invalid"])
async def test_every_way_out_has_a_duration(tool: BaseTool, context: ExecutionContext) -> None:
    dry = context.model_copy(update={"dry_run": True})
    arguments = {"message": "x"} if tool.name == "Echo" else {}

    durations = [(await tool.execute(each, **arguments)).duration_ms for each in (context, dry)]

    assert all(duration is not None and 0 <= duration < 10_000 for duration in durations)


@spec("S4-04")
async def test_the_steps_come_in_order(context: ExecutionContext) -> None:
    steps: list[str] = []

    class Steps(Recorder):
        def validate_params(self, /, **kwargs: Any) -> tuple[bool, str | None]:
            steps.append("validate")
            return super().validate_params(**kwargs)

        async def _dry_run(self, context: ExecutionContext, **kwargs: Any) -> ToolResult:
            steps.append("dry run")
            raise ValueError("no preview")

        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> ToolResult:
            steps.append("execute")
            return ToolResult.ok(1)

    await Steps().execute(context)
    failed = await Steps().execute(context.model_copy(update={"dry_run": True}))

    assert steps == ["validate", "execute", "validate", "dry run"]
    assert failed.error == "Unexpected error: no preview"


@spec("S1-62")
async def test_the_executor_goes_step_by_step(registry: ScopedRegistry) -> None:
    bodies: list[str] = []

    class Wait(Slow):
        async def _execute(self, context: ExecutionContext, seconds: float) -> ToolResult:
            bodies.append(context.working_dir)
            return await super()._execute(context, seconds)

    registry.register_many([Wait(), Broken()])
    executor = ToolExecutor(registry, default_context=ExecutionContext(working_dir="/given", timeout=0.02))
    calls = (("Nobody", {}), ("Slow", {"seconds": "x"}), ("Broken", {}), ("Slow", {"seconds": 60}))

    codes = [(await executor.call(name, arguments)).error_code for name, arguments in calls]

    assert codes == ["TOOL_NOT_FOUND", "VALIDATION_ERROR", "EXECUTION_ERROR", "TIMEOUT"]
    assert bodies == ["/given"]


@spec("S4-12")
async def test_a_tool_converts_milliseconds_itself(context: ExecutionContext) -> None:
    class Milliseconds(Slow):
        parameters = (parameter("timeout_ms", "integer"),)

        async def _execute(self, context: ExecutionContext, timeout_ms: int) -> ToolResult:
            return await super()._execute(context, timeout_ms / 1000)

    assert (await Milliseconds().execute(context, timeout_ms=1)).output == "done"


@spec("S1-61")
async def test_a_tool_is_judged_alone_against_a_set_of_cases(context: ExecutionContext) -> None:
    cases = [("a", "a"), ("", ""), ("é", "é")]

    outputs = [(await Echo().execute(context, message=given)).output for given, _ in cases]

    assert outputs == [expected for _, expected in cases]


@spec("S1-01")
async def test_a_tool_is_tried_alone_with_a_stand_in_for_what_it_depends_on(context: ExecutionContext) -> None:
    class Weather(Recorder):
        def __init__(self, ask: Callable[[str], str]) -> None:
            super().__init__(parameter("city"))
            self.ask = ask

        async def _execute(self, context: ExecutionContext, /, **kwargs: Any) -> Any:
            return self.ask(kwargs["city"])

    service = Mock(return_value="rain")

    assert (await Weather(service).execute(context, city="Oslo")).output == "rain"
    service.assert_called_once_with("Oslo")


@spec("S1-03", "S1-09", "S1-13")
async def test_files_and_logger_come_to_the_tool_instead_of_globals(
    context: ExecutionContext, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notes.txt").write_text("hello")

    class Look(Recorder):
        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> ToolResult:
            self.logger.warning("looking")
            with self.workspace(context).open_file(kwargs["path"]) as file:
                return ToolResult.ok(file.name)

    inside = await Look(parameter("path")).execute(context, path="notes.txt")
    outside = await Look(parameter("path")).execute(context, path="../notes.txt")

    assert (inside.output, outside.success) == ("notes.txt", False)
    assert ("forge_tools.tools.Recorder", logging.WARNING, "looking") in caplog.record_tuples


@spec("S1-06")
async def test_a_failure_leaves_other_tools_alone(context: ExecutionContext) -> None:
    results = await asyncio.gather(Broken().execute(context), Echo().execute(context, message="fine"))

    assert [result.success for result in results] == [False, True]
