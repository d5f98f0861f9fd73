"""The loop, with the real SDKs, on each API, streamed and not."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from forge_tools.adapters.conversation import Step
from forge_tools.adapters.toolset import Toolset
from forge_tools.errors import InvalidToolError
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.model_servers.providers import CHAT, GEMINI, MESSAGES, RESPONSES, Provider, Stage
from tests.model_servers.wire import Say

Scene = Callable[..., Stage]


def hook(streams: bool) -> dict[str, Any]:
    """What makes a conversation stream."""
    return {"on_event": lambda event: None} if streams else {}


def arguments(**given: Any) -> str:
    return json.dumps(given)


async def test_a_call_is_run_and_its_result_told_until_the_model_answers(
    scene: Scene, provider: Provider, streams: bool
) -> None:
    call = ("call_1", "Echo", arguments(message="hëllo"))
    stage = scene(provider, Say("Let me see.", (call,)), Say("It said hello."), **hook(streams))

    turn = await stage.conversation.run("Say hello")

    assert (turn.text, turn.stop, turn.problem) == ("It said hello.", "answered", None)
    assert stage.told() == [("call_1", "hëllo", False)]
    assert stage.server.refusals == []
    assert [step.reply.text for step in turn.steps] == ["Let me see.", "It said hello."]


async def test_parallel_calls_run_together_and_are_answered_in_their_order(
    scene: Scene, provider: Provider, streams: bool
) -> None:
    calls = tuple((f"call_{who}", "Meet", arguments(who=who, count=3)) for who in ("ann", "bob", "eve"))
    stage = scene(provider, Say(calls=calls), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Meet")

    assert turn.is_answered
    assert stage.told() == [(f"call_{who}", f"{who} met", False) for who in ("ann", "bob", "eve")]


async def test_whatever_is_wrong_with_a_call_is_an_error_that_the_model_is_told(
    scene: Scene, provider: Provider, streams: bool
) -> None:
    calls = (
        ("call_1", "Reed", arguments(file_path="x")),
        ("call_2", "Read", arguments(file="x")),
        ("call_3", "Broken", "{}"),
        ("call_4", "Echo", arguments(message="fine")),
    )
    stage = scene(provider, Say(calls=calls), Say("I see."), **hook(streams))

    turn = await stage.conversation.run("Go")

    unknown, invalid, broken, fine = stage.told()
    assert turn.is_answered
    assert unknown == ("call_1", "Error: Unknown tool: Reed (did you mean 'Read'?)", True)
    assert invalid[1] == (
        "Error: Unknown parameter 'file' (did you mean 'file_path'?)\nError: Missing required parameter: file_path"
    )
    assert broken == ("call_3", "Error: Unexpected error: the disk is on fire", True)
    assert fine == ("call_4", "fine", False)


@pytest.mark.parametrize("sent", ['{"message": "x', "[1]", "null", '"message"', "{'message': 'x'}", "[" * 5_000])
@pytest.mark.parametrize(
    "played", [(CHAT, False), (CHAT, True), (RESPONSES, False), (RESPONSES, True), (MESSAGES, True)]
)
async def test_malformed_arguments_are_shown_to_the_model_which_may_send_better_ones(
    scene: Scene, played: tuple[Provider, bool], sent: str
) -> None:
    provider, streams = played
    good = Say(calls=(("call_2", "Echo", arguments(message="x")),))
    stage = scene(provider, Say(calls=(("call_1", "Echo", sent),)), good, Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    first, second = stage.told()
    assert turn.is_answered
    assert (first[0], first[2]) == ("call_1", True)
    assert "one" in first[1]
    assert "object" in first[1]
    assert second == ("call_2", "x", False)


async def test_a_call_without_arguments_may_send_none(scene: Scene, streams: bool) -> None:
    for provider in (CHAT, RESPONSES):
        stage = scene(provider, Say(calls=(("call_1", "Table", ""),)), Say("Done."), **hook(streams))

        await stage.conversation.run("Go")

        assert json.loads(stage.told()[0][1]) == {"columns": []}


async def test_the_step_limit_ends_with_a_result_that_can_be_gone_on_from(
    scene: Scene, provider: Provider, streams: bool
) -> None:
    calls = [Say(calls=((f"call_{n}", "Echo", arguments(message=str(n))),)) for n in range(3)]
    stage = scene(provider, *calls, Say("Done."), **hook(streams))

    limited = await stage.conversation.run("Go", max_steps=2)
    finished = await stage.conversation.run()

    assert (limited.stop, len(limited.steps)) == ("step_limit", 2)
    assert "max_steps" in (limited.problem or "")
    assert (finished.text, len(finished.steps)) == ("Done.", 2)
    assert [text for _, text, _ in stage.told()] == ["0", "1", "2"]


async def test_usage_is_added_up_for_the_run_and_the_conversation(
    scene: Scene, provider: Provider, streams: bool
) -> None:
    call = ("call_1", "Echo", arguments(message="x"))
    stage = scene(provider, Say(calls=(call,)), Say("One."), Say("Two."), **hook(streams))

    first = (await stage.conversation.run("Go")).usage
    second = (await stage.conversation.run("And?")).usage

    assert (first.requests, first.input_tokens, first.output_tokens, first.cached_tokens) == (2, 20, 10, 8)
    assert stage.conversation.usage == first + second


async def test_each_step_is_told_to_a_hook_which_may_be_a_coroutine(scene: Scene, provider: Provider) -> None:
    seen: list[tuple[int, list[str]]] = []

    async def note(step: Step) -> None:
        seen.append((step.number, [answer.text for answer in step.answers]))

    stage = scene(provider, Say(calls=(("call_1", "Echo", arguments(message="x")),)), Say("Done."), on_step=note)
    await stage.conversation.run("Go")

    assert seen == [(1, ["x"]), (2, [])]


async def test_a_conversation_goes_on_over_several_turns(scene: Scene, provider: Provider, streams: bool) -> None:
    call = ("call_1", "Echo", arguments(message="x"))
    stage = scene(provider, Say("Hm.", (call,)), Say("One."), Say("Two."), instructions="Be brief.", **hook(streams))

    await stage.conversation.run("First")
    turn = await stage.conversation.run(stage.model.prompt("Second"))

    assert (turn.text, stage.server.refusals) == ("Two.", [])
    assert "Be brief." in json.dumps(stage.server.requests[-1])
    json.dumps(stage.conversation.messages)


async def test_the_end_of_a_stream_that_breaks_runs_nothing_and_may_be_asked_for_again(
    scene: Scene, provider: Provider
) -> None:
    broken = Say("Now I write.", (("call_1", "Echo", arguments(message="a long text")),), breaks=True)
    stage = scene(provider, broken, Say("Done."), **hook(streams=True))

    failed = await stage.conversation.run("Go")
    again = await stage.conversation.run()

    assert (failed.stop, failed.problem) == ("failed", "The stream ended before the reply was complete.")
    assert (again.text, len(stage.conversation.messages)) == ("Done.", 2)


@pytest.mark.parametrize(
    ("provider", "stop"),
    [(CHAT, "length"), (RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens"), (GEMINI, "MAX_TOKENS")],
)
async def test_the_last_call_of_a_reply_that_was_cut_off_does_not_run(
    scene: Scene, provider: Provider, stop: str, streams: bool
) -> None:
    calls = (("call_1", "Echo", arguments(message="whole")), ("call_2", "Echo", arguments(message="looks whole")))
    stage = scene(provider, Say(calls=calls, stop=stop), Say("And", stop=stop), **hook(streams))

    turn = await stage.conversation.run("Go")

    whole, cut = stage.told()
    assert whole == ("call_1", "whole", False)
    assert cut[1].startswith("Error: This call was cut off")
    assert (turn.stop, turn.text) == ("cut_off", "And")


async def test_what_the_provider_refuses_is_raised_and_harms_no_history(scene: Scene, provider: Provider) -> None:
    call = ("call_1", "Echo", arguments(message="x"))
    stage = scene(provider, Say(calls=(call,)), Say("Done."))
    await stage.conversation.run("Go", max_steps=1)
    stage.server.script.clear()

    with pytest.raises(Exception, match=r"onnect|error"):
        await stage.conversation.run()

    stage.server.script.append(Say("Done."))
    assert (await stage.conversation.run()).text == "Done."


async def test_a_cancelled_run_cancels_its_calls_and_can_be_gone_on_with(
    scene: Scene, provider: Provider, registry: ScopedRegistry
) -> None:
    slow: Any = registry.get("Slow")
    stage = scene(provider, Say(calls=(("call_1", "Slow", arguments(seconds=60)),)), Say("Done."))
    run = asyncio.ensure_future(stage.conversation.run("Go"))
    await asyncio.wait_for(slow.started.wait(), 5)

    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run
    assert slow.was_cancelled
    assert (await stage.conversation.run()).text == "Done."


async def test_what_a_hook_raises_ends_the_run_and_leaves_no_stream_open(scene: Scene, provider: Provider) -> None:
    def stop(event: Any) -> None:
        raise RuntimeError("the reader left")

    stage = scene(provider, Say("A long story."), Say("Done."), on_event=stop)

    with pytest.raises(RuntimeError, match="the reader left"):
        await stage.conversation.run("Go")

    assert len(stage.conversation.messages) == 1


async def test_half_a_surrogate_pair_never_keeps_a_request_from_being_sent(
    scene: Scene, provider: Provider, streams: bool
) -> None:
    call = ("call_1", "Echo", '{"message": "\\ud83d"}')
    stage = scene(provider, Say("Look: \ud83d", (call,)), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("What is \udcff?")

    assert turn.text == "Done."
    assert stage.told() == [("call_1", "\\ud83d", False)]


async def test_without_tools_none_are_sent(scene: Scene, provider: Provider, executor: ToolExecutor) -> None:
    stage = scene(provider, Say("Hi."), toolset=Toolset(executor, tags=["none has this"]))

    await stage.conversation.run("Hi")

    assert "tools" not in stage.server.requests[0]


@pytest.mark.parametrize(
    ("provider", "search"),
    [(RESPONSES, {"type": "web_search"}), (MESSAGES, {"type": "web_search_20250305", "name": "web_search"})],
)
async def test_tools_that_the_provider_runs_itself_are_offered_beside_ours(
    scene: Scene, provider: Provider, search: Any, executor: ToolExecutor
) -> None:
    stage = scene(provider, Say("Done."), toolset=Toolset(executor, names=["Echo"]), tools=[search])

    await stage.conversation.run("Go")

    ours, theirs = stage.server.requests[0]["tools"]
    assert (ours["name"], theirs) == ("Echo", search)


def test_what_the_adapter_sets_is_no_option(provider: Provider) -> None:
    with pytest.raises(TypeError, match="to stream, pass on_event"):
        provider.adapter("m", stream=True)


async def test_a_conversation_has_one_run_at_a_time(scene: Scene, provider: Provider) -> None:
    async def ask_again(step: Step) -> None:
        await stage.conversation.run("And?")

    stage = scene(provider, Say("Hm."), on_step=ask_again)

    with pytest.raises(RuntimeError, match="already running"):
        await stage.conversation.run("Go")


async def test_a_run_without_a_request_is_refused(scene: Scene) -> None:
    stage = scene(CHAT)

    with pytest.raises(ValueError, match="max_steps is 0; give at least 1"):
        await stage.conversation.run("Go", max_steps=0)

    assert stage.conversation.messages == []


async def test_a_prompt_is_not_kept_where_the_tools_cannot_be_offered(scene: Scene) -> None:
    stage = scene(CHAT, strict=True)

    with pytest.raises(InvalidToolError, match="Table cannot be offered in strict mode"):
        await stage.conversation.run("Go")

    assert stage.conversation.messages == []
