"""The generateContent API: tools, calls and results as `client.aio.models` takes and gives them."""

import re
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from forge_tools.adapters.calls import Answer, ToolCall
from forge_tools.adapters.conversation import BROKEN_OFF, CALL_CUT_OFF, CUT_OFF, Hook, Message, Reply, Usage, told
from forge_tools.adapters.gemini.parts import Part, add_part, sendable
from forge_tools.adapters.sdk import SdkModel, extra, unreadable
from forge_tools.errors import InvalidToolError
from forge_tools.records import Schema, ToolSpec, new_id
from forge_tools.schemas import render

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
"""Names of functions (google.genai.types.FunctionDeclaration)."""

_UNNAMED = "unnamed-"
"""How the ids begin of calls that came without; such calls are answered without, in their order."""

_UNREAD = {
    "MALFORMED_FUNCTION_CALL": "it is malformed",
    "UNEXPECTED_TOOL_CALL": "it is not of a function that is offered",
}
"""Calls that the provider could not read, and ended the reply at."""

_REFUSED = frozenset(
    {"SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR"}
    | {"IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "PUP_LIMITED_DISABLED"}
)


class GenerateContent(SdkModel):
    """A model behind the generateContent API."""

    def __init__(self, model: str, client: Any = None, *, instructions: str | None = None, **request: Any) -> None:
        """Name the model; `client` is a `genai.Client` or its `aio`, by default one from the environment.

        `instructions` are the system prompt; further keywords are fields of each request's `GenerateContentConfig`,
        `tools` beside ours.

        Raises:
            TypeError: for a keyword that is set here.
        """
        if "config" in request:
            raise TypeError("Give the fields of `config` as keywords, such as temperature=0.")
        super().__init__(getattr(client, "aio", client), request)
        self._model = model
        self._config = {"automatic_function_calling": {"disable": True}, **self._request}
        if instructions is not None:
            self._config["system_instruction"] = instructions

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """The `tools` of a request: one that declares all functions.

        Raises:
            InvalidToolError: when Gemini takes no function of that name.
        """
        return [{"function_declarations": [_declaration(spec) for spec in specs]}] if specs else []

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        """Send one request; with `on_event`, stream, and hand on each chunk."""
        config = self._config
        if offered := [*tools, *self._own_tools]:
            config = {**config, "tools": offered}
        request = {"model": self._model, "contents": list(messages), "config": config}
        models = self.client.models
        try:
            if on_event is None:
                return self.read(await models.generate_content(**request))
            async with aclosing(await models.generate_content_stream(**request)) as stream:
                return await self.assemble(stream, on_event)
        except ValidationError as error:
            if error.title != "GenerateContentResponse":  # a hook raised it, or the request is not one
                raise
            return Reply.failure(unreadable(error, "Gemini"), Usage(requests=1))

    def read(self, response: Any) -> Reply:
        """Take a `GenerateContentResponse` apart."""
        parts, ending = list[Part](), _Ending()
        _take(response, parts, ending)
        return self._reply(parts, ending, response)

    async def assemble(self, stream: AsyncIterable[Any], on_event: Hook | None = None) -> Reply:
        """Put the chunks of a stream together."""
        parts, ending = list[Part](), _Ending()
        async for chunk in stream:
            await told(on_event, chunk)
            _take(chunk, parts, ending)
        return self._reply(parts, ending, parts)

    def prompt(self, text: str) -> Message:
        """What a user says, as content."""
        return {"role": "user", "parts": [{"text": text}]}

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """One content that holds the responses to all calls, in their order; failures under `error`."""
        return [{"role": "user", "parts": [{"function_response": _response(answer)} for answer in answers]}]

    def _reply(self, parts: list[Part], ending: "_Ending", raw: Any) -> Reply:
        usage, reason = ending.usage, ending.reason
        if reason in _UNREAD:
            return self.asked_again(ending.said(_UNREAD[reason]), usage, raw)
        if ending.blocked is not None:
            problem = f"The provider refused the prompt: {ending.blocked}."
            return replace(Reply.failure(problem, usage, raw), stop="refused")
        if not ending.is_begun:
            return Reply.failure("The provider sent no candidate.", usage, raw)
        if reason is None:
            return Reply.failure(BROKEN_OFF, usage, raw)
        if reason in {"STOP", "MAX_TOKENS"} | _REFUSED:
            return _kept(sendable(parts), ending, raw)
        return Reply.failure(f"The provider ended the reply: {ending.said(reason)}.", usage, raw)

    @staticmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        with extra("gemini", "The Google Gen AI SDK"):
            from google import genai
        return (), lambda: genai.Client().aio


class _Ending:
    """What is known of a reply besides its parts."""

    def __init__(self) -> None:
        self.is_begun = False
        self.reason: str | None = None
        self.detail: str | None = None
        self.blocked: str | None = None
        self.usage = Usage(requests=1)

    def said(self, what: str) -> str:
        """With the provider's own words, where there are any."""
        return f"{what}: {self.detail}" if self.detail else what


def _take(chunk: Any, parts: list[Part], ending: _Ending) -> None:
    """Take in a chunk, or a response, which is one chunk; counts are those of the whole reply so far."""
    if chunk.usage_metadata is not None:
        ending.usage = _usage(chunk.usage_metadata)
    if chunk.prompt_feedback is not None and (blocked := chunk.prompt_feedback.block_reason) is not None:
        ending.blocked = chunk.prompt_feedback.block_reason_message or blocked.value
    for candidate in chunk.candidates or ():
        if candidate.index:  # another one, where several are asked for
            continue
        ending.is_begun = True
        if candidate.finish_reason is not None:
            ending.reason, ending.detail = candidate.finish_reason.value, candidate.finish_message
        for part in (candidate.content.parts if candidate.content else None) or ():
            add_part(parts, part.model_dump(mode="json", exclude_none=True))


def _kept(parts: list[Part], ending: _Ending, raw: Any) -> Reply:
    reason = ending.reason
    if reason in _REFUSED:
        parts = [part for part in parts if "function_call" not in part]
    calls = [_call(part["function_call"]) for part in parts if "function_call" in part]
    if calls and reason == "MAX_TOKENS" and "function_call" in parts[-1]:
        calls[-1] = replace(calls[-1], problem=CALL_CUT_OFF)
    text = "".join(part["text"] for part in parts if "text" in part and not part.get("thought"))
    messages = [{"role": "model", "parts": parts}] if parts else []
    reply = Reply(text=text, messages=messages, calls=calls, usage=ending.usage, raw=raw)
    if reason == "MAX_TOKENS":
        return replace(reply, stop="cut_off", problem=CUT_OFF)
    if reason in _REFUSED:
        return replace(reply, stop="refused", problem=f"The provider held the reply back: {ending.said(reason)}.")
    return reply


def _call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(call.get("id") or f"{_UNNAMED}{new_id()}", call.get("name") or "", call.get("args"))


def _response(answer: Answer) -> dict[str, Any]:
    call = answer.call
    response = {"name": call.name, "response": {"error" if answer.is_error else "output": answer.text}}
    return response if call.id.startswith(_UNNAMED) else {"id": call.id, **response}


def _declaration(spec: ToolSpec) -> Schema:
    """Declare a function by JSON Schema: the API's other form of parameters is a part of that, and refuses the rest."""
    if not _NAME.fullmatch(spec.name):
        message = f"Gemini takes no function named {spec.name}: names begin with a letter or '_'. Register it under another, or leave it out with Toolset(names=...)."
        raise InvalidToolError(spec.name, message)
    function = render(spec, "openai")["function"]
    return {"name": spec.name, "description": spec.description, "parameters_json_schema": function["parameters"]}


def _usage(counts: Any) -> Usage:
    return Usage(
        requests=1,
        input_tokens=(counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0),
        output_tokens=(counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0),
        cached_tokens=counts.cached_content_token_count or 0,
    )
