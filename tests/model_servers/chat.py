"""OpenAI's chat completions, as documented."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from tests.model_servers.rules import check_arguments, check_names, check_parameters, check_strict
from tests.model_servers.wire import Event, ModelServer, Say, fragments, require

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 4}}
FIELDS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "refusal", "name", "tool_calls", "reasoning_content"},
    "tool": {"role", "content", "tool_call_id"},
}


class ChatServer(ModelServer):
    path = "/chat/completions"

    def check(self, request: dict[str, Any], headers: Any) -> None:
        require(headers.get("authorization") == "Bearer test", "Incorrect API key provided")
        if "tools" in request:
            require(request["tools"], "Invalid 'tools': empty array. Expected an array with minimum length 1.")
            require(
                all(tool.keys() == {"type", "function"} for tool in request["tools"]), "Unknown parameter in 'tools'"
            )
            functions = [tool["function"] for tool in request["tools"]]
            check_names(functions)
            for function in functions:
                check_parameters(function["name"], function["parameters"])
                if function.get("strict"):
                    check_strict(function["name"], function["parameters"])
        _check_messages(request["messages"])

    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": say.text or None, "refusal": None, "annotations": []}
        if say.calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in say.calls
            ]
        for extra in say.extra:
            message |= extra
        choice = {"index": 0, "message": message, "finish_reason": _finish(say), "logprobs": None}
        return {**_head(request), "object": "chat.completion", "choices": [choice], "usage": USAGE}

    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return None, {**_head(request), "object": "chat.completion.chunk", "choices": [choice], "usage": None}

        yield chunk({"role": "assistant", "content": "", "refusal": None})
        yield from (chunk(extra) for extra in say.extra)
        yield from (chunk({"content": part}) for part in fragments(say.text))
        for index, (call_id, name, _) in enumerate(say.calls):
            function = {"name": name, "arguments": ""}
            yield chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
        yield from (chunk({"tool_calls": [part]}) for part in _interleaved(say))
        yield chunk({}, _finish(say))
        if request.get("stream_options", {}).get("include_usage"):
            yield None, {**_head(request), "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
        yield None, "[DONE]"


def _interleaved(say: Say) -> Iterator[dict[str, Any]]:
    """Fragments of all calls in turn: a client must go by their index."""
    queues = [fragments(arguments) for _, _, arguments in say.calls]
    for turn in zip_longest(*queues):
        for index, fragment in enumerate(turn):
            if fragment is not None:
                yield {"index": index, "function": {"arguments": fragment}}


def _finish(say: Say) -> str:
    return say.stop or ("tool_calls" if say.calls else "stop")


def _head(request: dict[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "created": 1_700_000_000, "model": request["model"]}


def _check_messages(messages: list[dict[str, Any]]) -> None:
    open_ids: set[str] = set()
    for message in messages:
        role = message["role"]
        require(role in FIELDS and not message.keys() - FIELDS[role], f"Unknown parameter in 'messages': {message}")
        if role == "tool":
            require(
                message["tool_call_id"] in open_ids,
                "'tool' must be a response to a preceding message with 'tool_calls'",
            )
            require(isinstance(message["content"], str), "Invalid type for 'messages.content'")
            open_ids.remove(message["tool_call_id"])
            continue
        require(not open_ids, f"The following tool_call_ids did not have response messages: {sorted(open_ids)}")
        require(message.get("content") is not None or message.get("tool_calls"), "expected a string, got null")
        for call in message.get("tool_calls", ()):
            check_arguments(call["function"]["arguments"])
        open_ids = {call["id"] for call in message.get("tool_calls", ())}
    require(not open_ids, f"The following tool_call_ids did not have response messages: {sorted(open_ids)}")
