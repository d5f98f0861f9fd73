"""Gemini's specifics: parts, signatures, calls without ids, withheld replies, and calls that it could not parse."""

import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from google import genai
from google.genai import types
from pydantic import BaseModel, TypeAdapter

from forge_tools.adapters.gemini import GenerateContent
from forge_tools.adapters.toolset import Toolset
from forge_tools.errors import InvalidToolError
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.tool.executor import ToolExecutor
from tests.model_servers.gemini import BLOCKED, GeminiServer, signature
from tests.model_servers.providers import GEMINI, Stage
from tests.model_servers.rules import check_parameters
from tests.model_servers.wire import Event, Say

Scene = Callable[..., Stage]
ECHO = (("call_1", "Echo", '{"message": "hëllo"}'),)
THOUGHT = {"text": "I think.", "thought": True}


def vertex_client(base_url: str, api_key: str, **_: Any) -> genai.Client:
    return genai.Client(vertexai=True, api_key=api_key, http_options={"base_url": base_url})


VERTEX = replace(GEMINI, name="vertex", client=vertex_client)


def hook(streams: bool) -> dict[str, Any]:
    return {"on_event": lambda event: None} if streams else {}


def test_the_tools_are_what_the_sdk_and_the_provider_take(executor: ToolExecutor) -> None:
    [tool] = GenerateContent("m").tools(executor.specs())

    types.Tool.model_validate(tool)
    for function in tool["function_declarations"]:
        check_parameters(function["name"], function["parameters_json_schema"])


def test_nothing_of_a_schema_is_lost() -> None:
    parameters = (
        ToolParameter(name="level", type="integer", description="How far.", enum=[1, 2, 3]),
        ToolParameter(name="which", type="array", description="Which.", keywords={"uniqueItems": True}),
    )
    spec = ToolSpec(name="Find", description="Find.", category=ToolCategory.OTHER, parameters=parameters)

    [tool] = GenerateContent("m").tools([spec])

    level, which = tool["function_declarations"][0]["parameters_json_schema"]["properties"].values()
    assert level["enum"] == [1, 2, 3]
    assert (which["uniqueItems"], which["items"]) == (True, {})


def test_a_tool_whose_name_gemini_does_not_take_is_named() -> None:
    spec = ToolSpec(name="3d", description="Draw.", category=ToolCategory.OTHER)

    with pytest.raises(
        InvalidToolError, match=r"a function named 3d: names must begin with a letter or '_'\. Register"
    ):
        GenerateContent("m").tools([spec])


