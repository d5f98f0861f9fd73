"""Agents of Pydantic AI with our toolset: scripted models, and its real providers on local servers."""

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import openai
import pytest
from google import genai
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from forge_tools.adapters import pydantic_ai as adapter
from forge_tools.adapters.pydantic_ai import pydantic_ai_toolset
from forge_tools.errors import ToolNotFoundError
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.model_servers.chat import ChatServer
from tests.model_servers.gemini import GeminiServer
from tests.model_servers.responses import ResponsesServer
from tests.model_servers.wire import ModelServer, Say

Asked = tuple[str, str, Any]
"""The id, name and arguments of a call."""


def scripted(*replies: Sequence[Asked] | str) -> FunctionModel:
    """A model that makes these calls, and says these texts."""
    waiting = iter(replies)

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = next(waiting)
        if isinstance(said, str):
            return ModelResponse([TextPart(said)])
        return ModelResponse([ToolCallPart(name, arguments, key) for key, name, arguments in said])

    return FunctionModel(reply)


def returned(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def told(messages: list[ModelMessage]) -> list[tuple[str, Any, str]]:
    return [(part.tool_call_id, part.content, part.outcome) for part in returned(messages)]


async def test_a_result_is_text_and_its_fields_are_the_metadata(executor: ToolExecutor) -> None:
    agent = Agent(
        scripted([("1", "Echo", {"message": "hëllo"}), ("2", "Table", "{}")], "Done."),
        toolsets=[pydantic_ai_toolset(executor)],
    )

    run = await agent.run("Go")

    echo, table = returned(run.all_messages())
    assert (run.output, echo.content, json.loads(table.content)) == ("Done.", "hëllo", {"columns": []})
    assert echo.metadata == executor.get_executions()[0].result.model_dump(exclude={"output"})


class Odd(BaseTool):
    """Return what JSON cannot hold."""

    name = "Odd"
    category = ToolCategory.OTHER
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok({"half": "\ud83d", "bytes": b"\xff"}, half="\ud83d", bytes=b"\xff", keys={("a", "b"): 1})


async def test_whatever_a_tool_returns_the_history_can_be_stored(
    executor: ToolExecutor, registry: ScopedRegistry
) -> None:
    registry.register(Odd())
    agent = Agent(scripted([("1", "Odd", {})], "Done."), toolsets=[pydantic_ai_toolset(executor)])

    run = await agent.run("Go")

    [part] = returned(run.all_messages())
    assert part.metadata["metadata"] == {"half": "?", "bytes": "b'\\xff'", "keys": {}}
    assert len(json.loads(run.all_messages_json())) == 4


async def test_every_tool_can_be_called_with_what_its_schema_says(executor: ToolExecutor) -> None:
    names = ["Echo", "Read", "Bash", "Table"]
    agent = Agent(TestModel(), toolsets=[pydantic_ai_toolset(executor, names=names)])

    run = await agent.run("Go")

    assert {part.tool_name: part.outcome for part in returned(run.all_messages())} == dict.fromkeys(names, "success")


async def test_what_is_wrong_with_a_call_is_retried_and_what_failed_is_told(executor: ToolExecutor) -> None:
    asked = [("1", "Read", {"file": "x"}), ("2", "Broken", {}), ("3", "Echo", '{"message'), ("4", "Échö", "{}")]
    agent = Agent(scripted(asked, "I see."), toolsets=[pydantic_ai_toolset(executor)])

    run = await agent.run("Go")

    invalid, broken, malformed, unknown = told(run.all_messages())
    problems = (
        "Error: Unknown parameter 'file' (did you mean 'file_path'?)\nError: Missing required parameter: file_path"
    )
    assert invalid == ("1", problems, "retried")
    assert broken == ("2", "Error: Unexpected error: the disk is on fire", "failed")
    assert (malformed[1][0]["type"], malformed[2]) == ("json_invalid", "retried")
    assert (unknown[1].startswith("Unknown tool name: 'Échö'"), unknown[2]) == (True, "retried")


async def test_wrong_calls_end_the_run_after_the_retries_of_the_agent_or_of_the_toolset(executor: ToolExecutor) -> None:
    wrong = [("1", "Echo", {"mesage": "x"})]

    for retries, limit in ((3, None), (0, 3)):
        toolset = pydantic_ai_toolset(executor, max_retries=limit)
        agent = Agent(scripted(*[wrong] * 3, "Done."), toolsets=[toolset], retries=retries)
        assert (await agent.run("Go")).output == "Done."

        with pytest.raises(UnexpectedModelBehavior, match="Echo"):
            await agent.run("Go", model=scripted(*[wrong] * 9))


async def test_failures_do_not_use_up_the_retries(executor: ToolExecutor) -> None:
    agent = Agent(scripted(*[[("1", "Broken", {})]] * 5, "Done."), toolsets=[pydantic_ai_toolset(executor)], retries=0)

    assert (await agent.run("Go")).output == "Done."


async def test_a_model_that_calls_for_ever_ends_at_the_limit_of_the_run(executor: ToolExecutor) -> None:
    agent = Agent(scripted(*[[("1", "Echo", {"message": "x"})]] * 9), toolsets=[pydantic_ai_toolset(executor)])

    with pytest.raises(UsageLimitExceeded, match="request_limit of 3"):
        await agent.run("Go", usage_limits=UsageLimits(request_limit=3))

    assert len(executor.get_executions()) == 3


async def test_fifty_calls_of_one_reply_run_together_and_are_answered_in_their_order(executor: ToolExecutor) -> None:
    asked = [(str(n), "Meet", {"who": str(n), "count": 50}) for n in range(50)]
    agent = Agent(scripted(asked, "Done."), toolsets=[pydantic_ai_toolset(executor)])

    run = await agent.run("Meet")

    assert told(run.all_messages()) == [(str(n), f"{n} met", "success") for n in range(50)]


async def test_a_cancelled_run_cancels_its_calls(executor: ToolExecutor, registry: ScopedRegistry) -> None:
    slow: Any = registry.get("Slow")
    agent = Agent(scripted([("1", "Slow", {"seconds": 60})]), toolsets=[pydantic_ai_toolset(executor)])
    run = asyncio.ensure_future(agent.run("Go"))
    await asyncio.wait_for(slow.started.wait(), 5)

    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run
    assert slow.was_cancelled


class Deploy(BaseTool):
    """Deploy the service."""

    name = "Deploy"
    category = ToolCategory.EXECUTION
    capabilities = Capabilities(executes_commands=True)
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok("deployed")


@pytest.mark.parametrize("decision", [True, ToolDenied("Not today.")])
async def test_tools_with_an_effect_wait_for_approval_where_the_agent_wants_it(
    executor: ToolExecutor, registry: ScopedRegistry, decision: Any
) -> None:
    registry.register(Deploy())
    toolset = pydantic_ai_toolset(executor).approval_required(
        lambda ctx, tool, arguments: tool.metadata["capabilities"]["executes_commands"]
    )
    model = scripted([("1", "Echo", {"message": "x"}), ("2", "Deploy", {})], "Done.")
    agent = Agent(model, toolsets=[toolset], output_type=[str, DeferredToolRequests])

    asked = await agent.run("Go")
    [waiting] = asked.output.approvals
    before = [call.tool_name for call in executor.get_executions()]
    results = DeferredToolResults(approvals={waiting.tool_call_id: decision})
    done = await agent.run(message_history=asked.all_messages(), deferred_tool_results=results)

    after = [call.tool_name for call in executor.get_executions()]
    assert (waiting.tool_name, before, done.output) == ("Deploy", ["Echo"], "Done.")
    assert after == (["Echo", "Deploy"] if decision is True else ["Echo"])


async def test_agents_filter_and_rename_the_tools_their_own_way(executor: ToolExecutor) -> None:
    model = TestModel(call_tools=[])
    toolset = pydantic_ai_toolset(executor, id="forge").filtered(lambda ctx, tool: "data" in tool.metadata["tags"])

    await Agent(model, toolsets=[toolset.prefixed("my")]).run("Go")

    [tool] = model.last_model_request_parameters.function_tools
    assert (tool.name, tool.metadata["category"], tool.metadata["version"]) == ("my_Table", "other", "1.0.0")


async def test_a_toolset_of_each_run_brings_its_context(executor: ToolExecutor) -> None:
    agent = Agent(scripted(*[[("1", "Echo", {"message": "x"})], "Done."] * 2), deps_type=ExecutionContext)

    @agent.toolset
    def tools(ctx: Any) -> Any:
        return pydantic_ai_toolset(executor, context=ctx.deps)

    for session in ("a", "b"):
        await agent.run("Go", deps=ExecutionContext(working_dir=".", session_id=session))

    assert [call.context.session_id for call in executor.get_executions()] == ["a", "b"]


@pytest.fixture
def loop() -> Iterator[None]:
    """`run_sync` makes a loop where there is none, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.usefixtures("loop")
def test_a_script_without_a_loop_runs_an_agent(executor: ToolExecutor) -> None:
    agent = Agent(scripted([("1", "Echo", {"message": "x"})], "Done."), toolsets=[pydantic_ai_toolset(executor)])

    assert agent.run_sync("Go").output == "Done."


def test_a_name_that_no_tool_has_cannot_be_offered(executor: ToolExecutor) -> None:
    with pytest.raises(ToolNotFoundError, match="did you mean 'Echo'"):
        pydantic_ai_toolset(executor, names=["Ech"])


def test_without_pydantic_ai_the_extra_is_named(executor: ToolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.reload(adapter)  # it keeps what it has made
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)

    with pytest.raises(ImportError, match=r'pip install "forge-tools\[pydantic-ai\]"'):
        pydantic_ai_toolset(executor)


def chat_model(url: str) -> Any:
    return OpenAIChatModel("gpt-5.5", provider=openai_provider(url))


def responses_model(url: str) -> Any:
    return OpenAIResponsesModel("gpt-5.5", provider=openai_provider(url))


def openai_provider(url: str) -> OpenAIProvider:
    return OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=url, api_key="test", max_retries=0))


def google_model(url: str) -> Any:
    client = genai.Client(api_key="test", http_options={"base_url": url})
    return GoogleModel("gemini-3.1-pro", provider=GoogleProvider(client=client))


async def drained(ctx: Any, events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize(
    ("server_of", "model_of"),
    [(ChatServer, chat_model), (ResponsesServer, responses_model), (GeminiServer, google_model)],
)
async def test_what_providers_are_sent_is_what_they_take(
    executor: ToolExecutor, server_of: type[ModelServer], model_of: Callable[[str], Any], streams: bool
) -> None:
    calls = (("call_1", "Echo", '{"message": "hëllo"}'), ("call_2", "Broken", "{}"), ("call_3", "Echo", "{}"))
    with server_of(Say("I look.", calls), Say("Done.")) as server:
        agent = Agent(model_of(server.url), toolsets=[pydantic_ai_toolset(executor)])

        run = await agent.run("Go", event_stream_handler=drained if streams else None)

    assert (run.output, server.refusals) == ("Done.", [])
    assert [outcome for _, _, outcome in told(run.all_messages())] == ["success", "failed", "retried"]
    sent = json.dumps(server.requests[-1], ensure_ascii=False)
    assert all(text in sent for text in ("hëllo", "the disk is on fire", "Missing required parameter: message"))
