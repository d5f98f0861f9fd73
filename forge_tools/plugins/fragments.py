"""pydantic's JSON Schema of an annotation, as the fragments that a ToolParameter has and every provider takes."""

from collections.abc import Mapping
from typing import Any

from forge_tools.records import Schema, ToolParameter

_FIELDS = {
    "enum": "enum",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minimum": "minimum",
    "maximum": "maximum",
    "items": "items",
    "properties": "properties",
    "required": "required_properties",
}
"""Keywords that a ToolParameter has a field for."""

_DROPPED = frozenset({"title", "discriminator", "writeOnly", "$defs", "oneOf", "const", "prefixItems"})
"""Keywords that say nothing to a model, or that are said in another way here."""


class RecursiveTypeError(ValueError):
    """A type contains itself; `name` is that type's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def to_parameter(name: str, schema: Schema, **declared: Any) -> ToolParameter:
    """Build the parameter for a schema as pydantic writes it; `declared` are fields that the schema does not decide.

    Raises:
        RecursiveTypeError: a type contains itself, which cannot be written out.
    """
    fragment = _written_out(schema, schema.get("$defs", {}), ())
    if not declared["required"]:
        fragment = _without_null(fragment)
    fragment.pop("default", None)
    described = fragment.pop("description", "")
    declared["description"] = declared["description"] or described
    kind = fragment.pop("type", "any")
    if not isinstance(kind, str):
        fragment["type"], kind = kind, "any"
    known = {field: fragment.pop(keyword) for keyword, field in _FIELDS.items() if keyword in fragment}
    return ToolParameter(name=name, type=kind, **known, keywords=fragment or None, **declared)


def is_secret(schema: Any) -> bool:
    """Whether pydantic hides a value somewhere inside, as it does those of `SecretStr`."""
    if isinstance(schema, dict):
        return schema.get("writeOnly") is True or any(map(is_secret, schema.values()))
    return isinstance(schema, list) and any(map(is_secret, schema))


def _written_out(schema: Schema, definitions: Mapping[str, Schema], inside: tuple[str, ...]) -> Schema:
    """Copy a schema with what its references stand for in their places, in the keywords that all providers know."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        if name in inside:
            raise RecursiveTypeError(name)
        meant = definitions[name] | {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
        return _written_out(meant, definitions, (*inside, name))

    def inner(part: Any) -> Any:
        return _written_out(part, definitions, inside) if isinstance(part, dict) else part

    copy = {keyword: value for keyword, value in schema.items() if keyword not in _DROPPED}
    copy |= _reworded(schema)
    for keyword in ("items", "additionalProperties", "propertyNames"):
        if keyword in copy:
            copy[keyword] = inner(copy[keyword])
    for keyword in ("properties", "patternProperties"):
        if keyword in copy:
            copy[keyword] = {name: inner(part) for name, part in copy[keyword].items()}
    for keyword in ("anyOf", "allOf"):
        if keyword in copy:
            copy[keyword] = [inner(part) for part in copy[keyword]]
    return copy


def _reworded(schema: Schema) -> Schema:
    """What is said in keywords that some providers refuse, in ones that all of them know."""
    said: Schema = {}
    if "const" in schema:
        said["enum"] = [schema["const"]]
    if "oneOf" in schema:
        said["anyOf"] = schema["oneOf"]
    if "prefixItems" in schema:
        kinds = [
            kind for number, kind in enumerate(schema["prefixItems"]) if kind not in schema["prefixItems"][:number]
        ]
        said["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return said


def _without_null(schema: Schema) -> Schema:
    """Leave out null: for an optional parameter it means the same as not to give it."""
    forms = schema.get("anyOf")
    if not isinstance(forms, list) or {"type": "null"} not in forms:
        return schema
    rest = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    others = [form for form in forms if form != {"type": "null"}]
    return {**others[0], **rest} if len(others) == 1 else {**rest, "anyOf": others}
