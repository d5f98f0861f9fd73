"""Tools of an executor in LangChain's hands, and in those of a LangGraph agent."""

import asyncio
import base64
import importlib
import sys
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from forge_tools.adapters import langchain
from forge_tools.adapters.langchain import langchain_tools
from forge_tools.model import File, Image
from forge_tools.tool import tool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.model_servers.rules import check_names, check_parameters
from tests.spec.sample_tools import Broken, Echo, Recorder, parameter

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0" + b"IEND\xaeB`\x82"
"""What is taken for a PNG; Pillow need not be there."""


def call(name: str, id: str = "call_1", **arguments: Any) -> Any:
    return {"type": "tool_call", "id": id, "name": name, "args": arguments}


def tools_of(executor: ToolExecutor, **choice: Any) -> dict[str, Any]:
    return {tool.name: tool for tool in langchain_tools(executor, **choice)}


async def test_a_tool_call_is_answered_with_a_message_that_carries_its_id_and_the_result(
    executor: ToolExecutor,
) -> None:
    tool = tools_of(executor)["Table"]

    for message in (
        await tool.ainvoke(call("Table", columns=[1])),
        await asyncio.to_thread(tool.invoke, call("Table")),
    ):
        assert isinstance(message, ToolMessage)
        assert (message.tool_call_id, message.name, message.status) == ("call_1", "Table", "success")
        assert (message.artifact["success"], "columns" in message.artifact["output"]) == (True, True)


async def test_a_failure_has_the_status_error_and_says_why(executor: ToolExecutor) -> None:
    tools = tools_of(executor)

    broken = await tools["Broken"].ainvoke(call("Broken"))
    invalid = await tools["Echo"].ainvoke(call("Echo", message=3))

    assert (broken.content, broken.status) == ("Error: Unexpected error: the disk is on fire", "error")
    assert (invalid.status, invalid.artifact["error_code"]) == ("error", "VALIDATION_ERROR")


def test_without_a_tool_call_it_answers_with_text(executor: ToolExecutor) -> None:
    tools = tools_of(executor)

    assert tools["Echo"].invoke({"message": "x"}) == "x"
    assert tools["Echo"].run("just this") == "just this"
    assert tools["Echo"].invoke({}) == "Error: Missing required parameter: message"
    assert "must be one JSON object" in tools["Read"].invoke("3")


def test_a_caller_may_ask_for_exceptions(executor: ToolExecutor) -> None:
    tool = tools_of(executor)["Broken"]
    tool.handle_tool_error = False

    with pytest.raises(ToolException, match="the disk is on fire"):
        tool.invoke(call("Broken"))


def test_the_choice_and_the_schemas_are_those_of_the_tools(executor: ToolExecutor) -> None:
    [tool] = langchain_tools(executor, categories=["file"])

    assert isinstance(tool, StructuredTool)
    assert tool.tool_call_schema["required"] == ["file_path"]
    assert list(tool.args) == ["file_path", "offset", "limit"]


def test_the_schemas_are_taken_by_providers_behind_langchain_too(executor: ToolExecutor) -> None:
    functions = [convert_to_openai_tool(tool)["function"] for tool in langchain_tools(executor)]

    check_names(functions)
    for function in functions:
        check_parameters(function["name"], function["parameters"])


def test_parameters_may_have_langchain_s_own_names(registry: ScopedRegistry) -> None:
    names = ("config", "run_manager", "callbacks", "self", "args", "input", "runtime", "tool_call_id")
    recorder = Recorder(*(parameter(name) for name in names), answer="done")
    registry.register(recorder)

    [tool] = langchain_tools(ToolExecutor(registry))

    assert tool.invoke(dict.fromkeys(names, "mine")) == "done"
    assert recorder.calls == [dict.fromkeys(names, "mine")]


async def test_a_synchronous_call_from_a_thread_runs_on_the_loop_where_the_tools_were_made(
    registry: ScopedRegistry,
) -> None:
    loops = []

    class Where(Recorder):
        async def _execute(self, context: Any, /, **kwargs: Any) -> Any:
            loops.append(asyncio.get_running_loop())

    registry.register(Where(name="Where"))
    [tool] = langchain_tools(ToolExecutor(registry))

    await asyncio.to_thread(tool.invoke, {})
    tool.invoke({})  # on the loop itself, which would wait for itself for ever

    assert loops[0] is asyncio.get_running_loop()
    assert loops[1] is not loops[0]


class Scripted(GenericFakeChatModel):
    """A chat model that says what it was told to, whatever tools it has."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        for one in tools:
            assert one.tool_call_schema["type"] == "object"
        return self


def agent(tools: list[Any], *replies: AIMessage) -> Any:
    model = Scripted(messages=iter(replies)).bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())


THREAD: Any = {"configurable": {"thread_id": "1"}}


@tool
async def show() -> list[object]:
    """Return an image and files."""
    return ["Look:", Image(PNG, name="a.png"), File(b"%PDF-1.4", name="b.pdf"), File(b"\0", name="c.bin")]


async def test_images_are_blocks_of_the_message_and_the_whole_result_is_its_artifact() -> None:
    registry = ScopedRegistry()
    registry.register(show)
    [made] = langchain_tools(ToolExecutor(registry))

    for message in (await made.ainvoke(call("show")), await asyncio.to_thread(made.invoke, call("show"))):
        text, image = message.content
        assert text["text"].startswith("Look:\n[image a.png, 37 bytes, image/png: artifact://")
        assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
        assert [part["name"] for part in message.artifact["metadata"]["content"]] == ["a.png", "b.pdf", "c.bin"]


async def test_a_langgraph_agent_calls_the_tools_together_and_sees_their_results(executor: ToolExecutor) -> None:
    meet = [call("Meet", f"call_{who}", who=who, count=2) for who in ("ann", "bob")]
    replies = (AIMessage("", tool_calls=[*meet, call("Broken", "call_3")]), AIMessage("All done."))
    graph = agent(langchain_tools(executor), *replies)

    state = await graph.ainvoke({"messages": [HumanMessage("Go")]}, THREAD)

    told = [(m.tool_call_id, m.content, m.status) for m in state["messages"] if isinstance(m, ToolMessage)]
    assert told[:2] == [("call_ann", "ann met", "success"), ("call_bob", "bob met", "success")]
    assert told[2] == ("call_3", "Error: Unexpected error: the disk is on fire", "error")
    assert state["messages"][-1].content == "All done."


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_tools_that_were_wrapped_one_by_one_work_in_an_agent_too(sync: bool) -> None:
    asked = [call("Echo", "call_1", message="x"), call("Broken", "call_2")]
    graph = agent(
        [Echo().to_langchain_tool(), Broken().to_langchain_tool()], AIMessage("", tool_calls=asked), AIMessage("Done.")
    )
    start = {"messages": [HumanMessage("Go")]}

    state = await (asyncio.to_thread(graph.invoke, start, THREAD) if sync else graph.ainvoke(start, THREAD))

    told = [(m.tool_call_id, m.content, m.status) for m in state["messages"] if isinstance(m, ToolMessage)]
    assert told[0] == ("call_1", "x", "success")
    assert told[1] == ("call_2", "Error: Unexpected error: the disk is on fire", "error")


def test_without_langchain_the_extra_is_named(executor: ToolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.reload(langchain)  # it keeps what it has made
    monkeypatch.setitem(sys.modules, "langchain_core.tools", None)

    with pytest.raises(ImportError, match=r"forge-tools\[langchain\]"):
        langchain_tools(executor)
