"""Anthropic's messages API: tools, calls and results in the format of `client.messages`."""

from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import replace
from typing import Any

from forge_tools.adapters.conversation import PAUSED, UNREADABLE, Hook, Message, Model, Reply, Usage, extra, sendable
from forge_tools.adapters.toolset import Answer, Shown, ToolCall
from forge_tools.model.tools import Schema, ToolSpec
from forge_tools.schema.providers import render

_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded"})


class Messages(Model):
    """A model behind the messages API."""

    def __init__(
        self,
        model: str,
        client: Any = None,
        *,
        max_tokens: int = 8_192,
        instructions: str | None = None,
        **request: Any,
    ) -> None:
        """Name the model; `client` is an AsyncAnthropic, by default one from the environment.

        `instructions` are the system prompt; further keywords go into each request unchanged, `tools` beside ours.
        """
        super().__init__(client, request)
        self._request = {"model": model, "max_tokens": max_tokens, **self._request}
        if instructions is not None:
            self._request["system"] = instructions

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        return [render(spec, "anthropic") for spec in specs]

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        request = {"messages": list(messages), **self.offered(tools), **self._request}
        return await self.exchange(self.client.messages.create, request, on_event)

    def read(self, message: Any) -> Reply:
        usage = _usage(_counts(message.usage))
        return _reply([block.to_dict() for block in message.content], message.stop_reason, usage, message)

    async def assemble(self, stream: AsyncIterable[Any]) -> Reply:
        """Assemble the events of a stream; tool input arrives in fragments of JSON, which may be invalid."""
        blocks: dict[int, dict[str, Any]] = {}
        stop, is_complete, usage = None, False, dict[str, Any]()
        async for event in stream:
            if event.type == "message_start":
                usage = _counts(event.message.usage)
            elif event.type == "content_block_start":
                blocks[event.index] = event.content_block.to_dict()
            elif event.type == "content_block_delta":
                _add(blocks[event.index], event.delta.to_dict())
            elif event.type == "message_delta":
                stop = event.delta.stop_reason
                usage |= _counts(event.usage)
            is_complete = is_complete or event.type == "message_stop"
        content = [_finished(blocks[index]) for index in sorted(blocks)]
        if not is_complete:
            return Reply.broken_off(_usage(usage), content)
        return _reply(content, stop, _usage(usage), content)

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """Return one user message with the results of all calls, failures flagged."""
        return [{"role": "user", "content": [_result(answer, self.shown(answer)) for answer in answers]}]

    @staticmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        with extra("anthropic", "The Anthropic SDK"):
            import anthropic
        return anthropic.Anthropic, anthropic.AsyncAnthropic


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    kind = delta["type"]
    if kind == "input_json_delta":
        block["_json"] = block.get("_json", "") + delta["partial_json"]
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
    else:  # each text_delta, thinking_delta and signature_delta carries a text, named after the field it extends
        name = kind.removesuffix("_delta")
        block[name] = (block.get(name) or "") + (delta.get(name) or "")


def _finished(block: dict[str, Any]) -> dict[str, Any]:
    text = block.pop("_json", "")
    if text.strip():
        block["input"] = sendable(text)  # may be invalid JSON (Anthropic, Fine-grained tool streaming)
    return block


def _sendable(block: dict[str, Any]) -> dict[str, Any]:
    kept = {name: part for name, part in block.items() if part is not None}
    return kept | {"input": sendable(kept["input"])} if "input" in kept else kept


def _reply(content: list[dict[str, Any]], stop: str | None, usage: Usage, raw: Any) -> Reply:
    kept = [_sendable(block) for block in content if block["type"] != "text" or block["text"]]  # it refuses empty ones
    if stop == "refusal":
        kept = [block for block in kept if block["type"] != "tool_use"]
    calls = [_call(block) for block in kept if block["type"] == "tool_use"]
    text = "".join(block["text"] for block in kept if block["type"] == "text")
    messages = [{"role": "assistant", "content": kept}] if kept else []
    reply = Reply(text=text, messages=messages, calls=calls, usage=usage, raw=raw)
    if stop in _CUT_OFF:
        # Behind whole calls, it may be a text that was cut.
        return reply.cut_off(in_call=bool(calls) and kept[-1]["type"] == "tool_use")
    if stop == "refusal":
        return reply.refused(f"The model declined: {text or 'it gave no reason'}")
    return replace(reply, stop=PAUSED) if stop == "pause_turn" else reply


def _call(block: dict[str, Any]) -> ToolCall:
    given = block.get("input")
    if isinstance(given, dict) and given.keys() == {UNREADABLE}:
        given = given[UNREADABLE]
    return ToolCall(block["id"], block["name"], given)


def _result(answer: Answer, shown: Sequence[Shown]) -> Message:
    blocks = [_block(one) for one in shown if (one.is_image or one.is_pdf) and not answer.is_error]  # errors are text
    content = [{"type": "text", "text": answer.text}, *blocks] if blocks else answer.text
    result = {"type": "tool_result", "tool_use_id": answer.call.id, "content": content}
    return result | {"is_error": True} if answer.is_error else result


def _block(one: Shown) -> dict[str, Any]:
    kind = "image" if one.is_image else "document"
    return {"type": kind, "source": {"type": "base64", "media_type": one.mime_type, "data": one.base64}}


def _counts(usage: Any) -> dict[str, Any]:
    """Return the token counts; other servers of this API may omit them."""
    return {name: count for name, count in usage.to_dict().items() if count is not None} if usage is not None else {}


def _usage(usage: dict[str, Any]) -> Usage:
    cached, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    return Usage(
        requests=1,
        input_tokens=(usage.get("input_tokens") or 0) + cached + written,
        output_tokens=usage.get("output_tokens") or 0,
        cached_tokens=cached,
    )
