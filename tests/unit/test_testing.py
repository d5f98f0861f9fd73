"""The executor that ships for the tests of tools: three lines a test, and no friendlier than a worker."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import ConfigurationError, DuplicateToolError, ErrorCode, InvalidToolError
from forge_tools.model import Output, Progress, ToolParameter
from forge_tools.model.scope import Report
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.testing import InlineExecutor
from forge_tools.tool import tool
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from forge_tools.tools.file.read import Read


@tool
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@tool
async def where(context: ExecutionContext) -> dict[str, Any]:
    """Tell where this runs."""
    return {"folder": context.working_dir, "agent": context.agent_id}


class Living(BaseTool):
    """Tell whether it was started."""

    name = "Living"
    category = ToolCategory.OTHER
    parameters: tuple[ToolParameter, ...] = ()

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def initialize(self, context: ExecutionContext) -> None:
        self.log.append("up")

    async def shutdown(self) -> None:
        self.log.append("down")

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok(tuple(self.log))


def test_a_tool_is_tested_in_three_lines() -> None:
    with InlineExecutor(greet) as tools:
        result = tools.run("greet", name="Ada")
        assert result.output == "Hello, Ada!"


def test_tools_see_a_temporary_workspace_with_the_files_given() -> None:
    with InlineExecutor(Read, where, files={"src/a.py": "print(1)\n", "b.bin": b"\x00"}) as tools:
        workspace = tools.workspace
        read = tools.run("Read", file_path="src/a.py")

        assert "print(1)" in read.output
        assert tools.run("where").output["folder"] == str(workspace)
        assert (workspace / "b.bin").read_bytes() == b"\x00"
        assert not tools.run("Read", file_path="/etc/hostname").success
    assert not workspace.exists()


def test_functions_on_threads_are_confined_to_the_workspace_too() -> None:
    @tool
    def read(path: str, context: ExecutionContext) -> str:
        """Read a file."""
        with Workspace.for_context(context).open_file(path) as file:
            return os.read(file.fd, 100).decode()

    with InlineExecutor(read, files={"a.txt": "here"}) as tools:
        assert tools.run("read", path="a.txt").output == "here"
        assert tools.run("read", path="/etc/hostname").error_code == "PATH_OUTSIDE_WORKSPACE"


def test_the_context_of_each_call_is_recorded() -> None:
    with InlineExecutor(where, greet, context={"agent_id": "agent-7"}) as tools:
        assert tools.run("where").output["agent"] == "agent-7"
        assert tools.last.context.agent_id == "agent-7"

        tools.run("greet", name="Ada")
        assert (tools.last.tool_name, tools.last.parameters) == ("greet", {"name": "Ada"})
        assert len(tools.get_executions()) == 2


def test_without_a_call_there_is_no_last_one() -> None:
    with InlineExecutor(greet) as tools, pytest.raises(LookupError, match="No tool has been called yet"):
        _ = tools.last


def test_hooks_run_as_on_a_worker() -> None:
    log: list[str] = []

    with InlineExecutor(Living(log)) as tools:
        assert tools.run("Living").output == ["up"]

    assert log == ["up", "down"]


async def test_coroutines_await_the_same_executor() -> None:
    log: list[str] = []

    async with InlineExecutor(Living(log), greet) as tools:
        assert (await tools.execute("greet", tools.context, name="Ada")).output == "Hello, Ada!"
        assert (await tools.call("Living", {})).output == ["up"]

    assert log == ["up", "down"]


async def test_in_a_coroutine_it_says_how_to_be_entered() -> None:
    with pytest.raises(ConfigurationError, match="async with"), InlineExecutor(greet):
        pass


def test_outside_with_it_says_so() -> None:
    with pytest.raises(ConfigurationError, match="Enter it first"):
        InlineExecutor(greet).run("greet", name="Ada")


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), float("nan")])
def test_parameters_that_cannot_travel_to_a_worker_are_refused(value: Any) -> None:
    with InlineExecutor(greet) as tools:
        result = tools.run("greet", name=value)

    assert result.error_code == ErrorCode.VALIDATION_ERROR
    assert "parameters.name" in str(result.error)


def test_an_output_that_cannot_be_stored_fails_as_on_a_worker() -> None:
    @tool
    def thing() -> object:
        """Return what JSON has no word for."""
        return object()

    with InlineExecutor(thing) as tools:
        result = tools.run("thing")

    assert result.error_code == ErrorCode.UNSTORABLE
    assert result.error is not None
    assert result.error.startswith("The tool ran, but its result cannot be stored: output: an object of type object")


def test_metadata_travels_like_an_output() -> None:
    @tool
    def tagged(is_json: bool) -> ToolResult:
        """Tag the result."""
        return ToolResult.ok("ok", tags=("a", "b") if is_json else {"a", "b"})

    with InlineExecutor(tagged) as tools:
        assert tools.run("tagged", is_json=True).metadata == {"tags": ["a", "b"]}
        result = tools.run("tagged", is_json=False)

    assert result.error_code == ErrorCode.UNSTORABLE
    assert (result.error or "").startswith("The tool ran, but its result cannot be stored: metadata.tags: a set")


def test_failures_are_results_here_too() -> None:
    with InlineExecutor(greet) as tools:
        assert tools.run("greet").error == "Missing required parameter: name"
        assert tools.run("gret", name="Ada").error_code == ErrorCode.TOOL_NOT_FOUND


def test_a_definition_that_a_provider_would_refuse_is_refused_here() -> None:
    odd = ToolParameter(name="x", type="colour", description="What JSON does not have.")

    class Odd(Living):
        """Odd."""

        name = "Odd"
        parameters = (odd,)

        async def _execute(self, context: ExecutionContext, x: Any) -> ToolResult:
            return ToolResult.ok(x)

    with pytest.raises(InvalidToolError, match="not a JSON type"):
        InlineExecutor(Odd([]))
    with pytest.raises(DuplicateToolError):
        InlineExecutor(greet, greet)


def test_a_hook_that_fails_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Living, context: ExecutionContext) -> None:
        raise RuntimeError("no licence")

    monkeypatch.setattr(Living, "initialize", fail)
    executor = InlineExecutor(Living([]))

    with pytest.raises(Exception, match="no licence"), executor:
        pass

    assert not Path(executor.workspace).exists()


def test_a_blocking_function_is_ended_by_its_timeout() -> None:
    import time

    @tool(timeout=0.05)
    def stuck() -> str:
        """Sleep."""
        time.sleep(8)
        return "late"

    with InlineExecutor(stuck) as tools:
        started = time.monotonic()
        assert tools.run("stuck").error_code == ErrorCode.TIMEOUT
        assert time.monotonic() - started < 7
    assert asyncio.run(asyncio.sleep(0, "the next loop works")) == "the next loop works"


def test_what_a_tool_reports_can_be_asserted_on() -> None:
    @tool
    def build(context: ExecutionContext, files: int) -> str:
        """Compile."""
        for number in range(1, files + 1):
            context.progress(number, files)
            context.emit(f"{number}\n")
        return "built"

    with InlineExecutor(build) as tools:
        tools.run("build", files=2)

        assert tools.reports == [
            Progress(done=1, total=2),
            Output(text="1\n"),
            Progress(done=2, total=2),
            Output(text="2\n"),
        ]
        tools.clear_executions()
        assert tools.reports == []


async def test_a_listener_of_one_call_hears_it_too() -> None:
    @tool
    async def say(context: ExecutionContext) -> None:
        """Say something."""
        context.emit("something")

    heard: list[Report] = []
    async with InlineExecutor(say) as tools:
        await tools.call("say", {}, on_report=heard.append)
        await tools.call("say", {})

    assert heard == [Output(text="something")]
    assert len(tools.reports) == 2


@pytest.mark.parametrize("found", [{1: "a", "1": "b"}, [{"x": {None: 0, "None": 1}}]])
def test_no_key_of_a_result_is_dropped_silently(found: object) -> None:
    @tool
    def count() -> Any:
        """Count."""
        return found

    @tool
    def number() -> dict[int, str]:
        """Number."""
        return {1: "a", 2: "b"}

    with InlineExecutor(count, number) as tools:
        assert "is not a string. Use string keys." in str(tools.run("count").error)
        assert tools.run("number").output == {"1": "a", "2": "b"}
