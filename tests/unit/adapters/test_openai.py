"""OpenAI's specifics: schemas as its SDK types them, refusals, filters, and streams of other servers."""

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
)
from openai.types.responses import FunctionToolParam, ResponseInputItemParam
from pydantic import TypeAdapter

from forge_tools.adapters.openai import ChatCompletions, Responses
from forge_tools.adapters.toolset import Toolset
from forge_tools.errors import InvalidToolError
from forge_tools.tool.executor import ToolExecutor
from tests.model_servers.chat import ChatServer
from tests.model_servers.providers import CHAT, RESPONSES, Provider, Stage
from tests.model_servers.responses import ResponsesServer
from tests.model_servers.rules import check_names, check_parameters
from tests.model_servers.wire import Event, ModelServer, Say

Scene = Callable[..., Stage]
CALL = Say("Hm.", (("call_1", "Echo", '{"message": "x"}'),))
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc", "status": None}


def hook(streams: bool) -> dict[str, Any]:
    return {"on_event": lambda event: None} if streams else {}


def test_the_tools_are_what_the_sdk_and_the_provider_take(executor: ToolExecutor) -> None:
    chat, flat = ChatCompletions("m").tools(executor.specs()), Responses("m").tools(executor.specs())

    TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(chat)
    TypeAdapter(list[FunctionToolParam]).validate_python(flat)
    check_names(flat)
    for tool in flat:
        check_parameters(tool["name"], tool["parameters"])
    assert [tool["function"]["parameters"] for tool in chat] == [tool["parameters"] for tool in flat]
    assert not any(tool["strict"] for tool in flat)  # it would be, if nothing was said


@pytest.mark.parametrize(
    ("provider", "type"), [(CHAT, ChatCompletionMessageParam), (RESPONSES, ResponseInputItemParam)]
)
async def test_the_history_is_what_the_sdk_takes(scene: Scene, provider: Provider, type: Any, streams: bool) -> None:
    stage = scene(provider, CALL, Say("Done."), **hook(streams))

    await stage.conversation.run("Go")

    assert len(stage.conversation.messages) >= 4
    for message in stage.conversation.messages:
        TypeAdapter(type).validate_python(message)


async def test_reasoning_goes_back_as_it_came(scene: Scene, streams: bool) -> None:
    thinking = Say("Hm.", (("call_1", "Echo", '{"message": "x"}'),), extra=(REASONING,))
    stage = scene(RESPONSES, thinking, Say("Done."), **hook(streams))

    await stage.conversation.run("Go")

    assert stage.server.requests[1]["input"][1] == {k: v for k, v in REASONING.items() if v is not None}
    assert stage.server.refusals == []


async def test_other_servers_get_their_reasoning_back_too(scene: Scene, streams: bool) -> None:
    thinking = Say("Hm.", CALL.calls, extra=({"reasoning_content": "I think."},))
    stage = scene(CHAT, thinking, Say("Done."), **hook(streams))

    await stage.conversation.run("Go")

    assert stage.server.requests[1]["messages"][1]["reasoning_content"] == "I think."


async def test_a_model_that_declines_is_refused_with_its_words(scene: Scene, streams: bool) -> None:
    stage = scene(CHAT, Say(extra=({"refusal": "I will not."},)), Say("Fine."), **hook(streams))

    turn = await stage.conversation.run("Go")
    after = await stage.conversation.run("Then greet")

    assert (turn.stop, turn.text, turn.problem) == ("refused", "I will not.", "The model declined: I will not.")
    assert (after.text, stage.server.refusals) == ("Fine.", [])


async def test_a_refusal_in_a_response_is_told_likewise(scene: Scene, streams: bool) -> None:
    content = {"type": "refusal", "refusal": "I will not."}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}
    stage = scene(RESPONSES, Say(extra=(item,)), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.stop, turn.text) == ("refused", "I will not.")


