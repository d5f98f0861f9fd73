"""Model clients hand their calls to the executor, and callers of the old style get text."""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import ollama
import pytest

from forge_tools.adapters.anthropic import Messages
from forge_tools.adapters.compat import TextTools
from forge_tools.adapters.conversation import Conversation
from forge_tools.adapters.ollama import Chat
from forge_tools.adapters.toolset import Toolset
from forge_tools.base import Capabilities, ExecutionContext
from forge_tools.executor import ToolExecutor
from forge_tools.registry import ScopedRegistry
from tests.model_servers.messages import MessagesServer
from tests.model_servers.ollama import OllamaServer
from tests.model_servers.wire import ModelServer, Say
from tests.spec.sample_tools import Echo, Write

spec = pytest.mark.spec


@pytest.fixture
def executor(registry: ScopedRegistry, context: ExecutionContext) -> ToolExecutor:
    registry.register(Echo())
    registry.register(Write())
    return ToolExecutor(registry, default_context=context)


async def converse(executor: ToolExecutor, server_of: type[ModelServer], model_of: Callable[[str], Any]) -> str:
    call = ("call_1", "Echo", '{"message": "hello"}')
    with server_of(Say(calls=(call,)), Say("Done.")) as server:
        model = model_of(server.url)
        turn = await Conversation(model, Toolset(executor)).run("Go")
        await model.client.close()
        assert "hello" in json.dumps(server.requests[-1]["messages"][-1])
    return turn.text


@spec("S2-01", "S2-16")
async def test_a_client_of_anthropic_hands_its_calls_to_the_executor(executor: ToolExecutor) -> None:
    def model(url: str) -> Messages:
        return Messages("m", anthropic.AsyncAnthropic(base_url=url, api_key="test"))

    assert await converse(executor, MessagesServer, model) == "Done."
    assert [call.parameters for call in executor.get_executions()] == [{"message": "hello"}]


@spec("S2-01", "S2-17")
async def test_a_client_of_ollama_hands_its_calls_to_the_executor(executor: ToolExecutor) -> None:
    assert await converse(executor, OllamaServer, lambda url: Chat("m", ollama.AsyncClient(host=url))) == "Done."
    assert [call.parameters for call in executor.get_executions()] == [{"message": "hello"}]


@spec("S1-05", "S1-53", "S1-54", "S1-55")
async def test_the_question_of_one_call_is_asked_for_that_call_alone(
    executor: ToolExecutor, context: ExecutionContext
) -> None:
    tools, before, asked = TextTools(executor, context=context), context.model_copy(deep=True), []
    args = {"file_path": "a.txt", "content": "a"}

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    assert await tools.execute_tool("Write", args, refuse) == "Error: Write was not run: the call was not confirmed."
    assert await tools.execute_tool("Write", args) == "written"
    assert (len(asked), context) == (1, before)


@spec("S1-12", "S1-60")
@pytest.mark.parametrize("flag", [None, "writes_files", "executes_commands", "accesses_network"])
async def test_what_a_tool_declares_decides_whether_it_needs_a_confirmation(
    registry: ScopedRegistry, context: ExecutionContext, flag: str | None
) -> None:
    class Declared(Echo):
        name = "Declared"
        capabilities = Capabilities(**{flag: True} if flag else {})

    asked = []

    async def confirm(message: str) -> bool:
        asked.append(message)
        return False

    registry.register(Declared())
    executor = ToolExecutor(registry, default_context=context)

    said = await TextTools(executor).execute_tool("Declared", {"message": "hello"}, confirm)

    refused = "Error: Declared was not run: the call was not confirmed."
    assert (said, len(asked), len(executor.get_executions())) == (("hello", 0, 1) if flag is None else (refused, 1, 0))


@spec("S1-56")
def test_the_declarations_come_with_the_text_tools(executor: ToolExecutor) -> None:
    names = [declaration["name"] for declaration in TextTools(executor).declarations("gemini")]

    assert names == ["Echo", "Write"]
