"""What providers document of the tools they take."""

import json
import re
from typing import Any

import jsonschema

from tests.model_servers.wire import require

NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
STRICT_KEYWORDS = {
    *("type", "description", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
    *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minItems", "maxItems"),
}
STRICT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def check_names(tools: list[dict[str, Any]]) -> None:
    names = [tool.get("name") for tool in tools]
    for name in names:
        require(
            isinstance(name, str) and NAME.match(name), f"Invalid 'tools.name': {name!r} does not match {NAME.pattern}"
        )
    require(len(set(names)) == len(names), "Tool names must be unique.")


def check_parameters(name: str, schema: Any, *, needs_items: bool = True) -> None:
    """A JSON Schema object, in which every array says what it holds where that is asked for."""
    require(isinstance(schema, dict) and schema.get("type") == "object", f"{name}: schema must be of type 'object'")
    jsonschema.Draft202012Validator.check_schema(schema)
    for part in _inside(schema):
        if needs_items and "array" in _types(part):
            require("items" in part, f"Invalid schema for function {name!r}: array schema missing items")


def check_strict(name: str, schema: dict[str, Any]) -> None:
    """The subset of strict mode: closed objects, all members required, known keywords, typed values."""
    for part in _inside(schema):
        where = f"Invalid schema for function {name!r}: {part}"
        require(not part.keys() - STRICT_KEYWORDS, f"{where}: {part.keys() - STRICT_KEYWORDS} not permitted")
        require(part.keys() & {"type", "anyOf"}, f"{where}: schema must have a 'type' key")
        require(part.get("format") in {None, *STRICT_FORMATS}, f"{where}: {part.get('format')!r} is not a valid format")
        if "object" in _types(part):
            require(part.get("additionalProperties") is False, f"{where}: 'additionalProperties' must be false")
            require(
                set(part.get("required", ())) == set(part.get("properties", ())), f"{where}: 'required' must list all"
            )


def check_arguments(text: Any) -> None:
    """Those of a call in the history are an object of JSON, which servers with templates read, and refuse if they cannot."""
    try:
        given = json.loads(text, parse_constant=lambda name: require(False, f"{name} is no JSON"))
    except (TypeError, ValueError):
        given = None
    require(isinstance(given, dict), f"The arguments of a call must be a JSON object: {text!r}")


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return types if isinstance(types, list) else [types]


def _inside(schema: dict[str, Any]) -> list[dict[str, Any]]:
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    parts += [schema[keyword] for keyword in ("items", "additionalProperties") if isinstance(schema.get(keyword), dict)]
    return [schema, *(inner for part in parts for inner in _inside(part))]
