"""Calls that return text, confirmation by a person before harmful ones, and tools as functions."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.adapters.compat import SyncTextTools, TextTools
from forge_tools.errors import ToolError, ToolNotFoundError
from forge_tools.model import CallOptions
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.spec.sample_tools import Write, parameter


class Login(BaseTool):
    """Log in somewhere."""

    name = "Login"
    category = ToolCategory.WEB
    capabilities = Capabilities(accesses_network=True, executes_commands=True)
    parameters = (ToolParameter(name="key", type="string", description="The key.", sensitive=True),)

    async def _execute(self, context: ExecutionContext, key: str) -> ToolResult:
        return ToolResult.ok("in")


class Unreachable(BaseTool):
    """Ask a server that is not there."""

    name = "Unreachable"
    category = ToolCategory.WEB
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        await asyncio.open_connection("127.0.0.1", port)
        return ToolResult.ok("there")


class Data(BaseTool):
    """Return what it is given."""

    name = "Data"
    category = ToolCategory.OTHER
    parameters = (parameter("value", "any"),)

    async def _execute(self, context: ExecutionContext, value: Any) -> ToolResult:
        return ToolResult.ok(value)


class Person:
    """Answers questions, and remembers them with the thread that asked."""

    def __init__(self, answer: Any = True) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, question: str) -> Any:
        self.asked.append(question)
        self.threads.append(threading.current_thread())
        return self.answer


@pytest.fixture
def executor(executor: ToolExecutor, registry: ScopedRegistry) -> ToolExecutor:
    for tool in (Write(), Login(), Unreachable(), Data()):
        registry.register(tool)
    return executor


@pytest.fixture
def tools(executor: ToolExecutor, tmp_path: Path) -> TextTools:
    return TextTools(executor, context=ExecutionContext(working_dir=str(tmp_path)))


WRITE = {"file_path": "a.txt", "content": "a"}


@pytest.mark.parametrize("value", ["plain", "", "{}", 'say "hi"'])
async def test_text_is_returned_as_it_is(tools: TextTools, value: str) -> None:
    assert await tools.execute_tool("Data", {"value": value}) == value


@pytest.mark.parametrize("value", [{"é": [1, {"b": None}]}, [], 3, True, [1.5]])
async def test_data_is_returned_as_json_with_indent_2(tools: TextTools, value: Any) -> None:
    assert await tools.execute_tool("Data", {"value": value}) == json.dumps(value, indent=2, ensure_ascii=False)


async def test_a_failure_is_the_text_error_with_its_message(tools: TextTools) -> None:
    assert await tools.execute_tool("Broken", {}) == "Error: Unexpected error: the disk is on fire"
    assert await tools.execute_tool("Reed", {}) == "Error: Unknown tool: Reed (did you mean 'Read'?)"


async def test_bad_arguments_are_told_what_the_tool_takes(tools: TextTools) -> None:
    text = await tools.execute_tool("Read", {"file": "x", "limit": "many"})

    problems, takes = text.rsplit("\n", 1)
    assert problems.startswith("Error: ")
    assert "Missing required parameter: file_path" in problems
    assert "Invalid type for limit: expected integer" in problems
    assert takes == "Read requires file_path (string: Absolute path to the file). Optional: offset, limit."


async def test_a_tool_that_requires_nothing_says_so(tools: TextTools) -> None:
    text = await tools.execute_tool("Table", {"columns": 3})

    assert text.endswith("\nTable requires no parameters. Optional: columns.")


async def test_a_network_that_fails_is_a_service_that_is_unavailable(tools: TextTools) -> None:
    assert (await tools.execute_tool("Unreachable")).startswith("Error: Service unavailable: ")


@pytest.mark.parametrize("args", ['{"message": "x"}', {"message": "x"}, '  {"message": "x"}\n'])
async def test_arguments_are_an_object_or_its_json_text(tools: TextTools, args: Any) -> None:
    assert await tools.execute_tool("Echo", args) == "x"


@pytest.mark.parametrize("args", ['{"message": "x', "[1]", [1], "'x'", 3])
async def test_other_arguments_are_an_error(tools: TextTools, args: Any) -> None:
    text = await tools.execute_tool("Echo", args)

    assert text.startswith("Error: The arguments of Echo ")
    assert "Echo requires message" in text


async def test_a_tool_that_writes_runs_once_it_is_confirmed(tools: TextTools, tmp_path: Path) -> None:
    person = Person()

    assert await tools.execute_tool("Write", WRITE, person) == "written"

    assert person.asked == ["Write may write files. Run it with {'file_path': 'a.txt', 'content': 'a'}?"]
    assert (tmp_path / "a.txt").read_text() == "a"


@pytest.mark.parametrize("answer", [False, None, 0, "no", "yes", 1])
async def test_whatever_is_not_true_is_a_refusal_which_is_a_text(tools: TextTools, tmp_path: Path, answer: Any) -> None:
    text = await tools.execute_tool("Write", WRITE, Person(answer))

    assert text == "Error: Write was not run: the call was not confirmed."
    assert not (tmp_path / "a.txt").exists()


async def test_the_question_may_be_awaited(tools: TextTools, tmp_path: Path) -> None:
    async def refuse(question: str) -> bool:
        await asyncio.sleep(0)
        return False

    assert "not confirmed" in await tools.execute_tool("Write", WRITE, refuse)
    assert not (tmp_path / "a.txt").exists()


async def test_what_the_question_raises_passes_and_nothing_runs(tools: TextTools, tmp_path: Path) -> None:
    def leave(question: str) -> bool:
        raise KeyError("left")

    with pytest.raises(KeyError, match="left"):
        await tools.execute_tool("Write", WRITE, leave)

    assert not (tmp_path / "a.txt").exists()


async def test_commands_and_the_network_are_asked_about_and_no_secret_is_shown(tools: TextTools) -> None:
    person = Person()

    assert await tools.execute_tool("Login", {"key": "hunter2"}, person) == "in"

    [question] = person.asked
    assert question.startswith("Login may execute commands and reach the network. ")
    assert "hunter2" not in question


async def test_a_tool_that_only_reads_is_not_asked_about(tools: TextTools) -> None:
    person = Person(False)

    assert await tools.execute_tool("Read", {"file_path": "x"}, person) == "x None None"
    assert person.asked == []


@pytest.mark.parametrize("args", [b'{"key": "hunter2"}', '{"key": "x", "key": "hunter2"}', None, "", {}])
async def test_no_form_of_arguments_passes_a_person_by(tools: TextTools, executor: ToolExecutor, args: Any) -> None:
    person = Person(False)

    assert "not confirmed" in await tools.execute_tool("Login", args, person)
    assert len(person.asked) == 1
    assert executor.get_executions() == []


@pytest.mark.parametrize("args", ["null", '"{\\"key\\": \\"x\\"}"', "{", "[" * 10_000, b"\xff", ["key"]])
async def test_what_is_not_an_object_never_runs_and_is_not_asked_about(
    tools: TextTools, executor: ToolExecutor, args: Any
) -> None:
    person = Person()

    assert "must be one JSON object" in await tools.execute_tool("Login", args, person)
    assert (person.asked, executor.get_executions()) == ([], [])


async def test_a_person_sees_the_whole_of_what_is_confirmed_on_one_line(tools: TextTools) -> None:
    person = Person(False)
    content = "echo fine # " + "x" * 10_000 + "\n\u202erm -rf /\x1b[2K"

    await tools.execute_tool("Write", {"file_path": "a", "content": content}, person)

    assert "\\nrm -rf /" in person.asked[0].replace("\\u202e", "")
    assert person.asked[0].isprintable()


async def test_arguments_that_are_nested_too_deeply_to_be_shown_do_not_run(
    tools: TextTools, executor: ToolExecutor
) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    person = Person()

    text = await tools.execute_tool("Write", WRITE | {"content": deep}, person)

    assert text.startswith("Error: The arguments of Write are nested too deeply to be displayed.")
    assert (person.asked, executor.get_executions()) == ([], [])


async def test_a_tool_that_is_not_known_here_is_asked_about_since_the_executor_may_know_it(tools: TextTools) -> None:
    person = Person(False)

    assert (
        await tools.execute_tool("Later", {"x": 1}, person) == "Error: Later was not run: the call was not confirmed."
    )
    assert person.asked == ["It is not known here what Later may do. Run it with {'x': 1}?"]


async def test_an_alias_is_asked_about_as_its_tool(executor: ToolExecutor, registry: ScopedRegistry) -> None:
    class Save(Write):
        name = "Save"
        aliases = ("save_file",)

    registry.register(Save())
    person = Person(False)

    await TextTools(executor).execute_tool("save_file", WRITE, person)

    assert person.asked[0].startswith("Save may write files.")


async def test_a_dry_run_changes_nothing_and_asks_nobody(executor: ToolExecutor, tmp_path: Path) -> None:
    person = Person(False)
    tools = TextTools(executor, context=ExecutionContext(working_dir=str(tmp_path), dry_run=True))

    assert (await tools.execute_tool("Write", WRITE, person)).startswith("[Dry Run]")
    assert person.asked == []


async def test_options_of_calls_are_passed_on(executor: ToolExecutor) -> None:
    tools = TextTools(executor, options=CallOptions(timeout=0.01))

    assert await tools.execute_tool("Slow", {"seconds": 60}) == "Error: Tool timed out after 0.01s"


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini", "ollama", "mcp"])
def test_the_declarations_are_those_of_the_executor(tools: TextTools, executor: ToolExecutor, format: str) -> None:
    assert tools.declarations(format) == executor.get_all_schemas(format)


def test_a_format_that_is_not_known_is_refused(executor: ToolExecutor) -> None:
    with pytest.raises(ValueError, match="Unknown schema format"):
        TextTools(executor).declarations("xml")


async def test_each_tool_is_a_function_from_one_object_to_text(tools: TextTools) -> None:
    functions = tools.functions()

    assert await functions["Echo"]({"message": "x"}) == "x"
    assert await functions["Table"]({}) == '{\n  "columns": []\n}'
    assert await tools.function("read_file")({"file_path": "x"}) == "x None None"


async def test_a_function_raises_what_may_be_shown(tools: TextTools) -> None:
    with pytest.raises(ToolError) as broken:
        await tools.function("Broken")({})
    with pytest.raises(ToolError) as invalid:
        await tools.function("Echo")({})

    assert (broken.value.tool_name, broken.value.message) == ("Broken", "Unexpected error: the disk is on fire")
    assert invalid.value.message.endswith("Echo requires message (string: The message).")


def test_there_is_no_function_of_an_unknown_tool(tools: TextTools) -> None:
    with pytest.raises(ToolNotFoundError, match="did you mean 'Read'"):
        tools.function("Reed")


Sync = Callable[..., str]


async def test_the_synchronous_face_works_where_a_loop_runs_and_asks_on_the_caller_s_thread(
    executor: ToolExecutor, tmp_path: Path
) -> None:
    tools, person = SyncTextTools(executor, context=ExecutionContext(working_dir=str(tmp_path))), Person()

    assert tools.execute_tool("Write", WRITE, person) == "written"
    assert tools.execute_tool("Data", {"value": [1]}) == "[\n  1\n]"
    assert person.threads == [threading.current_thread()]


def test_the_synchronous_face_refuses_and_fails_as_the_other_does(executor: ToolExecutor) -> None:
    tools = SyncTextTools(executor)

    assert tools.execute_tool("Write", WRITE, Person("yes")) == "Error: Write was not run: the call was not confirmed."
    assert tools.execute_tool("Broken") == "Error: Unexpected error: the disk is on fire"
    assert tools.functions()["Echo"]({"message": "x"}) == "x"
    assert tools.declarations("mcp") == executor.get_all_schemas("mcp")
    with pytest.raises(ToolError, match="the disk is on fire"):
        tools.function("Broken")({})