@pytest.mark.parametrize("provider", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_calls_of_a_reply_that_was_filtered_do_not_run(
    scene: Scene, provider: Provider, streams: bool, executor: ToolExecutor
) -> None:
    stage = scene(provider, Say("He", CALL.calls, stop="content_filter"), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.stop, turn.problem) == ("refused", "The provider's content filter withheld the reply.")
    assert executor.get_executions() == []
    assert (await stage.conversation.run("Else?")).text == "Done."


async def test_a_response_that_failed_is_a_result_and_may_be_asked_for_again(scene: Scene, streams: bool) -> None:
    stage = scene(RESPONSES, Say("Half", stop="failed"), Say("Done."), **hook(streams))

    failed = await stage.conversation.run("Go")

    assert (failed.stop, failed.problem) == ("failed", "The provider failed: The model had a fall.")
    assert (await stage.conversation.run()).text == "Done."


def other(server: type[ModelServer], change: dict[str, Any]) -> type[ModelServer]:
    """A server that tells things its own way."""

    def changed(sent: Any) -> Any:
        if not isinstance(sent, dict):
            return sent
        inner = {"response": changed(sent["response"])} if "response" in sent else {}
        return sent | {name: part for name, part in change.items() if name in sent} | inner

    class Other(server):
        def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
            return dict(changed(super().body(say, request)))

        def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
            yield from ((kind, changed(event)) for kind, event in super().events(say, request))

    return Other


@pytest.mark.parametrize("usage", [{"total_tokens": 5}, {"prompt_tokens": None, "input_tokens": None}, None])
@pytest.mark.parametrize("provider", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_servers_that_do_not_count_tokens_are_understood(
    scene: Scene, provider: Provider, streams: bool, usage: Any
) -> None:
    stage = scene(
        replace(provider, server=other(provider.server, {"usage": usage})), CALL, Say("Done."), **hook(streams)
    )

    turn = await stage.conversation.run("Go")

    assert (turn.text, turn.usage.requests, turn.usage.input_tokens) == ("Done.", 2, 0)


class Failing(ChatServer):
    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        return self.error("No credit left.")


async def test_an_error_in_the_place_of_a_reply_is_told(scene: Scene) -> None:
    turn = await scene(replace(CHAT, server=Failing), CALL).conversation.run("Go")

    assert turn.stop == "failed"
    assert "No credit left." in str(turn.problem)


class Bare(ResponsesServer):
    """Leave the items out of the last event, as some servers of this API do."""

    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        *events, (kind, last) = super().events(say, request)
        assert isinstance(last, dict)
        yield from [*events, (kind, last | {"response": last["response"] | {"output": []}})]


async def test_items_count_that_the_last_event_does_not_repeat(scene: Scene) -> None:
    stage = scene(replace(RESPONSES, server=Bare), CALL, Say("Done."), **hook(streams=True))

    assert (await stage.conversation.run("Go")).text == "Done."
    assert stage.told() == [("call_1", "x", False)]


class Falling(ResponsesServer):
    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        yield from list(super().events(say, request))[:3]
        yield (
            "error",
            {"type": "error", "sequence_number": 9, "code": "server_error", "message": "I fell.", "param": None},
        )


async def test_an_error_amid_a_stream_is_a_failure_that_may_be_asked_for_again(scene: Scene) -> None:
    stage = scene(replace(RESPONSES, server=Falling), CALL, **hook(streams=True))

    turn = await stage.conversation.run("Go")

    assert (turn.stop, turn.problem) == ("failed", "The provider failed: I fell.")
    assert stage.conversation.messages == [{"role": "user", "content": "Go"}]


async def test_a_reply_without_a_choice_is_a_failure() -> None:
    completion = ChatCompletion.construct(
        id="x", choices=[], created=1, model="m", object="chat.completion", usage=None
    )

    reply = ChatCompletions("m").read(completion)

    assert (reply.stop, reply.problem, reply.usage.requests) == ("failed", "The provider sent no choice.", 1)


async def test_strict_tools_are_taken_and_their_nulls_mean_absent(
    scene: Scene, executor: ToolExecutor, streams: bool
) -> None:
    read = ("call_1", "Read", '{"file_path": "a", "offset": null, "limit": 3}')
    for provider in (CHAT, RESPONSES):
        tools = Toolset(executor, names=["Read", "Echo"])
        stage = scene(provider, Say(calls=(read,)), Say("Done."), toolset=tools, strict=True, **hook(streams))

        assert (await stage.conversation.run("Go")).text == "Done."
        assert stage.told() == [("call_1", "a None 3", False)]
        assert all((tool.get("function") or tool)["strict"] for tool in stage.server.requests[0]["tools"])


async def chunks(*deltas: dict[str, Any]) -> AsyncIterator[ChatCompletionChunk]:
    for number, delta in enumerate(deltas, 1):
        finish = "tool_calls" if number == len(deltas) else None
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        head = {"id": "x", "created": 1, "model": "m", "object": "chat.completion.chunk"}
        yield ChatCompletionChunk.construct(**head, choices=[choice])  # unchecked, as the SDK does it


@pytest.mark.parametrize("provider", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ('{"message": "x', "not valid JSON"),
        ("[1]", "must be one JSON object"),
        ("", "Missing required parameter"),
        ('{"message": NaN}', "Invalid type for message"),
    ],
)
async def test_arguments_that_are_not_an_object_of_json_go_back_as_one(
    scene: Scene, provider: Provider, streams: bool, sent: str, told: str
) -> None:
    stage = scene(provider, Say(calls=(("call_1", "Echo", sent),)), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.stop, stage.server.refusals) == ("answered", [])
    assert told in stage.told()[0][1]
    assert json.dumps({"INVALID_JSON": sent} if sent else {}) in strings_in(stage.conversation.messages)


def strings_in(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        return [text for part in (value.values() if isinstance(value, dict) else value) for text in strings_in(part)]
    return [value] if isinstance(value, str) else []


async def test_a_chunk_whose_choices_are_null_is_passed_over() -> None:
    async def stream() -> AsyncIterator[ChatCompletionChunk]:
        yield ChatCompletionChunk.construct(id="x", choices=None)  # as it came
        async for chunk in chunks({"content": "Done."}):
            yield chunk

    assert (await ChatCompletions("m").assemble(stream())).text == "Done."


async def test_servers_that_leave_the_index_out_are_understood() -> None:
    parts = (("a", "Echo", '{"message"'), (None, None, ': "x"}'), ("b", "Table", "{}"))
    stream = chunks(*({"tool_calls": [{"id": i, "function": {"name": n, "arguments": a}}]} for i, n, a in parts))

    first, second = (await ChatCompletions("m").assemble(stream)).calls

    assert (first.id, first.name, first.arguments) == ("a", "Echo", '{"message": "x"}')
    assert (second.id, second.name, second.arguments) == ("b", "Table", "{}")


@pytest.mark.parametrize("id", ["", "call_1"])
async def test_calls_without_ids_of_their_own_get_such_as_their_answers_have_too(
    scene: Scene, streams: bool, id: str
) -> None:
    calls = ((id, "Echo", '{"message": "x"}'), (id, "Echo", '{"message": "y"}'))
    stage = scene(CHAT, Say(calls=calls), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    ids = [answer.call.id for answer in turn.steps[0].answers]
    assert (len(set(ids)), stage.server.refusals) == (2, [])
    assert [told[0] for told in stage.told()] == ids


async def test_strict_is_refused_for_a_tool_that_cannot_be_and_auto_leaves_it(executor: ToolExecutor) -> None:
    specs = [spec for spec in executor.specs() if spec.name in {"Table", "Echo"}]

    with pytest.raises(InvalidToolError, match="Table cannot be offered in strict mode: columns"):
        ChatCompletions("m", strict=True).tools(specs)
    tools = Responses("m", strict="auto").tools(specs)
    assert {tool["name"]: tool["strict"] for tool in tools} == {"Echo": True, "Table": False}


async def test_a_loop_of_ones_own_needs_no_more_than_read_answer_and_results(scene: Scene) -> None:
    stage = scene(CHAT, CALL, Say("Done."))
    messages: list[Any] = [{"role": "user", "content": "Go"}]
    tools = stage.model.tools(stage.toolset.specs())

    completion = await stage.model.client.chat.completions.create(model="m", messages=messages, tools=tools)
    reply = stage.model.read(completion)
    messages += reply.messages + stage.model.results(await stage.toolset.answer(reply.calls))
    last = await stage.model.client.chat.completions.create(model="m", messages=messages, tools=tools)

    assert last.choices[0].message.content == "Done."


def test_a_synchronous_client_is_refused() -> None:
    with pytest.raises(TypeError, match="Pass an AsyncOpenAI"):
        ChatCompletions("m", openai.OpenAI(api_key="test"))


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)

    with pytest.raises(ImportError, match=r"forge-tools\[openai\]"):
        await Responses("m").ask([], [])
