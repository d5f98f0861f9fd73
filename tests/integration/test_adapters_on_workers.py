"""Conversations whose tools run on workers: each SDK against a local server, and a LangGraph agent."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from forge_tools.adapters.conversation import Conversation
from forge_tools.adapters.langchain import langchain_tools
from forge_tools.adapters.toolset import ToolCall, Toolset
from forge_tools.client import ExecutorClient, SyncExecutorClient
from forge_tools.model import ExecutionContext, ExecutionStatus
from tests.fleet import ROOT, Fleet
from tests.model_servers.providers import CHAT, GEMINI, MESSAGES, PROVIDERS, RESPONSES, Provider, Stage, close
from tests.model_servers.wire import Say
from tests.warm import WarmInterpreter

DATABASES = ("sqlite",)

GEMINIS_OWN = "ignore:Inheritance class AiohttpClientSession:DeprecationWarning"
LANGSMITHS_OWN = "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"
CALLS = (
    ("call_1", "Sleep", '{"seconds": 0.5}'),
    ("call_2", "EchoInProcess", '{"message": "from a process"}'),
    ("call_3", "Echoo", '{"message": "x"}'),
    ("call_4", "Login", '{"user": "ada", "password": "hunter22"}'),
    ("call_5", "Echo", '{"message": 3}'),
)
TOLD = [
    ("call_1", "slept 0.5s", False),
    ("call_2", "from a process", False),
    ("call_3", "Error: Unknown tool: Echoo (did you mean 'Echo'?)", True),
    ("call_4", "ada has a password of 8 characters", False),
    ("call_5", "Error: Invalid type for message: expected string", True),
]


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_the_calls_of_a_message_run_on_workers_and_each_is_a_row(
    client: ExecutorClient, context: ExecutionContext, provider: Provider, streams: bool
) -> None:
    context = context.model_copy(update={"session_id": f"{provider.name}-{streams}"})
    with provider.server(Say("I look.", CALLS), Say("Done.")) as server:
        model = provider.model(server.url)
        conversation = Conversation(
            model, Toolset(client, context=context), on_event=(lambda event: None) if streams else None
        )

        turn = await conversation.run("Go")

        await close(model.client)
        told = Stage(conversation, Toolset(client), server, model).told()
    rows = await client.history.list(session_id=context.session_id)
    assert (turn.text, told, server.refusals) == ("Done.", TOLD, [])
    assert {row.tool: row.status for row in rows} == {
        "Sleep": ExecutionStatus.SUCCEEDED,
        "EchoInProcess": ExecutionStatus.SUCCEEDED,
        "Echoo": ExecutionStatus.REJECTED,
        "Login": ExecutionStatus.SUCCEEDED,
        "Echo": ExecutionStatus.REJECTED,
    }


async def test_calls_of_one_message_run_at_the_same_time(client: ExecutorClient, context: ExecutionContext) -> None:
    calls = [ToolCall(str(n), "Sleep", {"seconds": 0.5}) for n in range(20)]

    answers = await Toolset(client, context=context).answer(calls)

    rows = [await client.history.get(answer.result.metadata["execution_id"]) for answer in answers]
    assert max(row.started_at for row in rows if row.started_at) < min(
        row.completed_at for row in rows if row.completed_at
    )


async def test_a_choice_of_tools_holds_on_workers_too(client: ExecutorClient, context: ExecutionContext) -> None:
    offered = Toolset(client, categories=["file"], context=context)

    [answer] = await offered.answer([ToolCall("1", "Echo", {"message": "x"})])

    assert answer.text.startswith("Error: Unknown tool: Echo")


async def test_the_whole_of_a_cut_output_can_be_read_by_its_handle(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    toolset = Toolset(client, context=context.model_copy(update={"max_output_size": 2_000}))

    [cut] = await toolset.answer([ToolCall("1", "Bash", {"command": "seq 1 100000"})])
    handle = re.findall(r"artifact://[0-9a-f]{32}", cut.text)[0]
    [found] = await toolset.answer(
        [ToolCall("2", "Grep", {"pattern": "^77777$", "path": handle, "output_mode": "content"})]
    )

    assert len(cut.text) < 2_100
    assert "77777" in found.text, found.text


class Scripted(GenericFakeChatModel):
    """A chat model that says what it was told to, whatever tools it has."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        json.dumps([tool.tool_call_schema for tool in tools])
        return self


