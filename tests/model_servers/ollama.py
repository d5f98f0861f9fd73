"""Ollama's chat API, as documented: calls have no ids, streams are lines of JSON, and malformed calls fail the request."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.model_servers.rules import check_names, check_parameters
from tests.model_servers.wire import Event, ModelServer, RefusedError, Say, fragments, require

USAGE = {"prompt_eval_count": 10, "eval_count": 5, "total_duration": 1_000_000}
ROLES = {"system", "user", "assistant", "tool"}
"""Roles that templates render."""


class OllamaServer(ModelServer):
    """Plays a model on Ollama. `stop="unparsed"` is a call that the server cannot read."""

    path = "/api/chat"

    def serve(self, http: BaseHTTPRequestHandler) -> None:
        request = json.loads(http.rfile.read(int(http.headers["content-length"])))
        self.requests.append(request)
        try:
            require(http.path == self.path, f"Unknown path {http.path}")
            self.check(request, http.headers)
        except RefusedError as error:
            self.refusals.append(str(error))
            return send(http, 400, [self.error(str(error))])
        say = self.script.pop(0)
        if request["stream"]:
            return send(http, 200, [data for _, data in self._cut(say, request)])
        if say.stop == "unparsed":
            return send(http, 500, [unparsed(say)])
        return send(http, 200, [self.body(say, request)])

    def error(self, message: str) -> dict[str, Any]:
        return {"error": message}

    def check(self, request: dict[str, Any], headers: Any) -> None:
        require(request.get("model"), "model is required")
        functions = [tool["function"] for tool in request.get("tools", ())]
        require(all(tool["type"] == "function" for tool in request.get("tools", ())), "unknown tool type")
        check_names(functions)
        for function in functions:
            check_parameters(function["name"], function["parameters"])
        waiting: list[str] = []
        for message in request["messages"]:
            require(message["role"] in ROLES, f"invalid role {message['role']}")
            require(
                isinstance(message.get("content", ""), str), "cannot unmarshal into messages.content of type string"
            )
            if message["role"] == "tool":
                require(waiting and message["tool_name"] == waiting.pop(0), "results must be in the order of the calls")
                continue
            require(not waiting, f"calls without result: {waiting}")
            for call in message.get("tool_calls", ()):
                require(isinstance(call["function"]["arguments"], dict), "cannot unmarshal string into arguments")
                waiting.append(call["function"]["name"])
        require(not waiting, f"calls without result: {waiting}")

    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": say.text}
        for extra in say.extra:
            message |= extra
        if say.calls:
            message["tool_calls"] = [_call(*call) for call in say.calls]
        return {**_head(request), "message": message, **_end(say)}

    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        def chunk(**fields: Any) -> Event:
            return None, {**_head(request), "message": {"role": "assistant", "content": "", **fields}, "done": False}

        for extra in say.extra:
            for name, text in extra.items():
                yield from (chunk(**{name: part}) for part in fragments(text))
        yield from (chunk(content=part) for part in fragments(say.text))
        if say.stop == "unparsed":
            yield None, unparsed(say)
            return
        yield from (chunk(tool_calls=[_call(*call)]) for call in say.calls)
        yield None, {**_head(request), "message": {"role": "assistant", "content": ""}, **_end(say)}


def unparsed(say: Say) -> dict[str, Any]:
    return {"error": f"error parsing tool call: raw='{say.calls[0][2]}', err=unexpected end of JSON input"}


def send(http: BaseHTTPRequestHandler, status: int, objects: list[Any]) -> None:
    payload = "".join(json.dumps(one) + "\n" for one in objects).encode()
    http.send_response(status)
    http.send_header("content-type", "application/x-ndjson" if len(objects) > 1 else "application/json")
    http.send_header("content-length", str(len(payload)))
    http.end_headers()
    http.wfile.write(payload)


def _call(_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": json.loads(arguments)}}


def _head(request: dict[str, Any]) -> dict[str, Any]:
    return {"model": request["model"], "created_at": "2026-01-01T00:00:00.000000Z"}


def _end(say: Say) -> dict[str, Any]:
    return {"done": True, "done_reason": say.stop or "stop", **USAGE}
