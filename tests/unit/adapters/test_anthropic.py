"""Anthropic's specifics: blocks, thinking, pauses, refusals, and input that is not JSON."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam
from pydantic import TypeAdapter

from forge_tools.adapters.anthropic import Messages
from forge_tools.tool.executor import ToolExecutor
from tests.model_servers.messages import MessagesServer
from tests.model_servers.providers import MESSAGES, Stage
from tests.model_servers.rules import check_names, check_parameters
from tests.model_servers.wire import Event, Say

Scene = Callable[..., Stage]
CALLS = (("toolu_1", "Echo", '{"message": "x"}'),)
THINKING = {"type": "thinking", "thinking": "I think.", "signature": "sig"}


def hook(streams: bool) -> dict[str, Any]:
    return {"on_event": lambda event: None} if streams else {}


def test_the_tools_are_what_the_sdk_and_the_provider_take(executor: ToolExecutor) -> None:
    tools = Messages("m").tools(executor.specs())

    TypeAdapter(list[ToolParam]).validate_python(tools)
    check_names(tools)
    for tool in tools:
        check_parameters(tool["name"], tool["input_schema"], needs_items=False)


async def test_the_history_is_what_the_sdk_takes_thinking_included(scene: Scene, streams: bool) -> None:
    stage = scene(MESSAGES, Say("Hm.", CALLS, extra=(THINKING,)), Say("Done."), **hook(streams))

    await stage.conversation.run("Go")

    thinking, text, call = stage.conversation.messages[1]["content"]
    assert (thinking, text["text"], call["input"]) == (THINKING, "Hm.", {"message": "x"})
    for message in stage.conversation.messages:
        TypeAdapter(MessageParam).validate_python(message)


async def test_citations_go_back_as_they_came(scene: Scene, streams: bool) -> None:
    place = {"document_index": 0, "document_title": None, "start_char_index": 0, "end_char_index": 1, "file_id": None}
    citation = {"type": "char_location", "cited_text": "x", **place}
    cited = {"type": "text", "text": "As it says.", "citations": [citation, citation]}
    stage = scene(MESSAGES, Say(extra=(cited,), calls=CALLS), Say("Done."), **hook(streams))

    assert (await stage.conversation.run("Go")).text == "Done."

    assert stage.server.requests[1]["messages"][1]["content"][0]["citations"] == [citation, citation]


class Overloaded(MessagesServer):
    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        yield from list(super().events(say, request))[:4]
        yield "error", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


async def test_an_error_amid_a_stream_is_raised_and_harms_no_history(scene: Scene) -> None:
    stage = scene(replace(MESSAGES, server=Overloaded), Say("Half", CALLS), **hook(streams=True))

    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        await stage.conversation.run("Go")

    assert stage.conversation.messages == [{"role": "user", "content": "Go"}]


async def test_all_results_go_back_in_one_message_and_only_failures_are_flagged(scene: Scene) -> None:
    stage = scene(MESSAGES, Say(calls=(*CALLS, ("toolu_2", "Broken", "{}"))), Say("Done."))

    await stage.conversation.run("Go")

    fine, broken = stage.server.requests[1]["messages"][2]["content"]
    assert fine == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    assert (broken["is_error"], broken["content"]) == (True, "Error: Unexpected error: the disk is on fire")


async def test_input_that_is_not_json_goes_back_wrapped(scene: Scene) -> None:
    stage = scene(MESSAGES, Say(calls=(("toolu_1", "Echo", '{"message": "x'),)), Say("Done."), **hook(streams=True))

    turn = await stage.conversation.run("Go")

    assert turn.is_answered
    assert stage.server.requests[1]["messages"][1]["content"][0]["input"] == {"INVALID_JSON": '{"message": "x'}
    assert "not valid JSON" in stage.told()[0][1]


@pytest.mark.parametrize("number", ["NaN", "1e999"])
async def test_input_with_a_number_that_no_request_may_hold_goes_back_wrapped(
    scene: Scene, streams: bool, number: str
) -> None:
    arguments = f'{{"message": {number}}}'
    stage = scene(MESSAGES, Say(calls=(("toolu_1", "Echo", arguments),)), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert turn.is_answered
    [text] = stage.server.requests[1]["messages"][1]["content"][0]["input"].values()
    assert json.loads(text) == pytest.approx(json.loads(arguments), nan_ok=True)
    assert stage.told() == [("toolu_1", "Error: Invalid type for message: expected string", True)]


class Uncounted(MessagesServer):
    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        return super().body(say, request) | {"usage": None}

    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        for kind, event in super().events(say, request):
            assert isinstance(event, dict)
            head = {"message": event["message"] | {"usage": None}} if "message" in event else {}
            yield kind, event | {"usage": None} | head


async def test_servers_that_count_no_tokens_are_understood(scene: Scene, streams: bool) -> None:
    stage = scene(replace(MESSAGES, server=Uncounted), Say(calls=CALLS), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.text, turn.usage.requests, turn.usage.input_tokens) == ("Done.", 2, 0)


async def test_input_given_at_the_start_of_a_block_counts_where_no_fragments_follow(scene: Scene) -> None:
    whole = {"type": "tool_use", "id": "toolu_1", "name": "Echo", "input": {"message": "whole"}}
    stage = scene(MESSAGES, Say(extra=(whole,)), Say("Done."), **hook(streams=True))

    await stage.conversation.run("Go")

    assert stage.told() == [("toolu_1", "whole", False)]


async def test_a_paused_turn_is_gone_on_with(scene: Scene, streams: bool) -> None:
    searching = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    stage = scene(MESSAGES, Say(extra=(searching,), stop="pause_turn"), Say("Found."), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.text, len(turn.steps)) == ("Found.", 2)
    assert stage.server.requests[1]["messages"][1]["content"] == [searching]


async def test_a_refusal_runs_nothing(scene: Scene, executor: ToolExecutor, streams: bool) -> None:
    stage = scene(MESSAGES, Say("No.", CALLS, stop="refusal"), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.stop, turn.problem) == ("refused", "The model declined: No.")
    assert executor.get_executions() == []


async def test_empty_text_and_empty_replies_do_not_go_back(scene: Scene, streams: bool) -> None:
    empty = {"type": "text", "text": ""}
    stage = scene(MESSAGES, Say(calls=CALLS, extra=(empty,)), Say(extra=(empty,)), Say("Done."), **hook(streams))

    nothing = await stage.conversation.run("Go")
    something = await stage.conversation.run("And?")

    assert (nothing.text, nothing.stop, something.text) == ("", "answered", "Done.")
    assert stage.server.refusals == []


def test_a_synchronous_client_is_refused() -> None:
    with pytest.raises(TypeError, match="Pass an AsyncAnthropic"):
        Messages("m", anthropic.Anthropic(api_key="test"))


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)

    with pytest.raises(ImportError, match=r"forge-tools\[anthropic\]"):
        await Messages("m").ask([], [])
