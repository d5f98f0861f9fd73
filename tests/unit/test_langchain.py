"""The LangChain wrapper at its edges."""

import asyncio
import importlib
import sys
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.tools import ToolException

from forge_tools import langchain
from forge_tools.tool.base import ExecutionContext
from tests.spec.sample_tools import Broken, Echo, Recorder, Slow, parameter


def test_any_number_of_arguments_passes() -> None:
    none, three = Recorder(answer="none"), Recorder(parameter("a"), parameter("b"), parameter("c"), answer="three")

    assert none.to_langchain_tool().invoke({}) == "none"
    assert three.to_langchain_tool().invoke({"a": "1", "b": "2", "c": "3"}) == "three"
    assert three.calls == [{"a": "1", "b": "2", "c": "3"}]


async def test_a_single_string_is_the_only_parameter() -> None:
    assert Echo().to_langchain_tool().invoke("hello") == "hello"
    assert await Echo().to_langchain_tool().ainvoke("hello") == "hello"
    assert Recorder(answer="done").to_langchain_tool().run("") == "done"


def test_a_single_string_for_several_parameters_is_explained() -> None:
    wrapped = Recorder(parameter("a"), parameter("b")).to_langchain_tool()

    assert wrapped.invoke("x") == "Error: Recorder takes a, b. Pass them by name, not as one string."


def test_parameters_may_have_langchain_s_own_names() -> None:
    names = ("config", "run_manager", "callbacks", "self", "args", "input")
    tool = Recorder(*(parameter(name) for name in names), answer="done")

    assert tool.to_langchain_tool().invoke(dict.fromkeys(names, "mine")) == "done"
    assert tool.calls == [dict.fromkeys(names, "mine")]


def test_a_failure_is_text_and_has_the_status_error() -> None:
    call: Any = {"type": "tool_call", "id": "1", "name": "Broken", "args": {}}

    message = Broken().to_langchain_tool().invoke(call)

    assert (message.content, message.status) == ("Error: Unexpected error: the disk is on fire", "error")
    assert Echo().to_langchain_tool().invoke({}) == "Error: Missing required parameter: message"


def test_a_caller_may_ask_for_exceptions() -> None:
    wrapped = Broken().to_langchain_tool()
    wrapped.handle_tool_error = False

    with pytest.raises(ToolException, match="the disk is on fire"):
        wrapped.invoke({})


def test_data_is_shown_as_json() -> None:
    assert Recorder(answer={"a": [1]}).to_langchain_tool().invoke({}) == '{\n  "a": [\n    1\n  ]\n}'


async def test_a_cancelled_agent_cancels_the_body(context: ExecutionContext) -> None:
    tool = Slow()
    call = asyncio.create_task(tool.to_langchain_tool(context).ainvoke({"seconds": 60}))
    await tool.started.wait()

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert tool.was_cancelled


CALLER: ContextVar[str] = ContextVar("caller", default="nobody")


async def test_a_synchronous_call_sees_the_callers_context_variables() -> None:
    class Who(Recorder):
        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> Any:
            return CALLER.get()

    CALLER.set("me")

    assert Who().to_langchain_tool().invoke({}) == "me"


def test_the_schema_is_the_tools_own() -> None:
    tool = Recorder(parameter("a", enum=["x"]), parameter("b", "integer", required=False, default=2))

    wrapped = tool.to_langchain_tool()

    assert wrapped.args == tool.to_anthropic_schema()["input_schema"]["properties"]
    assert wrapped.tool_call_schema["required"] == ["a"]


def test_without_langchain_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.reload(langchain)  # it keeps what it has made
    monkeypatch.setitem(sys.modules, "langchain_core.tools", None)

    with pytest.raises(ImportError, match=r"forge-tools\[langchain\]"):
        Echo().to_langchain_tool()
