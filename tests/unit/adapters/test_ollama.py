"""The loop with Ollama's real SDK on a local server, streamed and not."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ollama
import pytest
from pydantic import BaseModel, TypeAdapter

from forge_tools.adapters.ollama import Chat
from forge_tools.adapters.toolset import Toolset
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.tool.executor import ToolExecutor
from tests.model_servers.ollama import OllamaServer
from tests.model_servers.providers import Provider, Stage
from tests.model_servers.rules import check_names, check_parameters
from tests.model_servers.wire import Say

Scene = Callable[..., Stage]
ECHO = (("", "Echo", '{"message": "hëllo"}'),)


def client(base_url: str, **_: Any) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=base_url)


OLLAMA = Provider("ollama", OllamaServer, client, Chat)


def hook(streams: bool) -> dict[str, Any]:
    """What makes a conversation stream."""
    return {"on_event": lambda event: None} if streams else {}


def told(stage: Stage) -> list[tuple[str, str]]:
    """The (tool, text) of each result that the last request carried."""
    messages = stage.server.requests[-1]["messages"]
    return [(message["tool_name"], message["content"]) for message in messages if message["role"] == "tool"]


def call(name: str, **arguments: Any) -> tuple[str, str, str]:
    return ("", name, json.dumps(arguments))


async def test_a_call_is_run_and_its_result_told_until_the_model_answers(scene: Scene, streams: bool) -> None:
    stage = scene(OLLAMA, Say("Let me see.", ECHO), Say("It said hello."), **hook(streams))

    turn = await stage.conversation.run("Say hello")

    assert (turn.text, turn.stop, turn.problem) == ("It said hello.", "answered", None)
    assert told(stage) == [("Echo", "hëllo")]
    assert stage.server.refusals == []
    assert [step.reply.text for step in turn.steps] == ["Let me see.", "It said hello."]
    assert (turn.usage.requests, turn.usage.input_tokens, turn.usage.output_tokens) == (2, 20, 10)


async def test_parallel_calls_run_together_and_are_answered_in_their_order(scene: Scene, streams: bool) -> None:
    calls = tuple(call("Meet", who=who, count=3) for who in ("ann", "bob", "eve"))
    stage = scene(OLLAMA, Say(calls=calls), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Meet")

    assert turn.is_answered
    assert told(stage) == [("Meet", f"{who} met") for who in ("ann", "bob", "eve")]
    assert len({answer.call.id for answer in turn.steps[0].answers}) == 3


async def test_whatever_is_wrong_with_a_call_is_an_error_that_the_model_is_told(scene: Scene, streams: bool) -> None:
    calls = (call("Reed", file_path="x"), call("Read", file="x"), call("Broken"), call("Echo", message="fine"))
    stage = scene(OLLAMA, Say(calls=calls), Say("I see."), **hook(streams))

    await stage.conversation.run("Go")

    unknown, invalid, broken, fine = told(stage)
    assert unknown == ("Reed", "Error: Unknown tool: Reed (did you mean 'Read'?)")
    assert invalid[1].endswith("Error: Missing required parameter: file_path")
    assert broken == ("Broken", "Error: Unexpected error: the disk is on fire")
    assert fine == ("Echo", "fine")


async def test_a_call_that_ollama_cannot_read_is_told_to_the_model_which_may_send_a_better_one(
    scene: Scene, streams: bool
) -> None:
    broken = Say("Hm.", (("", "Echo", '{"message": "x'),), stop="unparsed")
    stage = scene(OLLAMA, broken, Say(calls=ECHO), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.text, len(turn.steps)) == ("Done.", 3)
    problem = stage.server.requests[1]["messages"][1]["content"]
    assert problem.startswith("Your tool call did not run, because it is not valid JSON: error parsing tool call")
    assert """raw='{"message": "x'""" in problem
    assert told(stage) == [("Echo", "hëllo")]


async def test_of_a_long_call_that_cannot_be_read_both_ends_are_shown(scene: Scene) -> None:
    broken = Say(calls=(("", "Echo", '{"message": "' + "x" * 100_000),), stop="unparsed")
    stage = scene(OLLAMA, broken, Say("Done."))

    await stage.conversation.run("Go")

    problem = stage.server.requests[1]["messages"][1]["content"]
    assert len(problem) < 1_200
    assert "error parsing tool call" in problem
    assert "unexpected end of JSON input" in problem


async def test_thinking_goes_back_with_its_call(scene: Scene, streams: bool) -> None:
    stage = scene(OLLAMA, Say("Hm.", ECHO, extra=({"thinking": "I think."},)), Say("Done."), **hook(streams))

    await stage.conversation.run("Go")

    function = {"name": "Echo", "arguments": {"message": "hëllo"}}
    sent = {"role": "assistant", "content": "Hm.", "thinking": "I think.", "tool_calls": [{"function": function}]}
    assert stage.server.requests[1]["messages"][1] == sent
    for message in stage.conversation.messages:
        TypeAdapter(ollama.Message).validate_python(message)
    json.dumps(stage.conversation.messages)


async def test_the_chunks_of_a_stream_are_handed_on_as_they_come(scene: Scene) -> None:
    seen: list[str] = []
    stage = scene(OLLAMA, Say("A long story."), on_event=lambda chunk: seen.append(chunk.message.content))

    assert (await stage.conversation.run("Tell")).text == "".join(seen) == "A long story."
    assert len(seen) > 2


async def test_the_end_of_a_stream_that_breaks_runs_nothing_and_may_be_asked_for_again(
    scene: Scene, executor: ToolExecutor
) -> None:
    broken = Say("x", (*ECHO, call("Echo", message="y")), breaks=True)
    stage = scene(OLLAMA, broken, Say("Done."), **hook(streams=True))

    failed = await stage.conversation.run("Go")
    again = await stage.conversation.run()

    assert (failed.stop, failed.problem) == ("failed", "The stream ended before the reply was complete.")
    assert executor.get_executions() == []
    assert (again.text, len(stage.conversation.messages)) == ("Done.", 2)


async def test_the_last_call_of_a_reply_that_was_cut_off_does_not_run(scene: Scene, streams: bool) -> None:
    calls = (call("Echo", message="whole"), call("Echo", message="looks whole"))
    stage = scene(OLLAMA, Say(calls=calls, stop="length"), Say("And", stop="length"), **hook(streams))

    turn = await stage.conversation.run("Go")

    whole, cut = told(stage)
    assert whole == ("Echo", "whole")
    assert cut[1].startswith("Error: This call was cut off")
    assert (turn.stop, turn.text) == ("cut_off", "And")


async def test_the_step_limit_ends_with_a_history_that_can_be_gone_on_from(scene: Scene, streams: bool) -> None:
    stage = scene(OLLAMA, Say(calls=ECHO), Say(calls=ECHO), Say("Done."), **hook(streams))

    limited = await stage.conversation.run("Go", max_steps=1)
    finished = await stage.conversation.run()

    assert (limited.stop, finished.text) == ("step_limit", "Done.")
    assert stage.server.refusals == []


async def test_an_empty_reply_ends_the_run_and_does_not_go_back(scene: Scene, streams: bool) -> None:
    stage = scene(OLLAMA, Say(), Say("Done."), **hook(streams))

    nothing = await stage.conversation.run("Go")
    await stage.conversation.run("And?")

    assert (nothing.text, nothing.stop) == ("", "answered")
    assert [message["content"] for message in stage.server.requests[1]["messages"]] == ["Go", "And?"]


async def test_instructions_and_options_go_into_each_request(scene: Scene, streams: bool) -> None:
    options = {"options": {"num_ctx": 8_192}, "think": True, "keep_alive": "5m"}
    stage = scene(OLLAMA, Say(calls=ECHO), Say("Done."), instructions="Be brief.", **options, **hook(streams))

    await stage.conversation.run("Go")

    for request in stage.server.requests:
        assert request["messages"][0] == {"role": "system", "content": "Be brief."}
        assert {name: request[name] for name in options} == options
        assert request["stream"] is streams


async def test_what_the_server_refuses_is_raised_and_harms_no_history(scene: Scene, streams: bool) -> None:
    stage = scene(OLLAMA, Say("Done."), messages=[{"role": "narrator", "content": "Once"}], **hook(streams))

    with pytest.raises(ollama.ResponseError, match=r"invalid role narrator \(status code: 400\)"):
        await stage.conversation.run("Go")

    del stage.conversation.messages[0]
    assert (await stage.conversation.run()).text == "Done."


async def test_a_server_that_is_not_there_is_named(executor: ToolExecutor) -> None:
    model = Chat("m", ollama.AsyncClient(host="http://127.0.0.1:9"))

    with pytest.raises(ConnectionError, match="Failed to connect to Ollama"):
        await model.ask([{"role": "user", "content": "Go"}], [])

    await model.client.close()


class Imitation(OllamaServer):
    """Sends arguments as text, which Ollama never does and its SDK refuses."""

    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        body = super().body(say, request)
        body["message"]["tool_calls"][0]["function"]["arguments"] = say.calls[0][2]
        return body


async def test_a_reply_that_the_sdk_cannot_read_ends_the_run_with_the_way_out(scene: Scene) -> None:
    stage = scene(replace(OLLAMA, server=Imitation), Say(calls=ECHO))

    turn = await stage.conversation.run("Go")

    assert turn.stop == "failed"
    assert "message.tool_calls.0.function.arguments" in (turn.problem or "")
    assert "use ChatCompletions" in (turn.problem or "")


class Chosen(BaseModel):
    number: int


async def test_what_a_hook_raises_is_not_taken_for_the_server_s_failure(scene: Scene) -> None:
    stage = scene(OLLAMA, Say("One."), on_event=lambda chunk: Chosen.model_validate({"number": "one"}))

    with pytest.raises(ValueError, match="Chosen"):
        await stage.conversation.run("Go")


@pytest.mark.parametrize(
    ("sent", "kept", "answer"),
    [
        ('{"message": "x"}', {"message": "x"}, "x"),
        ('{"message": "x', {"INVALID_JSON": '{"message": "x'}, "not valid JSON"),
        ("[1]", {"INVALID_JSON": "[1]"}, "must be one JSON object"),
        ("", {}, "Missing required parameter: message"),
    ],
)
async def test_arguments_that_come_as_text_are_read_and_go_back_as_an_object(
    executor: ToolExecutor, sent: str, kept: dict[str, Any], answer: str
) -> None:
    tool_calls = [{"function": {"name": "Echo", "arguments": sent}}]
    response = {"message": {"role": "assistant", "tool_calls": tool_calls}, "done": True, "done_reason": "stop"}

    reply = Chat("m").read(response)
    [answered] = await Toolset(executor).answer(reply.calls)

    assert reply.messages[0]["tool_calls"][0]["function"]["arguments"] == kept
    assert answer in answered.text


def test_the_tools_are_what_the_sdk_takes_and_nothing_of_them_is_lost(executor: ToolExecutor) -> None:
    tools = Chat("m").tools(executor.specs())

    check_names([tool["function"] for tool in tools])
    for tool in tools:
        taken = ollama.Tool.model_validate(tool).model_dump(exclude_none=True)
        assert taken == tool
        check_parameters(tool["function"]["name"], tool["function"]["parameters"])


def test_limits_defaults_and_members_that_the_sdk_drops_are_said_in_the_description() -> None:
    place = {"lat": {"type": "number"}, "note": {"type": "string"}}
    parameters = (
        ToolParameter(name="limit", type="integer", description="How many.", required=False, default=5, minimum=1),
        ToolParameter(
            name="place", type="object", description="Where.", properties=place, required_properties=("lat",)
        ),
    )
    spec = ToolSpec(name="Find", description="Find.", category=ToolCategory.OTHER, parameters=parameters)

    [tool] = Chat("m").tools([spec])

    limit, where = tool["function"]["parameters"]["properties"].values()
    assert limit == {"type": "integer", "description": 'How many. JSON Schema: {"default": 5, "minimum": 1}'}
    assert where["type"] == "object"
    assert '"lat": {"type": "number"}' in where["description"]
    assert '"required": ["lat"]' in where["description"]


def test_a_synchronous_client_is_refused() -> None:
    with pytest.raises(TypeError, match="Pass an AsyncClient"):
        Chat("m", ollama.Client())


@pytest.mark.parametrize("option", [{"stream": True}, {"messages": []}, {"tools": [{"type": "function"}]}])
def test_what_the_adapter_sets_is_no_option(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"on_event|Toolset"):
        Chat("m", **option)


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ollama", None)

    with pytest.raises(ImportError, match=r"forge-tools\[ollama\]"):
        await Chat("m").ask([], [])
