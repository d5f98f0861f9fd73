"""OpenAI's responses API, as documented."""

from collections.abc import Iterator
from typing import Any

from tests.model_servers.rules import check_arguments, check_names, check_parameters, check_strict
from tests.model_servers.wire import Event, ModelServer, Say, fragments, require

USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}


class ResponsesServer(ModelServer):
    path = "/responses"

    def check(self, request: dict[str, Any], headers: Any) -> None:
        require(headers.get("authorization") == "Bearer test", "Incorrect API key provided")
        if "tools" in request:
            require(request["tools"], "Invalid 'tools': empty array.")
            functions = [tool for tool in request["tools"] if tool["type"] != "web_search"]
            check_names(functions)
            for tool in functions:
                require(not tool.keys() - {"type", "name", "description", "parameters", "strict"}, f"Unknown: {tool}")
                check_parameters(tool["name"], tool["parameters"])
                if tool.get("strict", True):  # strict unless said otherwise
                    check_strict(tool["name"], tool["parameters"])
        _check_input(request["input"])

    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        response: dict[str, Any] = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000,
            "model": request["model"],
            "status": "completed",
            "output": _items(say),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": USAGE,
            "error": None,
            "incomplete_details": None,
        }
        if say.stop == "failed":
            return response | {
                "status": "failed",
                "error": {"code": "server_error", "message": "The model had a fall."},
            }
        if say.stop:
            return response | {"status": "incomplete", "incomplete_details": {"reason": say.stop}}
        return response

    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        done = self.body(say, request)
        yield _event("response.created", response=done | {"output": [], "status": "in_progress", "usage": None})
        for index, item in enumerate(done["output"]):
            place = {"output_index": index, "item_id": item["id"]}
            begun = {"message": {"content": []}, "function_call": {"arguments": ""}}.get(item["type"], {})
            begun = item | begun | {"status": "in_progress"}
            yield _event("response.output_item.added", output_index=index, item=begun)
            if item["type"] == "function_call":
                for part in fragments(item["arguments"]):
                    yield _event("response.function_call_arguments.delta", **place, delta=part)
            elif item["type"] == "message":
                for part in fragments(item["content"][0].get("text", "")):
                    yield _event("response.output_text.delta", **place, content_index=0, delta=part, logprobs=[])
            yield _event("response.output_item.done", output_index=index, item=item)
        yield _event(f"response.{done['status']}", response=done)


def _event(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, "sequence_number": 0, **fields}


def _items(say: Say) -> list[dict[str, Any]]:
    items = list(say.extra)
    if say.text:
        content = {"type": "output_text", "text": say.text, "annotations": [], "logprobs": []}
        items.append(
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}
        )
    for call_id, name, arguments in say.calls:
        call = {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
        }
        items.append(call | {"status": "completed"})
    return items


INPUTS = {"input_text", "input_image", "input_file"}


def _check_input(items: list[dict[str, Any]]) -> None:
    asked: list[str] = []
    for item in items:
        kind = item.get("type", "message")
        require(kind in {"message", "reasoning", "function_call", "function_call_output"}, f"Unknown item {kind}")
        require(None not in item.values(), f"Invalid type for 'input': null in {item}")
        if kind == "function_call":
            check_arguments(item["arguments"])
            asked.append(item["call_id"])
        if kind == "function_call_output":
            require(item["call_id"] in asked, f"No tool call found for function call output {item['call_id']}.")
            output = item["output"]
            known = isinstance(output, str) or all(part["type"] in INPUTS for part in output)
            require(known, "Invalid type for 'input.output'")
            asked.remove(item["call_id"])
    require(not asked, f"No tool output found for function call {asked}.")