def agent(tools: list[Any]) -> Any:
    asked = [
        {"type": "tool_call", "id": key, "name": name, "args": json.loads(given)} for key, name, given in CALLS[:2]
    ]
    refused = {"type": "tool_call", "id": "call_5", "name": "Echo", "args": {"message": 3}}
    replies = iter([AIMessage("", tool_calls=[*asked, refused]), AIMessage("Done.")])
    model = Scripted(messages=replies).bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_langgraph_agent_runs_its_tools_on_workers(
    client: ExecutorClient, context: ExecutionContext, sync: bool
) -> None:
    graph, asked = agent(langchain_tools(client, context=context)), {"messages": [HumanMessage("Go")]}

    state = await (asyncio.to_thread(graph.invoke, asked) if sync else graph.ainvoke(asked))

    told = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert [(one.tool_call_id, one.content) for one in told] == [
        (key, text) for key, text, _ in TOLD if key in {"call_1", "call_2", "call_5"}
    ]
    assert [one.status for one in told] == ["success", "success", "error"]
    record = await client.history.get(told[0].artifact["metadata"]["execution_id"])
    assert (record.status, state["messages"][-1].content) == (ExecutionStatus.SUCCEEDED, "Done.")


def test_a_script_without_a_loop_runs_the_tools_of_an_agent_on_workers(fleet: Fleet, context: ExecutionContext) -> None:
    with SyncExecutorClient(fleet.settings) as client:
        state = agent(langchain_tools(client, context=context)).invoke({"messages": [HumanMessage("Go")]})

    told = [message.content for message in state["messages"] if isinstance(message, ToolMessage)]
    assert told == [text for key, text, _ in TOLD if key in {"call_1", "call_2", "call_5"}]


def snippets() -> list[Any]:
    """The Python of the pages about adapters, each a script."""
    found = []
    for page in ("openai", "anthropic", "gemini", "langchain"):
        codes = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
        found += [pytest.param(page, code, id=f"{page}-{number}") for number, code in enumerate(codes, 1)]
    return found


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmInterpreter]:
    """Forks the scripts of the pages; a warning of what they import or do is an error."""
    made = WarmInterpreter(
        "openai",
        "anthropic",
        "google.genai",
        "langgraph.prebuilt",
        "forge_tools.adapters.langchain",
        "forge_tools.client",
        options=("-W", "error", "-W", GEMINIS_OWN, "-W", LANGSMITHS_OWN),
    )
    yield made
    made.close()


@pytest.mark.parametrize(("page", "code"), snippets())
def test_the_snippets_of_the_pages_run(
    fleet: Fleet, warm: WarmInterpreter, tmp_path: Path, page: str, code: str
) -> None:
    (tmp_path / "celery_tasks.py").write_text("import celery\n")
    count, glob = ("call_1", "Count", '{"text": "four"}'), ("call_2", "Glob", '{"pattern": "*.py"}')
    calls = (count,) if "class Count" in code else (glob,)
    chosen = {"anthropic": MESSAGES, "gemini": GEMINI}.get(page, RESPONSES if "Responses" in code else CHAT)
    with chosen.server(Say("", calls), Say("That is all.")) as server:
        environment = fleet.environment() | {
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "test",
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "test",
            "GOOGLE_GEMINI_BASE_URL": server.url,
            "GEMINI_API_KEY": "test",
        }

        done = warm.run(["-c", code], cwd=tmp_path, env=environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert page == "langchain" or ("That is all." in done.stdout and server.script == [])
