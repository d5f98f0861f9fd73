"""Chat completions: tools, calls and results as `client.chat.completions` takes and gives them."""

from collections.abc import AsyncIterable, Sequence
from dataclasses import replace
from typing import Any

from forge_tools.adapters.calls import Answer, ToolCall, sendable_text
from forge_tools.adapters.conversation import BROKEN_OFF, CALL_CUT_OFF, CUT_OFF, Hook, Message, Reply, Usage, told
from forge_tools.adapters.openai.sdk import Requests
from forge_tools.adapters.sdk import with_instructions
from forge_tools.records import Schema, ToolSpec, new_id

_NOT_SENT_BACK = frozenset({"annotations", "audio", "function_call", "refusal"})
"""Parts of a reply that requests do not take."""


class ChatCompletions(Requests):
    """A model behind the chat completions API."""

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """The `tools` of a request.

        Raises:
            InvalidToolError: when `strict` is asked of a tool that cannot be.
        """
        functions = self.functions(specs)
        for function in functions:
            if not function["strict"]:  # the default, which not every server of this API knows
                del function["strict"]
        return [{"type": "function", "function": function} for function in functions]

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        """Send one request; with `on_event`, stream, and hand on each chunk."""
        request: dict[str, Any] = {"model": self._model, "messages": with_instructions(self._instructions, messages)}
        if offered := [*tools, *self._own_tools]:  # an empty list is refused
            request["tools"] = offered
        if on_event is None:
            return self.read(await self.client.chat.completions.create(**request | self._request))
        request |= {"stream": True, "stream_options": {"include_usage": True}}
        async with await self.client.chat.completions.create(**request | self._request) as stream:
            return await self.assemble(stream, on_event)

    def read(self, completion: Any) -> Reply:
        """Take a `ChatCompletion` apart."""
        usage = _usage(completion.usage)
        if not completion.choices:
            why = getattr(completion, "error", None)  # other servers fail with status 200
            return Reply.failure(f"The provider sent no choice{f': {why}' if why else '.'}", usage, completion)
        choice = completion.choices[0]
        return _reply(choice.message.to_dict(), choice.finish_reason, usage, completion)

    async def assemble(self, stream: AsyncIterable[Any], on_event: Hook | None = None) -> Reply:
        """Put the chunks of a stream together; tool calls come in fragments, several at a time."""
        message: Message = {"role": "assistant"}
        calls: dict[int, dict[str, Any]] = {}
        finish, usage = None, None
        async for chunk in stream:
            await told(on_event, chunk)
            usage = chunk.usage or usage
            for choice in (chunk.choices or ())[:1]:
                finish = choice.finish_reason or finish
                _add(message, calls, choice.delta.to_dict() if choice.delta else {})
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        if finish is None:
            return Reply.failure(BROKEN_OFF, _usage(usage), message)
        return _reply(message, finish, _usage(usage), message)

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """One `tool` message for each call; there is no flag for failures, whose text begins with `Error:`."""
        return [{"role": "tool", "tool_call_id": answer.call.id, "content": answer.text} for answer in answers]


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
    """Say to which call a fragment belongs; servers that send whole calls may leave the index out."""
    index: int | None = fragment.get("index")
    if index is not None:
        return index
    return len(calls) if fragment.get("id") else max(0, len(calls) - 1)


def _reply(message: Message, finish: str | None, usage: Usage, raw: Any) -> Reply:
    text = message.get("content") or message.get("refusal") or ""
    kept = {name: part for name, part in message.items() if part is not None and name not in _NOT_SENT_BACK}
    if finish == "content_filter":
        kept.pop("tool_calls", None)
    calls = _calls(kept.get("tool_calls") or [], is_cut_off=finish == "length")
    for one in kept.get("tool_calls") or ():
        if function := one.get("function"):
            function["arguments"] = sendable_text(function.get("arguments"))
    if not calls:
        kept.pop("tool_calls", None)
    kept["content"] = message.get("content") if calls else text
    reply = Reply(text=text, messages=[kept], calls=calls, usage=usage, raw=raw)
    if finish == "length":
        return replace(reply, stop="cut_off", problem=CUT_OFF)
    if message.get("refusal"):
        return replace(reply, stop="refused", problem=f"The model declined: {text}")
    if finish == "content_filter":
        return replace(reply, stop="refused", problem="The provider's content filter held the reply back.")
    return reply


def _calls(asked: Sequence[dict[str, Any]], *, is_cut_off: bool) -> list[ToolCall]:
    ids: set[str] = set()
    for one in asked:
        if not one.get("id") or one["id"] in ids:  # other servers may send none, or one twice; answers need one each
            one["id"] = f"call_{new_id()}"
        ids.add(one["id"])
    parts = [one.get("function") or one.get("custom") or {} for one in asked]
    calls = [
        ToolCall(one["id"], part.get("name") or "", part.get("arguments", part.get("input")))
        for one, part in zip(asked, parts, strict=True)
    ]
    if calls and is_cut_off:
        calls[-1] = replace(calls[-1], problem=CALL_CUT_OFF)
    return calls


def _usage(usage: Any) -> Usage:
    if usage is None:
        return Usage(requests=1)
    details = usage.prompt_tokens_details
    return Usage(
        requests=1,
        input_tokens=usage.prompt_tokens or 0,  # other servers may not count
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )
