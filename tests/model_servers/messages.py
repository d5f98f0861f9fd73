"""Anthropic's messages API, as documented."""

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.model_servers.rules import check_names, check_parameters
from tests.model_servers.wire import Event, ModelServer, Say, fragments, require

KEY = re.compile(r"^[a-zA-Z0-9_.-]{1,64}$")
BLOCKS = {
    "text": {"type", "text", "citations"},
    "thinking": {"type", "thinking", "signature"},
    "tool_use": {"type", "id", "name", "input", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
    "server_tool_use": {"type", "id", "name", "input", "caller"},
}


class MessagesServer(ModelServer):
    path = "/v1/messages"

    def check(self, request: dict[str, Any], headers: Any) -> None:
        require("test" in {headers.get("x-api-key"), headers.get("authorization", "")[7:]}, "invalid x-api-key")
        require(headers.get("anthropic-version"), "anthropic-version: header is required")
        require(isinstance(request.get("max_tokens"), int), "max_tokens: Field required")
        tools = [tool for tool in request.get("tools", ()) if "type" not in tool]  # those of the provider have one
        check_names(tools)
        for tool in tools:
            require(
                not tool.keys() - {"name", "description", "input_schema"}, f"Extra inputs are not permitted: {tool}"
            )
            check_parameters(tool["name"], tool["input_schema"], needs_items=False)
            keys = tool["input_schema"]["properties"]
            require(all(KEY.match(key) for key in keys), f"Property keys should match pattern '{KEY.pattern}'")
        _check_messages(request["messages"])

    def error(self, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}

    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        calls = [
            {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
            for call_id, name, arguments in say.calls
        ]
        text = [{"type": "text", "text": say.text, "citations": None}] if say.text else []
        usage = {"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 5}
        return _message(request) | {"content": [*say.extra, *text, *calls], "stop_reason": _stop(say), "usage": usage}

    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        usage = {"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 1}
        yield _event("message_start", message=_message(request) | {"usage": usage})
        yield _event("ping")
        for index, (start, deltas) in enumerate(_blocks(say)):
            yield _event("content_block_start", index=index, content_block=start)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        end = {"stop_reason": _stop(say), "stop_sequence": None}
        yield _event("message_delta", delta=end, usage={"output_tokens": 5})
        yield _event("message_stop")


def _blocks(say: Say) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block as it starts, and what is added to it."""
    text = ({"type": "text", "text": say.text},) if say.text else ()
    for block in (*say.extra, *text):
        if block["type"] == "thinking":
            parts = [{"type": "thinking_delta", "thinking": part} for part in fragments(block["thinking"])]
            end = {"type": "signature_delta", "signature": block["signature"]}
            yield {"type": "thinking", "thinking": "", "signature": ""}, [*parts, end]
        elif block["type"] == "text":
            parts = [{"type": "text_delta", "text": part} for part in fragments(block["text"])]
            cited = [{"type": "citations_delta", "citation": citation} for citation in block.get("citations", ())]
            yield {"type": "text", "text": "", "citations": None}, [*parts, *cited]
        else:
            yield block, []
    for call_id, name, arguments in say.calls:
        parts = [{"type": "input_json_delta", "partial_json": part} for part in ("", *fragments(arguments))]
        yield {"type": "tool_use", "id": call_id, "name": name, "input": {}}, parts


def _event(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}


def _message(request: dict[str, Any]) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"]}
    return head | {"content": [], "stop_reason": None, "stop_sequence": None}


def _stop(say: Say) -> str:
    return say.stop or ("tool_use" if say.calls else "end_turn")


def _is_result(block: dict[str, Any]) -> bool:
    """Text, or blocks of what a result may hold; an error holds text alone."""
    if isinstance(block["content"], str):
        return True
    kinds = {"text"} if block.get("is_error") else {"text", "image", "document"}
    sources = [part["source"]["media_type"] for part in block["content"] if part["type"] != "text"]
    is_known = set(sources) <= {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}
    return is_known and all(part["type"] in kinds for part in block["content"])


def _check_messages(messages: list[dict[str, Any]]) -> None:
    asked: set[str] = set()
    require(messages and messages[0]["role"] == "user", "messages: first message must use the 'user' role")
    for message in messages:
        content = message["content"]
        require(content, "messages: content must be non-empty")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            kind = block["type"]
            require(kind in BLOCKS and not block.keys() - BLOCKS[kind], f"Extra inputs are not permitted: {block}")
            require(kind != "text" or block["text"], "messages: text content blocks must be non-empty")
            require(kind != "tool_result" or _is_result(block), f"tool_result: content is not permitted: {block}")
            require(kind != "tool_use" or isinstance(block["input"], dict), "tool_use.input: should be an object")
        results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        require(asked <= results, f"tool_use ids were found without tool_result blocks: {sorted(asked - results)}")
        require(results <= asked, f"unexpected tool_use_id found in tool_result blocks: {sorted(results - asked)}")
        asked = {block["id"] for block in blocks if block["type"] == "tool_use"}
    require(not asked, "tool_use ids were found without tool_result blocks immediately after")
