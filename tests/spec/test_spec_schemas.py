"""Schemas as providers take them, and the LangChain wrapper."""

import asyncio
import re
from typing import Any

import jsonschema
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import Tool
from langchain_core.utils.function_calling import convert_to_openai_tool

from forge_tools.base import BaseTool, ExecutionContext
from forge_tools.registry import ScopedRegistry, ToolRegistry
from tests.spec.sample_tools import Bash, Broken, Echo, Read, Recorder, Write, parameter

spec = pytest.mark.spec
SAMPLES = [Read(), Write(), Bash(), Recorder(parameter("list", "array"), parameter("config", "object"))]


@spec("S0-35", "S3-035", "S3-061..070")
def test_the_openai_schema_is_exactly_this() -> None:
    assert Read().to_openai_schema() == {
        "type": "function",
        "function": {
            "name": "Read",
            "description": "Read contents of a file",
            "parameters": {
                "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": "Absolute path to the file"},
                    "offset": {"type": "integer", "description": "Line number to start from"},
                    "limit": {"type": "integer", "description": "Maximum lines to read"},
                },
                "required": ["file_path"],
            },
        },
    }


@spec("S3-068", "S3-076")
def test_required_is_there_even_when_it_is_empty() -> None:
    assert Broken().to_openai_schema()["function"]["parameters"]["required"] == []
    assert Broken().to_anthropic_schema()["input_schema"]["required"] == []


@spec("S0-36", "S0-37")
def test_enums_and_bounds_show_in_the_openai_property() -> None:
    choice, timeout = (
        parameter("format", enum=["json", "yaml"]),
        parameter("timeout", "integer", minimum=1, maximum=600),
    )

    properties = Recorder(choice, timeout).to_openai_schema()["function"]["parameters"]["properties"]

    assert properties == {"format": choice.to_json_schema(), "timeout": timeout.to_json_schema()}
    assert properties["timeout"].items() >= {"type": "integer", "minimum": 1, "maximum": 600}.items()


@spec("S0-38", "S3-036", "S3-071..077", "S4-27")
def test_the_anthropic_schema_is_exactly_this() -> None:
    path = {"type": "string", "description": "The file_path"}
    content = {"type": "string", "description": "The content"}

    assert Write().to_anthropic_schema() == {
        "name": "Write",
        "description": "Write a file",
        "input_schema": {
            "type": "object",
            "properties": {"file_path": path, "content": content},
            "required": ["file_path", "content"],
        },
    }


@spec("S4-28")
def test_openai_and_anthropic_share_the_inner_schema() -> None:
    tool = Read()

    assert tool.to_openai_schema()["function"]["parameters"] == tool.to_anthropic_schema()["input_schema"]


@spec("S3-193", "S3-166")
@pytest.mark.parametrize("tool", SAMPLES, ids=lambda tool: tool.name)
def test_openai_s_published_rules_accept_every_schema(tool: BaseTool) -> None:
    function = tool.to_openai_schema()["function"]

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", function["name"])
    assert function["description"]
    jsonschema.Draft202012Validator.check_schema(function["parameters"])
    assert all("items" in p for p in function["parameters"]["properties"].values() if p["type"] == "array")


@spec("S3-194", "S3-166")
@pytest.mark.parametrize("tool", SAMPLES, ids=lambda tool: tool.name)
def test_anthropic_s_published_rules_accept_every_schema(tool: BaseTool) -> None:
    schema = tool.to_anthropic_schema()

    assert set(schema) == {"name", "description", "input_schema"}
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in schema["input_schema"]["properties"])
    assert schema["input_schema"]["type"] == "object"
    jsonschema.Draft202012Validator.check_schema(schema["input_schema"])


@spec("S1-28")
def test_gemini_gets_one_object_with_all_declarations(registry: ScopedRegistry) -> None:
    registry.register_many([Echo(), Read()])

    (declared,) = registry.get_declarations()

    assert [each["name"] for each in declared["functionDeclarations"]] == ["Echo", "Read"]
    assert declared["functionDeclarations"][0] == {
        "name": "Echo",
        "description": "Return the message",
        "parameters": Echo().to_anthropic_schema()["input_schema"],
    }


@spec("S0-39", "S3-037", "S3-078..081", "S4-29")
def test_langchain_gets_a_tool_of_its_own_class() -> None:
    wrapped = Echo().to_langchain_tool()

    assert isinstance(wrapped, Tool)
    assert (wrapped.name, wrapped.description) == ("Echo", "Return the message")
    assert wrapped.invoke({"message": "sync"}) == "sync"
    assert asyncio.run(wrapped.ainvoke({"message": "async"})) == "async"


@spec("S4-30")
def test_the_arguments_of_langchain_s_tool_are_required_or_have_their_default() -> None:
    schema = (
        Recorder(parameter("a"), parameter("b", "integer", required=False, default=2)).to_langchain_tool().args_schema
    )

    assert schema["required"] == ["a"]
    assert [field.get("default") for field in schema["properties"].values()] == [None, 2]


@spec("S3-082", "S4-29")
async def test_langchain_runs_the_body_with_defaults_even_inside_a_running_loop() -> None:
    tool = Recorder(parameter("a"), parameter("b", "integer", required=False, default=2), answer="done")

    assert tool.to_langchain_tool().invoke({"a": "x"}) == "done"

    assert tool.calls == [{"a": "x", "b": 2}]


@spec("S4-31")
async def test_langchain_calls_run_in_the_context_they_were_given() -> None:
    class Where(Recorder):
        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> Any:
            return context.working_dir

    there = ExecutionContext(working_dir="/srv/project")

    assert await Where().to_langchain_tool().ainvoke({}) == "."
    assert await Where().to_langchain_tool(context=there).ainvoke({}) == "/srv/project"


@spec("S3-195", "S3-184")
def test_an_agent_loop_calls_the_registered_tools() -> None:
    ToolRegistry().register_many([Echo(), Broken()])
    tools = {tool.name: tool.to_langchain_tool() for tool in ToolRegistry().list_all()}
    asked = AIMessage(
        "",
        tool_calls=[
            {"name": "Echo", "args": {"message": "hi"}, "id": "1"},
            {"name": "Broken", "args": {}, "id": "2"},
        ],
    )

    answers = [tools[call["name"]].invoke(call) for call in asked.tool_calls]

    conversation = [HumanMessage("say hi"), asked, *answers]
    assert all(isinstance(message, ToolMessage) for message in conversation[2:])
    assert [(m.content, m.status, m.tool_call_id) for m in answers] == [
        ("hi", "success", "1"),
        ("Error: Unexpected error: the disk is on fire", "error", "2"),
    ]
    assert convert_to_openai_tool(tools["Echo"])["function"]["parameters"]["required"] == ["message"]
