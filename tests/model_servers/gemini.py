"""Gemini's generateContent API, as documented: camel case, calls as objects, signatures that must come back."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

from tests.model_servers.rules import check_parameters
from tests.model_servers.wire import Event, ModelServer, Say, fragments, require

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.:-]{0,63}$")
PATH = re.compile(
    r"/v1(beta1?)?/(publishers/google/)?models/[\w.-]+:(generateContent|streamGenerateContent\?alt=sse)"  # Vertex, too
)
FIELDS = {
    *("contents", "tools", "toolConfig", "generationConfig", "systemInstruction", "safetySettings", "cachedContent")
}
DATA = {
    *("text", "functionCall", "functionResponse", "inlineData", "fileData", "executableCode", "codeExecutionResult")
}
PART = DATA | {"thought", "thoughtSignature"}
CALL, RESPONSE = {"id", "name", "args"}, {"id", "name", "response"}
SCHEMA = {"parametersJsonSchema", "parameters_json_schema"}
"""Either spelling is taken, and sent by one release of the SDK or another."""
USAGE = {"promptTokenCount": 10, "cachedContentTokenCount": 4, "candidatesTokenCount": 3, "thoughtsTokenCount": 2}
BLOCKED = "blocked prompt"


class GeminiServer(ModelServer):
    """Plays a thinking model: the first call of a reply has a signature, without which no request is taken.

    A call with an empty id has none. `stop="blocked prompt"` is a reply without a candidate, `stop="none"` an empty one.
    """

    path = "/v1/models/{model}:generateContent"

    def knows(self, path: str) -> bool:
        return PATH.fullmatch(path) is not None

    def wants_stream(self, path: str, request: dict[str, Any]) -> bool:
        return "stream" in path

    def error(self, message: str) -> dict[str, Any]:
        return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}

    def check(self, request: dict[str, Any], headers: Any) -> None:
        require(headers.get("x-goog-api-key") == "test", "API key not valid. Please pass a valid API key.")
        require(not request.keys() - FIELDS, f"Unknown name {sorted(request.keys() - FIELDS)}: Cannot find field.")
        _check_functions([one for tool in request.get("tools", ()) for one in tool.get("functionDeclarations", ())])
        _check_contents(request["contents"])

    def body(self, say: Say, request: dict[str, Any]) -> dict[str, Any]:
        if say.stop in {BLOCKED, "none"}:
            return _without_candidate(say)
        text = [{"text": say.text}] if say.text else []
        content = {"role": "model", "parts": [*say.extra, *text, *_calls(say)]}
        return _chunk(content if content["parts"] else {}, **_end(say))

    def events(self, say: Say, request: dict[str, Any]) -> Iterator[Event]:
        if say.stop in {BLOCKED, "none"}:
            yield None, _without_candidate(say)
            return
        for part in say.extra:
            pieces = [part] if part.keys() - {"text", "thought"} else _pieces(part)
            yield from ((None, _chunk({"role": "model", "parts": [piece]})) for piece in pieces)
        for part in (*_pieces({"text": say.text}), *_calls(say)):
            yield None, _chunk({"role": "model", "parts": [part]})
        yield None, _chunk({"role": "model", "parts": [{"text": ""}]}, **_end(say))


def signature(say: Say) -> str:
    """Bytes that are no text, and whose usual base64 has characters that the URL-safe one has not."""
    return base64.b64encode(b"\xfb\xff\xfe" + say.calls[0][2].encode()).decode()


def _pieces(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [part | {"text": piece} for piece in fragments(part["text"])]


def _calls(say: Say) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for key, name, arguments in say.calls:
        call = {"name": name, "args": json.loads(arguments)}
        parts.append({"functionCall": {"id": key, **call} if key else call})
    if parts:
        parts[0]["thoughtSignature"] = signature(say)
    return parts


def _chunk(content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    head = {"usageMetadata": {"promptTokenCount": 10}, "modelVersion": "test-model", "responseId": "response_1"}
    usage = fields.pop("usage", None)
    candidate = {"content": content, "index": 0, **fields}
    return {"candidates": [candidate], **head} | ({"usageMetadata": usage} if usage else {})


def _end(say: Say) -> dict[str, Any]:
    reason, _, detail = (say.stop or "STOP").partition(": ")
    return {"finishReason": reason, **({"finishMessage": detail} if detail else {}), "usage": USAGE}


def _without_candidate(say: Say) -> dict[str, Any]:
    feedback = {"promptFeedback": {"blockReason": "SAFETY"}} if say.stop == BLOCKED else {}
    return {**feedback, "usageMetadata": {"promptTokenCount": 10}, "modelVersion": "test-model"}


def _check_functions(functions: list[dict[str, Any]]) -> None:
    names = [function["name"] for function in functions]
    for name in names:
        require(NAME.match(name), f"Invalid function name {name!r}. Must start with a letter or an underscore.")
    require(len(set(names)) == len(names), "Duplicate function declaration found.")
    for function in functions:
        schemas = function.keys() & SCHEMA
        unknown = function.keys() - schemas - {"name", "description"}
        require(not unknown, f"Unknown name {sorted(unknown)}: Cannot find field.")
        require(len(schemas) == 1, "oneof field 'parameters' is set twice, or not at all")
        check_parameters(function["name"], function[schemas.pop()])


def _check_contents(contents: list[dict[str, Any]]) -> None:
    asked: list[dict[str, Any]] = []
    before = "user"
    require(contents and contents[-1]["role"] == "user", "Please ensure that multiturn requests end with a user turn.")
    for content in contents:
        parts = content.get("parts")
        require(content["role"] in {"user", "model"}, "Please use a valid role: user, model.")
        require(parts, "contents.parts must not be empty.")
        for part in parts:
            _check_part(part)
        answered = [part["functionResponse"] for part in parts if "functionResponse" in part]
        require(
            [_key(one) for one in answered] == [_key(one) for one in asked],
            "Please ensure that the number of function response parts is equal to the number of function call parts "
            f"of the function call turn: {asked}, {answered}",
        )
        asked = [part["functionCall"] for part in parts if "functionCall" in part]
        require(not asked or before == "user", "Please ensure that function call turn comes after a user turn.")
        _check_signature(parts)
        before = content["role"]
    require(not asked, "function calls without function responses")


def _key(one: dict[str, Any]) -> tuple[str | None, str]:
    return one.get("id"), one["name"]


def _check_part(part: dict[str, Any]) -> None:
    require(not part.keys() - PART, f"Unknown name {sorted(part.keys() - PART)}: Cannot find field.")
    require(len(part.keys() & DATA) == 1, "required oneof field 'data' must have one initialized field")
    require(part.get("text") != "" or "thoughtSignature" in part, "Unable to submit request: empty text parameter")
    for name, fields in (("functionCall", CALL), ("functionResponse", RESPONSE)):
        if name in part:
            require(not part[name].keys() - fields, f"Unknown name in {name}: {sorted(part[name])}")
            require(part[name].get("name"), f"{name}.name: Name cannot be empty.")
            require(isinstance(part[name].get("args", {}), dict), "args: not a Struct")


def _check_signature(parts: list[dict[str, Any]]) -> None:
    called = [part for part in parts if "functionCall" in part]
    if not called:
        return
    found = base64.urlsafe_b64decode(called[0].get("thoughtSignature", "").replace("+", "-").replace("/", "_"))
    require(found, "Function call is missing a thought_signature in functionCall parts.")
    require(found.startswith(b"\xfb\xff\xfe"), "Corrupted thought signature.")