async def test_thoughts_and_signatures_go_back_as_they_came(scene: Scene, streams: bool) -> None:
    first = Say("Hm.", ECHO, extra=(THOUGHT,))
    stage = scene(GEMINI, first, Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    thought, text, call = stage.server.requests[1]["contents"][1]["parts"]
    assert (thought, text, turn.steps[0].reply.text) == (THOUGHT, {"text": "Hm."}, "Hm.")
    assert base64.urlsafe_b64decode(call.pop("thoughtSignature")) == base64.b64decode(signature(first))
    assert call == {"functionCall": {"id": "call_1", "name": "Echo", "args": {"message": "hëllo"}}}
    for message in json.loads(json.dumps(stage.conversation.messages)):
        TypeAdapter(types.Content).validate_python(message)


async def test_a_signature_on_an_empty_part_is_kept_and_text_beside_it_not_joined(scene: Scene, streams: bool) -> None:
    signed = {"text": "", "thoughtSignature": "c2ln"}
    parts = ({"text": "One. "}, {"text": "Two."}, signed, {"text": "Three."})
    stage = scene(GEMINI, Say(extra=parts), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")
    await stage.conversation.run("And?")

    sent = stage.server.requests[1]["contents"][1]["parts"]
    assert turn.text == "One. Two.Three."
    assert sent == [{"text": "One. Two."}, {"text": "", "thoughtSignature": "c2ln"}, {"text": "Three."}]


async def test_calls_without_ids_are_answered_without_in_their_order(scene: Scene, streams: bool) -> None:
    asked = tuple(("", "Meet", json.dumps({"who": who, "count": 3})) for who in ("ann", "bob", "eve"))
    stage = scene(GEMINI, Say(calls=asked), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Meet")

    assert stage.told() == [(None, f"{who} met", False) for who in ("ann", "bob", "eve")]
    assert len({answer.call.id for answer in turn.steps[0].answers}) == 3
    assert stage.server.refusals == []


async def test_fifty_calls_of_one_reply_run_together(scene: Scene, streams: bool) -> None:
    asked = tuple((f"call_{n}", "Meet", json.dumps({"who": str(n), "count": 50})) for n in range(50))
    stage = scene(GEMINI, Say(calls=asked), Say("Done."), **hook(streams))

    await stage.conversation.run("Meet")

    assert stage.told() == [(f"call_{n}", f"{n} met", False) for n in range(50)]


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        ("MALFORMED_FUNCTION_CALL", "it is malformed."),
        ("MALFORMED_FUNCTION_CALL: print(default_api.Echo(", "it is malformed: print(default_api.Echo(."),
        ("UNEXPECTED_TOOL_CALL: Sing", "it is not a call of an offered function: Sing."),
    ],
)
async def test_a_call_that_gemini_could_not_read_is_told_to_the_model_which_may_send_a_better_one(
    scene: Scene, streams: bool, stop: str, why: str
) -> None:
    stage = scene(VERTEX, Say(stop=stop), Say(calls=ECHO), Say("Done."), **hook(streams))

    turn = await stage.conversation.run("Go")

    [told] = stage.server.requests[1]["contents"][1]["parts"]
    assert told["text"].startswith(f"Your tool call did not run, because {why} Send it again")
    assert (turn.text, len(turn.steps), stage.told()) == ("Done.", 3, [("call_1", "hëllo", False)])


async def test_a_model_that_only_sends_calls_that_cannot_be_read_ends_at_the_step_limit(
    scene: Scene, streams: bool
) -> None:
    stage = scene(GEMINI, *[Say(stop="MALFORMED_FUNCTION_CALL")] * 3, **hook(streams))

    turn = await stage.conversation.run("Go", max_steps=3)

    assert (turn.stop, len(turn.steps), stage.server.refusals) == ("step_limit", 3, [])


async def test_what_the_filters_hold_back_runs_nothing_and_says_why(
    scene: Scene, streams: bool, executor: ToolExecutor
) -> None:
    stage = scene(VERTEX, Say("Well,", ECHO, stop="SAFETY: dangerous"), Say("Sorry."), **hook(streams))

    turn = await stage.conversation.run("Go")
    again = await stage.conversation.run("Otherwise?")

    assert (turn.stop, turn.problem) == ("refused", "The provider withheld the reply: SAFETY: dangerous.")
    assert (again.text, executor.get_executions(), stage.server.refusals) == ("Sorry.", [], [])


@pytest.mark.parametrize(
    ("say", "stop", "problem"),
    [
        (Say(stop=BLOCKED), "refused", "The provider refused the prompt: SAFETY."),
        (Say(stop="none"), "failed", "The provider sent no candidate."),
        (Say(stop="OTHER"), "failed", "The provider ended the reply: OTHER."),
        (Say(stop="SAFETY"), "refused", "The provider withheld the reply: SAFETY."),
        (Say(), "answered", None),
    ],
)
async def test_a_reply_without_content_ends_the_run_and_does_not_go_back(
    scene: Scene, streams: bool, say: Say, stop: str, problem: str | None
) -> None:
    stage = scene(GEMINI, say, Say("Done."), **hook(streams))

    nothing = await stage.conversation.run("Go")
    something = await stage.conversation.run("And?")

    assert (nothing.text, nothing.stop, nothing.problem, something.text) == ("", stop, problem, "Done.")
    assert [content["parts"] for content in stage.server.requests[1]["contents"]] == [
        [{"text": "Go"}],
        [{"text": "And?"}],
    ]


@pytest.mark.filterwarnings("ignore:NEWLY_INVENTED is not a valid FinishReason")
async def test_an_ending_that_is_not_known_is_a_failure_that_names_it(scene: Scene, streams: bool) -> None:
    stage = scene(GEMINI, Say("x", ECHO, stop="NEWLY_INVENTED"), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert (turn.stop, turn.problem) == ("failed", "The provider ended the reply: NEWLY_INVENTED.")


@pytest.mark.parametrize("name", ["Échö", "读", "Echo\n", "a" * 200])
async def test_a_call_of_a_strange_name_is_an_error_that_the_model_is_told(
    scene: Scene, streams: bool, name: str
) -> None:
    stage = scene(GEMINI, Say(calls=(("call_1", name, "{}"),)), Say("I see."), **hook(streams))

    turn = await stage.conversation.run("Go")

    [(key, text, is_error)] = stage.told()
    assert (turn.text, key, is_error) == ("I see.", "call_1", True)
    assert text.startswith("Error: Unknown tool: ")


def piece(path: str, **value: Any) -> dict[str, Any]:
    return {"functionCall": {"willContinue": True, "partialArgs": [{"jsonPath": path, **value}]}}


PIECES = (
    {"functionCall": {"name": "Table", "id": "call_1", "willContinue": True}, "thoughtSignature": "-__-"},
    piece("$.columns[0]", stringValue="fi", willContinue=True),
    piece("$.columns[0]", stringValue="rst"),
    piece("$.columns[1]['a.b'].c", numberValue=2.0),
    piece('$.columns[1]["it\\"s"]', numberValue=0.5),
    piece("$.columns[2]", boolValue=True),
    piece("$.columns[3]", nullValue="NULL_VALUE"),
    {"functionCall": {}},
    {"functionCall": {"name": "Table", "id": "call_2"}},
)
"""Arguments as Vertex streams them where it is asked to."""


async def test_arguments_that_are_streamed_in_pieces_are_put_together(scene: Scene) -> None:
    stage = scene(VERTEX, Say(extra=PIECES), Say("Done."), **hook(streams=True))

    turn = await stage.conversation.run("Go")

    columns = ["first", {"a.b": {"c": 2}, 'it"s': 0.5}, True, None]
    first, second = stage.conversation.messages[1]["parts"]
    assert (turn.text, stage.server.refusals) == ("Done.", [])
    assert first["function_call"] == {"id": "call_1", "name": "Table", "args": {"columns": columns}}
    assert second == {"function_call": {"id": "call_2", "name": "Table"}}
    assert json.loads(stage.told()[0][1]) == {"columns": columns}


async def test_of_several_candidates_the_first_counts_however_they_come() -> None:
    def candidate(index: int, text: str) -> dict[str, Any]:
        return {"index": index, "content": {"parts": [{"text": text}]}, "finish_reason": "STOP"}

    async def stream() -> AsyncIterator[types.GenerateContentResponse]:
        for candidates in ([candidate(1, "No.")], [candidate(0, "Yes."), candidate(1, "Never.")]):
            yield types.GenerateContentResponse.model_validate({"candidates": candidates})

    assert (await GenerateContent("m").assemble(stream())).text == "Yes."


class Severed(GeminiServer):
    """Announces more than it sends before it hangs up."""

    def serve(self, http: BaseHTTPRequestHandler) -> None:
        request = json.loads(http.rfile.read(int(http.headers["content-length"])))
        [(_, first), *_] = self.events(self.script.pop(0), request)
        http.send_response(200)
        http.send_header("content-type", "text/event-stream")
        http.send_header("content-length", "10000")
        http.end_headers()
        http.wfile.write(f"data: {json.dumps(first)}\n\n".encode())


async def test_a_connection_that_is_severed_midway_is_raised_and_runs_nothing(
    scene: Scene, executor: ToolExecutor
) -> None:
    seen: list[str] = []
    stage = scene(replace(GEMINI, server=Severed), Say("x", ECHO), on_event=lambda chunk: seen.append(chunk.text))

    with pytest.raises(Exception, match=r"peer closed connection|not completed"):
        await stage.conversation.run("Go")

    assert seen == ["x"]
    assert (executor.get_executions(), len(stage.conversation.messages)) == ([], 1)


class Imitation(GeminiServer):
    """Sends arguments as text, which Gemini never does and its SDK refuses."""

    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        body = super().body(say, request)
        body["candidates"][0]["content"]["parts"][0]["functionCall"]["args"] = say.calls[0][2]
        return body

    def events(self, say: Say, request: dict[str, Any]) -> Any:
        event: Event = (None, self.body(say, request))
        yield event


async def test_a_reply_that_the_sdk_cannot_read_ends_the_run_with_the_way_out(scene: Scene, streams: bool) -> None:
    stage = scene(replace(GEMINI, server=Imitation), Say(calls=ECHO), **hook(streams))

    turn = await stage.conversation.run("Go")

    assert turn.stop == "failed"
    assert "candidates.0.content.parts.0.functionCall.args" in (turn.problem or "")
    assert "use ChatCompletions" in (turn.problem or "")


class Chosen(BaseModel):
    number: int


async def test_what_a_hook_raises_is_not_taken_for_the_server_s_failure(scene: Scene) -> None:
    stage = scene(GEMINI, Say("One."), on_event=lambda chunk: Chosen.model_validate({"number": "one"}))

    with pytest.raises(ValueError, match="Chosen"):
        await stage.conversation.run("Go")


async def test_fields_of_the_config_and_tools_of_the_provider_go_into_each_request(
    scene: Scene, streams: bool, executor: ToolExecutor
) -> None:
    options = {"temperature": 0.5, "thinking_config": {"thinking_level": "low"}, "tools": [{"google_search": {}}]}
    offered = Toolset(executor, names=["Echo"])
    stage = scene(
        GEMINI, Say(calls=ECHO), Say("Done."), toolset=offered, instructions="Be brief.", **options, **hook(streams)
    )

    await stage.conversation.run("Go")

    for request in stage.server.requests:
        [theirs, ours] = request["tools"]  # the SDK puts functions last
        assert [function["name"] for function in ours["functionDeclarations"]] == ["Echo"]
        assert theirs == {"googleSearch": {}}
        assert request["generationConfig"]["temperature"] == 0.5
        assert request["systemInstruction"]["parts"] == [{"text": "Be brief."}]


async def test_what_the_api_refuses_is_raised_and_harms_no_history(scene: Scene) -> None:
    stage = scene(GEMINI, Say("Done."), messages=[{"role": "narrator", "parts": [{"text": "Once"}]}])

    with pytest.raises(genai.errors.ClientError, match="Please use a valid role"):
        await stage.conversation.run("Go")

    del stage.conversation.messages[0]
    assert (await stage.conversation.run()).text == "Done."


async def test_the_client_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with GeminiServer(Say("Hi.")) as server:
        monkeypatch.setenv("GEMINI_API_KEY", "test")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        model = GenerateContent("m")

        reply = await model.ask([model.prompt("Hi")], [])

        await model.client.aclose()
    assert reply.text == "Hi."


@pytest.mark.parametrize("option", ["config", "contents", "stream"])
def test_what_the_adapter_sets_is_no_option(option: str) -> None:
    with pytest.raises(TypeError, match=r"as keywords|on_event"):
        GenerateContent("m", **{option: {}})


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)
    monkeypatch.delattr("google.genai")

    with pytest.raises(ImportError, match=r'pip install "forge-tools\[gemini\]"'):
        await GenerateContent("m").ask([], [])
