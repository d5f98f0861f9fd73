"""OpenAI's two APIs, and the many servers that speak them: tools, calls and results in the SDK's format."""

from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, Literal

from forge_tools.adapters.conversation import Hook, Message, Model, Reply, Usage, extra, sendable_text
from forge_tools.adapters.toolset import Answer, Shown, ToolCall
from forge_tools.errors import InvalidToolError
from forge_tools.model.execution import new_id
from forge_tools.model.tools import Schema, ToolSpec
from forge_tools.schema import is_of_type
from forge_tools.schema.providers import input_schema, render

__all__ = ["ChatCompletions", "Responses"]

_FILTERED = "The provider's content filter withheld the reply."

_NOT_SENT_BACK = frozenset({"annotations", "audio", "function_call", "refusal"})
"""Parts of a chat completions reply that requests do not accept."""

_SOUNDS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})

_KEPT = frozenset(
    {"type", "description", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"}
    | {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minItems", "maxItems"}
)
"""Keywords that strict mode supports (OpenAI, Structured Outputs, supported schemas)."""

_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
"""The formats that strict mode supports; it refuses all others."""

_TOLD = {"minLength": "at least {} characters", "maxLength": "at most {} characters", "default": "default: {}"}
"""Keywords that strict mode lacks and a model should know: the description states them, and the executor checks them."""

_UNSUPPORTED = frozenset(
    {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties"}
)

_TYPES = ("string", "boolean", "integer", "number", "array", "object", "null")
"""A value that fits several, as 1 does, counts as the first."""

_MAX_DEPTH = 10
_MAX_PROPERTIES = 5_000


class _Requests(Model):
    """What requests of both APIs share: the model, its instructions, and the strictness of tools."""

    def __init__(
        self,
        model: str,
        client: Any = None,
        *,
        instructions: str | None = None,
        strict: bool | Literal["auto"] = False,
        **request: Any,
    ) -> None:
        """Name the model; `client` is an AsyncOpenAI, by default one from the environment.

        With `strict` the provider enforces the schemas of the tools; "auto" leaves schemas unchanged that strict mode
        cannot describe. Further keywords go into each request unchanged, `tools` beside ours.
        """
        super().__init__(client, request)
        self._model = model
        self._instructions = instructions
        self._strict = strict

    def _function(self, spec: ToolSpec) -> Schema:
        function: Schema = render(spec, "openai")["function"]
        if self._strict:
            try:
                return function | {"parameters": strict_parameters(spec), "strict": True}
            except InvalidToolError:
                if self._strict != "auto":
                    raise
        return function

    @staticmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        with extra("openai", "The OpenAI SDK"):
            import openai
        return openai.OpenAI, openai.AsyncOpenAI


class ChatCompletions(_Requests):
    """A model behind the chat completions API."""

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """Return the `tools` of a request.

        Raises:
            InvalidToolError: when `strict` is required of a tool that does not support it.
        """
        return [{"type": "function", "function": self._function(spec)} for spec in specs]

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        request: dict[str, Any] = {"model": self._model, "messages": self._instructed(messages)}
        if on_event is not None:
            request["stream_options"] = {"include_usage": True}  # else streams count no tokens
        request |= self.offered(tools) | self._request
        return await self.exchange(self.client.chat.completions.create, request, on_event)

    def read(self, completion: Any) -> Reply:
        usage = _usage(completion.usage, "prompt", "completion")
        if not completion.choices:
            why = getattr(completion, "error", None)  # other servers fail with status 200
            return Reply.failure(f"The provider sent no choice{f': {why}' if why else '.'}", usage, completion)
        choice = completion.choices[0]
        return _chat_reply(choice.message.to_dict(), choice.finish_reason, usage, completion)

    async def assemble(self, stream: AsyncIterable[Any]) -> Reply:
        """Assemble the chunks of a stream; tool calls come in fragments, several at a time."""
        message: Message = {"role": "assistant"}
        calls: dict[int, dict[str, Any]] = {}
        finish, counts = None, None
        async for chunk in stream:
            counts = chunk.usage or counts
            for choice in (chunk.choices or ())[:1]:
                finish = choice.finish_reason or finish
                _add(message, calls, choice.delta.to_dict() if choice.delta else {})
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        usage = _usage(counts, "prompt", "completion")
        if finish is None:
            return Reply.broken_off(usage, message)
        return _chat_reply(message, finish, usage, message)

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """Return one `tool` message for each call; there is no flag for failures, whose text begins with `Error:`.

        These messages hold only text: media that can be shown follow in a user message.
        """
        told = [{"role": "tool", "tool_call_id": answer.call.id, "content": answer.text} for answer in answers]
        seen = [part for answer in answers for one in self.shown(answer) if (part := _chat_part(one))]
        said = {"type": "text", "text": "The media that the tools returned, in the order of their results:"}
        return [*told, *([{"role": "user", "content": [said, *seen]}] if seen else [])]


class Responses(_Requests):
    """A model behind the responses API. Each request carries the whole history, independent of provider storage."""

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """Return the `tools` of a request, as for chat completions; this API makes tools strict unless told otherwise."""
        return [{"type": "function", "strict": False, **self._function(spec)} for spec in specs]

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        request: dict[str, Any] = {"model": self._model, "input": list(messages), **self.offered(tools)}
        if self._instructions is not None:
            request["instructions"] = self._instructions
        return await self.exchange(self.client.responses.create, request | self._request, on_event)

    def read(self, response: Any) -> Reply:
        return _response_reply(response, [item.to_dict() for item in response.output])

    async def assemble(self, stream: AsyncIterable[Any]) -> Reply:
        """Read a stream to its last event; if that does not repeat the items, the earlier ones count."""
        items: dict[int, dict[str, Any]] = {}
        reply = Reply.broken_off(Usage(requests=1))
        async for event in stream:
            if event.type == "response.output_item.done":
                items[event.output_index] = event.item.to_dict()
            elif event.type == "error":
                reply = Reply.failure(f"The provider failed: {event.message}", Usage(requests=1), event)
            elif event.type in _LAST_EVENTS:
                output = [item.to_dict() for item in event.response.output or ()]
                reply = _response_reply(event.response, output or [items[index] for index in sorted(items)])
        return reply

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """Return one item for each call; there is no flag for failures, whose text begins with `Error:`."""
        return [
            {"type": "function_call_output", "call_id": answer.call.id, "output": _output(answer, self.shown(answer))}
            for answer in answers
        ]


def _chat_part(one: Shown) -> dict[str, Any] | None:
    if one.is_image:
        return {"type": "image_url", "image_url": {"url": one.url}}
    if one.is_pdf:
        return {"type": "file", "file": {"filename": one.part.name, "file_data": one.url}}
    kind = _SOUNDS.get(one.mime_type)
    return {"type": "input_audio", "input_audio": {"data": one.base64, "format": kind}} if kind else None


def _output(answer: Answer, shown: Sequence[Shown]) -> str | list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for one in shown:
        if one.is_image:
            parts.append({"type": "input_image", "image_url": one.url, "detail": "auto"})
        elif one.is_pdf:
            parts.append({"type": "input_file", "filename": one.part.name, "file_data": one.url})
    return [{"type": "input_text", "text": answer.text}, *parts] if parts else answer.text


def _add(message: Message, calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    for name, part in delta.items():
        if name not in {"role", "tool_calls"} and isinstance(part, str):  # reasoning of other servers' models, too
            message[name] = message.get(name, "") + part
    for fragment in delta.get("tool_calls") or ():
        call = calls.setdefault(_index(fragment, calls), {"id": "", "type": "function", "function": {}})
        call["id"] = fragment.get("id") or call["id"]
        function = fragment.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] = call["function"].get(name, "") + (function.get(name) or "")


def _index(fragment: dict[str, Any], calls: dict[int, dict[str, Any]]) -> int:
    """Return the call that a fragment belongs to; servers that send whole calls may omit the index."""
    index: int | None = fragment.get("index")
    if index is not None:
        return index
    return len(calls) if fragment.get("id") else max(0, len(calls) - 1)


def _chat_reply(message: Message, finish: str | None, usage: Usage, raw: Any) -> Reply:
    text = message.get("content") or message.get("refusal") or ""
    kept = {name: part for name, part in message.items() if part is not None and name not in _NOT_SENT_BACK}
    if finish == "content_filter":  # what it left of a call must not run
        kept.pop("tool_calls", None)
    calls = _calls(kept.get("tool_calls") or [])
    for one in kept.get("tool_calls") or ():
        if function := one.get("function"):
            function["arguments"] = sendable_text(function.get("arguments"))
    if not calls:
        kept.pop("tool_calls", None)
    kept["content"] = message.get("content") if calls else text  # null is refused, except beside calls
    reply = Reply(text=text, messages=[kept], calls=calls, usage=usage, raw=raw)
    if finish == "length":
        return reply.cut_off()
    if message.get("refusal"):
        return reply.refused(f"The model declined: {text}")
    return reply.refused(_FILTERED) if finish == "content_filter" else reply


def _calls(asked: Sequence[dict[str, Any]]) -> list[ToolCall]:
    ids: set[str] = set()
    for one in asked:
        if not one.get("id") or one["id"] in ids:  # other servers may omit ids or repeat them; answers need unique ones
            one["id"] = f"call_{new_id()}"
        ids.add(one["id"])
    parts = [one.get("function") or one.get("custom") or {} for one in asked]
    return [
        ToolCall(one["id"], part.get("name") or "", part.get("arguments", part.get("input")))
        for one, part in zip(asked, parts, strict=True)
    ]


def _response_reply(response: Any, items: list[dict[str, Any]]) -> Reply:
    usage = _usage(response.usage, "input", "output")
    if response.status in {"failed", "cancelled"}:
        error = response.error.message if response.error else response.status
        return Reply.failure(f"The provider failed: {error}", usage, response)
    kept = [{name: part for name, part in item.items() if part is not None} for item in items]
    why = response.incomplete_details.reason if response.incomplete_details else None
    if why == "content_filter":
        kept = [item for item in kept if item["type"] != "function_call"]
    refusals, texts = _parts(kept, "refusal"), _parts(kept, "text")
    calls = [ToolCall(i["call_id"], i["name"], i["arguments"]) for i in kept if i["type"] == "function_call"]
    for item in kept:
        if item["type"] == "function_call":
            item["arguments"] = sendable_text(item["arguments"])
    reply = Reply(text="".join(texts or refusals), messages=kept, calls=calls, usage=usage, raw=response)
    if why == "content_filter":
        return reply.refused(_FILTERED)
    if why is not None:
        return reply.cut_off()
    return reply.refused(f"The model declined: {''.join(refusals)}") if refusals else reply


def _parts(items: Sequence[dict[str, Any]], name: str) -> list[str]:
    contents = (part for item in items if item["type"] == "message" for part in item.get("content") or ())
    return [part[name] for part in contents if part.get(name)]


def _usage(counts: Any, read: str, written: str) -> Usage:
    """Return the counts of tokens `read` and `written`; other servers may omit them."""
    if counts is None:
        return Usage(requests=1)
    details = getattr(counts, f"{read}_tokens_details")
    return Usage(
        requests=1,
        input_tokens=getattr(counts, f"{read}_tokens") or 0,
        output_tokens=getattr(counts, f"{written}_tokens") or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )


def strict_parameters(spec: ToolSpec) -> Schema:
    """Describe the parameters so that the provider can enforce them: every object closed, every member required.

    Optional members may be null, which means absent.

    Raises:
        InvalidToolError: naming the member that strict mode cannot describe, and how to fix it.
    """
    return _Strict(spec.name).whole(input_schema(spec))


class _Strict:
    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._properties = 0

    def whole(self, schema: Schema) -> Schema:
        if unsupported := sorted((_UNSUPPORTED | {"anyOf", "$ref"}) & schema.keys()):
            raise self._refused("its input", f"uses {unsupported[0]}, which strict mode does not allow there")
        return self.object({keyword: part for keyword, part in schema.items() if keyword in _KEPT}, "", 1)

    def object(self, schema: Schema, path: str, depth: int) -> Schema:
        declared: dict[str, Schema] = schema.get("properties") or {}
        if path and not declared:
            raise self._refused(path, "is an object whose members are not declared: list them in `properties`")
        if schema.get("additionalProperties") not in (None, False):
            raise self._refused(path, "allows members that are not declared: set `additionalProperties` to false")
        if depth > _MAX_DEPTH:
            raise self._refused(path, f"is nested deeper than {_MAX_DEPTH} levels")
        self._properties += len(declared)
        if self._properties > _MAX_PROPERTIES:
            raise self._refused(path, f"is one of more than {_MAX_PROPERTIES:,} properties")
        required = set(schema.get("required") or ())
        members = {}
        for name, member in declared.items():
            strict = self.value(member, f"{path}.{name}" if path else name, depth)
            members[name] = strict if name in required else _nullable(strict)
        return schema | {"properties": members, "required": list(members), "additionalProperties": False}

    def value(self, schema: Schema, path: str, depth: int) -> Schema:
        if unsupported := sorted(_UNSUPPORTED & schema.keys()):
            raise self._refused(path, f"uses {unsupported[0]}, which strict mode does not support")
        kept = {keyword: part for keyword, part in schema.items() if keyword in _KEPT}
        notes = [note.format(schema[name]) for name, note in _TOLD.items() if schema.get(name) is not None]
        if "format" in kept and kept["format"] not in _FORMATS:
            notes.append(f"format: {kept.pop('format')}")
        if notes:
            kept["description"] = f"{schema.get('description', '')} ({', '.join(notes)})".strip()
        if "anyOf" in kept:
            kept["anyOf"] = [self.value(part, path, depth + 1) for part in kept["anyOf"]]
            return kept
        if "type" not in kept:
            kept["type"] = self._type_of(kept, path)
        types = kept["type"]
        if _is(types, "object"):
            kept = self.object(kept, path, depth + 1)
        if _is(types, "array"):
            if not kept.get("items") or isinstance(kept["items"], list):
                raise self._refused(path, "is an array of anything: describe its `items`")
            kept["items"] = self.value(kept["items"], f"{path}[]", depth)
        return kept

    def _type_of(self, choices: Schema, path: str) -> str | list[str]:
        """Return the type that strict mode wants beside choices."""
        allowed = [choices["const"]] if "const" in choices else choices.get("enum", ())
        types = list(dict.fromkeys(next(name for name in _TYPES if is_of_type(one, name)) for one in allowed))
        if not types:
            raise self._refused(path, "allows any value: give it a type")
        return types[0] if len(types) == 1 else types

    def _refused(self, path: str, why: str) -> InvalidToolError:
        message = f'{self._tool} cannot be offered in strict mode: {path or "it"} {why}. Or ask for strict="auto", which leaves such tools as they are.'
        return InvalidToolError(self._tool, message)


def _is(types: Any, name: str) -> bool:
    return types == name or (isinstance(types, list) and name in types)


def _nullable(schema: Schema) -> Schema:
    if "anyOf" in schema:
        is_nullable = any(_is(part.get("type"), "null") for part in schema["anyOf"])
        return schema if is_nullable else {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "const" in schema:
        schema = {keyword: part for keyword, part in schema.items() if keyword != "const"} | {"enum": [schema["const"]]}
    if "enum" in schema and None not in schema["enum"]:
        schema = schema | {"enum": [*schema["enum"], None]}
    types = schema["type"]
    if _is(types, "null"):
        return schema
    return schema | {"type": [*types, "null"] if isinstance(types, list) else [types, "null"]}
