"""Ollama's chat API: tools, calls and results in the format of `client.chat`."""

import json
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from forge_tools.adapters.conversation import Hook, Message, Model, Reply, Usage, extra, sendable, unreadable
from forge_tools.adapters.toolset import Answer, ToolCall
from forge_tools.model.execution import new_id
from forge_tools.model.tools import Schema, ToolSpec
from forge_tools.schema.providers import render

_KEPT = frozenset({"type", "items", "description", "enum"})
"""The keywords of a parameter's schema that the SDK's `Tool` type keeps; the description states the others."""

_UNPARSED = "error parsing tool call"
"""How the server's error begins when a request fails because the model wrote a call as invalid JSON."""


class Chat(Model):
    """A model behind Ollama's chat API."""

    def __init__(self, model: str, client: Any = None, *, instructions: str | None = None, **request: Any) -> None:
        """Name the model; `client` is an `ollama.AsyncClient`, by default one for OLLAMA_HOST.

        `instructions` are the system prompt; further keywords, such as `think` and `options`, go into each request.
        """
        super().__init__(client, request)
        if self._own_tools:
            raise TypeError("Ollama does not run tools itself. Register them, and offer them with a Toolset.")
        self._instructions = instructions
        self._request = {"model": model, **self._request}

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """Return the `tools` of a request, still complete after the SDK's conversion to its own type."""
        return [_tool(spec) for spec in specs]

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        """Send one request. A call written as invalid JSON fails it in Ollama: the model is informed and queried again."""
        request = {"messages": self._instructed(messages), "tools": list(tools), **self._request}
        sdk = _sdk()
        try:
            return await self.exchange(self.client.chat, request, on_event)
        except sdk.ResponseError as error:
            if _UNPARSED not in (problem := str(error.error)):
                raise
            return self.asked_again(f"it is not valid JSON: {problem}", Usage(requests=1), problem)
        except ValidationError as error:
            if error.title != sdk.ChatResponse.__name__:  # a hook raised it
                raise
            return Reply.failure(unreadable(error, "Ollama"), Usage(requests=1))

    def read(self, response: Any) -> Reply:
        """Parse a `ChatResponse`, or the JSON object that it is made of."""
        fields = _fields(response)
        return _reply(dict(fields["message"]), fields, response)

    async def assemble(self, stream: AsyncIterable[Any]) -> Reply:
        """Assemble the chunks of a stream; text and thinking come in pieces, each call whole."""
        message: Message = {"role": "assistant"}
        last: Mapping[str, Any] = {}
        async for chunk in stream:
            fields = _fields(chunk)
            _add(message, fields.get("message") or {})
            last = fields if fields.get("done") else last
        if not last:
            return Reply.broken_off(Usage(requests=1), message)
        return _reply(message, last, message)

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """Return one `tool` message for each call. Ollama matches calls by order; failures begin with `Error:`."""
        results: list[Message] = []
        for answer in answers:
            images = [one.base64 for one in self.shown(answer) if one.is_image]
            result = {"role": "tool", "tool_name": answer.call.name, "content": answer.text}
            results.append(result | {"images": images} if images else result)
        return results

    @staticmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        ollama = _sdk()
        return ollama.Client, ollama.AsyncClient


def _tool(spec: ToolSpec) -> Schema:
    tool = render(spec, "ollama")
    parameters = tool["function"]["parameters"]
    parameters["properties"] = {name: _told(schema) for name, schema in parameters["properties"].items()}
    return tool


def _told(schema: Schema) -> Schema:
    """State in the description what the SDK drops: nested members, limits, defaults, alternatives."""
    kept = {keyword: part for keyword, part in schema.items() if keyword in _KEPT}
    if types := _types(schema.get("anyOf") or ()):
        kept.setdefault("type", types)
    if dropped := {keyword: part for keyword, part in schema.items() if keyword not in _KEPT}:
        rest = json.dumps(dropped, ensure_ascii=False, default=str)
        kept["description"] = f"{schema.get('description', '')} JSON Schema: {rest}".strip()
    return kept


def _types(alternatives: Sequence[Schema]) -> list[str]:
    types = [part.get("type") for part in alternatives]
    named = [name for name in types if isinstance(name, str)]
    return list(dict.fromkeys(named)) if len(named) == len(types) else []


def _fields(response: Any) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = response if isinstance(response, Mapping) else response.model_dump(exclude_none=True)
    return fields


def _add(message: Message, delta: Mapping[str, Any]) -> None:
    for name, part in delta.items():
        if name != "role" and isinstance(part, str):
            message[name] = message.get(name, "") + part
    if calls := delta.get("tool_calls"):
        message["tool_calls"] = [*message.get("tool_calls", ()), *calls]


def _reply(message: Message, fields: Mapping[str, Any], raw: Any) -> Reply:
    asked = [one["function"] for one in message.get("tool_calls") or ()]
    calls = [ToolCall(f"call_{new_id()}", one.get("name") or "", one.get("arguments")) for one in asked]
    read, written = fields.get("prompt_eval_count") or 0, fields.get("eval_count") or 0
    counted = Usage(requests=1, input_tokens=read, output_tokens=written)
    text = message.get("content") or ""
    reply = Reply(text=text, messages=_kept(message, calls), calls=calls, usage=counted, raw=raw)
    return reply.cut_off() if fields.get("done_reason") == "length" else reply


def _kept(message: Message, calls: Sequence[ToolCall]) -> list[Message]:
    """Return what goes into the history: nothing for an empty reply; thinking with the rest, as templates expect."""
    kept = {name: message[name] for name in ("content", "thinking") if message.get(name)}
    if calls:
        kept["tool_calls"] = [{"function": {"name": one.name, "arguments": sendable(one.arguments)}} for one in calls]
    return [{"role": "assistant", **kept}] if kept else []


def _sdk() -> Any:
    with extra("ollama", "The Ollama SDK"):
        import ollama
    return ollama
