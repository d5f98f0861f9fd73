"""The responses API: tools, calls and results as `client.responses` takes and gives them."""

from collections.abc import AsyncIterable, Sequence
from dataclasses import replace
from typing import Any

from forge_tools.adapters.calls import Answer, ToolCall, sendable_text
from forge_tools.adapters.conversation import BROKEN_OFF, CALL_CUT_OFF, CUT_OFF, Hook, Message, Reply, Usage, told
from forge_tools.adapters.openai.sdk import Requests
from forge_tools.records import Schema, ToolSpec

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Responses(Requests):
    """A model behind the responses API. Each request carries the whole history; nothing depends on what the provider keeps."""

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """The `tools` of a request; here they would be strict if nothing was said.

        Raises:
            InvalidToolError: when `strict` is asked of a tool that cannot be.
        """
        return [{"type": "function", **function} for function in self.functions(specs)]

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        """Send one request; with `on_event`, stream, and hand on each event."""
        request: dict[str, Any] = {"model": self._model, "input": list(messages)}
        if offered := [*tools, *self._own_tools]:  # an empty list is refused
            request["tools"] = offered
        if self._instructions is not None:
            request["instructions"] = self._instructions
        if on_event is None:
            return self.read(await self.client.responses.create(**request | self._request))
        async with await self.client.responses.create(**request | {"stream": True} | self._request) as stream:
            return await self.assemble(stream, on_event)

    def read(self, response: Any) -> Reply:
        """Take a `Response` apart."""
        return _reply(response, [item.to_dict() for item in response.output])

    async def assemble(self, stream: AsyncIterable[Any], on_event: Hook | None = None) -> Reply:
        """Read a stream to its last event; where that does not repeat the items, those that came before count."""
        items: dict[int, dict[str, Any]] = {}
        reply = Reply.failure(BROKEN_OFF, Usage(requests=1))
        async for event in stream:
            await told(on_event, event)
            if event.type == "response.output_item.done":
                items[event.output_index] = event.item.to_dict()
            elif event.type == "error":
                reply = Reply.failure(f"The provider failed: {event.message}", Usage(requests=1), event)
            elif event.type in _LAST_EVENTS:
                output = [item.to_dict() for item in event.response.output or ()]
                reply = _reply(event.response, output or [items[index] for index in sorted(items)])
        return reply

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """One item for each call; there is no flag for failures, whose text begins with `Error:`."""
        return [
            {"type": "function_call_output", "call_id": answer.call.id, "output": answer.text} for answer in answers
        ]


def _reply(response: Any, items: list[dict[str, Any]]) -> Reply:
    usage = _usage(response.usage)
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
    if calls and why is not None:
        calls[-1] = replace(calls[-1], problem=CALL_CUT_OFF)
    reply = Reply(text="".join(texts or refusals), messages=kept, calls=calls, usage=usage, raw=response)
    if why == "content_filter":
        return replace(reply, stop="refused", problem="The provider's content filter held the reply back.")
    if why is not None:
        return replace(reply, stop="cut_off", problem=CUT_OFF)
    if refusals:
        return replace(reply, stop="refused", problem=f"The model declined: {''.join(refusals)}")
    return reply


def _parts(items: Sequence[dict[str, Any]], name: str) -> list[str]:
    contents = (part for item in items if item["type"] == "message" for part in item.get("content") or ())
    return [part[name] for part in contents if part.get(name)]


def _usage(usage: Any) -> Usage:
    if usage is None:
        return Usage(requests=1)
    details = usage.input_tokens_details
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens or 0,  # other servers may not count
        output_tokens=usage.output_tokens or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )
