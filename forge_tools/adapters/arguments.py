"""Arguments of calls: parsed from model output, prepared for the next request, without the nulls of strict schemas."""

import json
from collections.abc import Mapping
from typing import Any

from forge_tools.model import Schema, ToolSpec
from forge_tools.schema import shown

UNREADABLE = "INVALID_JSON"
"""The key for arguments that are not a JSON object when they go back to the model: providers refuse them in a history."""

_EXCERPT = 200
"""How many characters of malformed arguments are shown to the model again."""


def read(name: str, given: Any) -> dict[str, Any] | str:
    """Parse a call's arguments, or say what is wrong; models send any text, or nothing if there are no parameters."""
    arguments = given = {} if given is None else given
    if isinstance(given, str | bytes):
        try:
            arguments = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "nested too deeply"
            sent = repr(given[:_EXCERPT])
            return f"The arguments of {shown(name)} are not valid JSON ({why}): {sent}. Send one object."
    if not isinstance(arguments, Mapping):
        sent = repr(arguments)[:_EXCERPT]
        return f"The arguments of {shown(name)} must be one JSON object with names as keys, not {sent}."
    return dict(arguments)


def sendable(arguments: Any) -> dict[str, Any]:
    """Make the arguments from a model acceptable to a request: an object without NaN and infinities."""
    if arguments is None:
        return {}
    given = arguments
    if isinstance(arguments, str):
        try:
            given = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return {UNREADABLE: arguments}
    if not isinstance(given, Mapping):
        return {UNREADABLE: arguments}
    try:
        json.dumps(given, allow_nan=False)
    except ValueError:
        return {UNREADABLE: arguments if isinstance(arguments, str) else json.dumps(given)}
    return dict(given)


def sendable_text(arguments: Any) -> str:
    """Return arguments as text that a request accepts; acceptable ones stay as they are."""
    sent = sendable(arguments)
    is_fine = isinstance(arguments, str) and arguments.strip() and UNREADABLE not in sent
    return arguments if is_fine else json.dumps(sent)


def without_nulls(arguments: dict[str, Any], spec: ToolSpec) -> dict[str, Any]:
    """Drop nulls inside objects if they represent an optional member, as strict schemas make models do.

    The executor already treats null parameters as absent (contradiction C38).
    """
    if spec.input_schema is not None:
        pruned: dict[str, Any] = _pruned(arguments, spec.input_schema)
        return pruned
    for parameter in spec.parameters:
        if isinstance(given := arguments.get(parameter.name), dict | list):
            arguments[parameter.name] = _pruned(given, parameter.to_json_schema())
    return arguments


def _pruned(value: Any, schema: Schema) -> Any:
    schema = next((part for part in schema.get("anyOf") or () if _has_the_members_of(part, value)), schema)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_pruned(item, schema["items"]) for item in value]
    declared = schema.get("properties")
    if not isinstance(value, dict) or not declared:
        return value
    required = schema.get("required") or ()
    return {
        name: _pruned(member, declared.get(name, {}))
        for name, member in value.items()
        if member is not None or name in required or name not in declared or _takes_null(declared[name])
    }


def _has_the_members_of(schema: Schema, value: Any) -> bool:
    """Whether a list or an object follows this alternative: strict schemas require all of its members."""
    if isinstance(value, dict):
        return value.keys() <= (schema.get("properties") or {}).keys()
    return isinstance(value, list) and "items" in schema


def _takes_null(schema: Schema) -> bool:
    if "const" in schema or "enum" in schema:
        return None in schema.get("enum", [schema.get("const")])
    types = schema.get("type")
    if types is None and "anyOf" in schema:
        return any(_takes_null(part) for part in schema["anyOf"])
    return types is None or types == "null" or (isinstance(types, list) and "null" in types)
