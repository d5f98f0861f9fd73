"""Gemini's API, of Google AI and of Vertex AI: tools, calls and results in the format of `client.aio.models`."""

import re
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from forge_tools.adapters.conversation import Hook, Message, Model, Reply, Usage, extra, unreadable
from forge_tools.adapters.toolset import Answer, ToolCall
from forge_tools.errors import InvalidToolError
from forge_tools.model.execution import new_id
from forge_tools.model.tools import Schema, ToolSpec
from forge_tools.schema.providers import render

Part = dict[str, Any]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
"""Valid names of functions (google.genai.types.FunctionDeclaration)."""

_UNNAMED = "unnamed-"
"""The prefix of ids made for calls that have none; such calls are answered without an id, in order."""

_UNREAD = {
    "MALFORMED_FUNCTION_CALL": "it is malformed",
    "UNEXPECTED_TOOL_CALL": "it is not a call of an offered function",
}
"""Calls that the provider could not parse, at which it ended the reply."""

_REFUSED = frozenset(
    {"SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR"}
    | {"IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "PUP_LIMITED_DISABLED"}
)

_TEXT = frozenset({"text", "thought"})
_STREAMED = frozenset({"partial_args", "will_continue"})
"""Fields of a streamed call that requests do not accept."""

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]|\[(?P<quote>['"])(?P<quoted>(?:\\.|[^\\])*?)(?P=quote)\]""", re.DOTALL
)
"""One step of a JSON path (RFC 9535) that names exactly one place."""


class GenerateContent(Model):
    """A model behind the generateContent API."""

    def __init__(self, model: str, client: Any = None, *, instructions: str | None = None, **request: Any) -> None:
        """Name the model; `client` is a `genai.Client` or its `aio`, by default one from the environment.

        `instructions` are the system prompt; further keywords are fields of each request's `GenerateContentConfig`,
        `tools` beside ours.
        """
        if "config" in request:
            raise TypeError("Pass the fields of `config` as keywords, such as temperature=0.")
        super().__init__(getattr(client, "aio", client), request)
        self._model = model
        # The SDK itself would call Python functions among the caller's `tools`.
        self._config = {"automatic_function_calling": {"disable": True}, **self._request}
        if instructions is not None:
            self._config["system_instruction"] = instructions

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """The `tools` of a request: one that declares all functions.

        Raises:
            InvalidToolError: when Gemini does not accept the name of a function.
        """
        return [{"function_declarations": [_declaration(spec) for spec in specs]}] if specs else []

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        config = {**self._config, **self.offered(tools)}
        request = {"model": self._model, "contents": list(messages), "config": config}
        models = self.client.models

        async def create(*, stream: bool = False, **request: Any) -> Any:
            return await (models.generate_content_stream if stream else models.generate_content)(**request)

        try:
            return await self.exchange(create, request, on_event)
        except ValidationError as error:
            if error.title != "GenerateContentResponse":  # a hook raised it, or the request is invalid
                raise
            return Reply.failure(unreadable(error, "Gemini"), Usage(requests=1))

    def read(self, response: Any) -> Reply:
        parts, ending = list[Part](), _Ending()
        _take(response, parts, ending)
        return self._reply(parts, ending, response)

    async def assemble(self, stream: AsyncIterable[Any]) -> Reply:
        parts, ending = list[Part](), _Ending()
        async for chunk in stream:
            _take(chunk, parts, ending)
        return self._reply(parts, ending, parts)

    def prompt(self, text: str) -> Message:
        return {"role": "user", "parts": [{"text": text}]}

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """Return one content with all responses, in order, failures under `error`. Media that can be shown follow."""
        told: list[Part] = [{"function_response": _response(answer)} for answer in answers]
        seen = [one for answer in answers for one in self.shown(answer)]
        inline: list[Part] = [{"inline_data": {"mime_type": one.mime_type, "data": one.base64}} for one in seen]
        return [{"role": "user", "parts": told + inline}]

    def _reply(self, parts: list[Part], ending: "_Ending", raw: Any) -> Reply:
        usage, reason = ending.usage, ending.reason
        if reason in _UNREAD:
            return self.asked_again(ending.said(_UNREAD[reason]), usage, raw)
        if ending.blocked is not None:
            problem = f"The provider refused the prompt: {ending.blocked}."
            return Reply.failure(problem, usage, raw).refused(problem)
        if not ending.is_begun:
            return Reply.failure("The provider sent no candidate.", usage, raw)
        if reason is None:
            return Reply.broken_off(usage, raw)
        if reason in {"STOP", "MAX_TOKENS"} | _REFUSED:
            return _kept(sendable(parts), ending, raw)
        return Reply.failure(f"The provider ended the reply: {ending.said(reason)}.", usage, raw)

    @staticmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        with extra("gemini", "The Google Gen AI SDK"):
            from google import genai
        return (), lambda: genai.Client().aio  # none is only synchronous: each has its `aio`


@dataclass(slots=True)
class _Ending:
    is_begun: bool = False
    reason: str | None = None
    detail: str | None = None
    blocked: str | None = None
    usage: Usage = field(default_factory=lambda: Usage(requests=1))

    def said(self, what: str) -> str:
        """Append the provider's own words, if there are any."""
        return f"{what}: {self.detail}" if self.detail else what


def _take(chunk: Any, parts: list[Part], ending: _Ending) -> None:
    """Add a chunk, or a response, which is one chunk; counts are those of the whole reply so far."""
    if chunk.usage_metadata is not None:
        ending.usage = _usage(chunk.usage_metadata)
    if chunk.prompt_feedback is not None and (blocked := chunk.prompt_feedback.block_reason) is not None:
        ending.blocked = chunk.prompt_feedback.block_reason_message or blocked.value
    for candidate in chunk.candidates or ():
        if candidate.index:  # an alternative, if several were requested
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
    text = "".join(part["text"] for part in parts if "text" in part and not part.get("thought"))
    messages = [{"role": "model", "parts": parts}] if parts else []
    reply = Reply(text=text, messages=messages, calls=calls, usage=ending.usage, raw=raw)
    if reason == "MAX_TOKENS":
        return reply.cut_off(in_call=bool(calls) and "function_call" in parts[-1])
    return reply.refused(f"The provider withheld the reply: {ending.said(reason)}.") if reason in _REFUSED else reply


def _call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(call.get("id") or f"{_UNNAMED}{new_id()}", call.get("name") or "", call.get("args"))


def _response(answer: Answer) -> dict[str, Any]:
    call = answer.call
    response = {"name": call.name, "response": {"error" if answer.is_error else "output": answer.text}}
    return response if call.id.startswith(_UNNAMED) else {"id": call.id, **response}


def _declaration(spec: ToolSpec) -> Schema:
    """Declare a function by JSON Schema: the API's other parameter format supports only a subset and refuses the rest."""
    if not _NAME.fullmatch(spec.name):
        message = f"Gemini does not accept a function named {spec.name}: names must begin with a letter or '_'. Register it under another name, or leave it out with Toolset(names=...)."
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


def add_part(parts: list[Part], part: Part) -> None:
    """Add the part of a chunk. One with a signature stays separate, since the signature belongs to exactly that part."""
    last = parts[-1] if parts else {}
    call = part.get("function_call")
    if call is None and _is_plain(last) and _is_plain(part) and last.get("thought") == part.get("thought"):
        last["text"] += part["text"]
    elif call is None:
        parts.append(part)
    elif call.get("name"):
        parts.append(part | {"function_call": _with_pieces(call, call)})
    else:  # only the continuation of a call comes without its name
        begun = next((at for at in reversed(range(len(parts))) if "function_call" in parts[at]), None)
        if begun is not None:
            parts[begun] |= part | {"function_call": _with_pieces(parts[begun]["function_call"], call)}


def sendable(parts: list[Part]) -> list[Part]:
    """Return what goes into the history: no empty parts, which requests refuse."""
    return [part for part in parts if part.keys() - _TEXT or part.get("text")]


def _is_plain(part: Part) -> bool:
    return "text" in part and part.keys() <= _TEXT


def _with_pieces(call: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    call = {name: value for name, value in call.items() if name not in _STREAMED}
    for piece in more.get("partial_args") or ():
        call["args"] = _with_value(call.get("args") or {}, _steps(piece.get("json_path") or ""), piece)
    return call


def _steps(path: str) -> list[str | int]:
    found = list[str | int]()
    for step in _STEP.finditer(path):
        name = step["name"] or re.sub(r"\\(.)", r"\1", step["quoted"] or "", flags=re.DOTALL)
        found.append(int(step["index"]) if step["index"] else name)
    return found


def _with_value(place: Any, steps: list[str | int], piece: dict[str, Any]) -> Any:
    """Put a piece at its path, creating objects and arrays on the way."""
    if not steps:
        return _value(place, piece)
    step, *rest = steps
    if isinstance(step, int):
        items = place if isinstance(place, list) else []
        if step < len(items):
            items[step] = _with_value(items[step], rest, piece)
        else:
            items.append(_with_value(None, rest, piece))
        return items
    members = place if isinstance(place, dict) else {}
    members[step] = _with_value(members.get(step), rest, piece)
    return members


def _value(before: Any, piece: dict[str, Any]) -> Any:
    if "string_value" in piece:
        return (before if isinstance(before, str) else "") + piece["string_value"]
    if "number_value" in piece:
        number = piece["number_value"]
        return int(number) if float(number).is_integer() else number  # the SDK reads 1 as 1.0
    return piece.get("bool_value")  # None stands for `null_value`
