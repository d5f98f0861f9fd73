"""Renders a ToolSpec in the format of each provider."""

import copy
from typing import Any

from forge_tools.model.tools import Schema, ToolSpec

FORMATS = ("openai", "anthropic", "gemini", "ollama", "mcp")

_GEMINI_KEYWORDS = frozenset(
    {"type", "description", "nullable", "default", "enum", "properties", "required", "items", "anyOf", "pattern"}
    | {"minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"}
)

_NOT_AT_THE_TOP = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const"})


def render(spec: ToolSpec, format: str) -> Schema:
    """Render `spec` for a provider; the caller may modify the result.

    Raises:
        ValueError: for a format that is not one of `FORMATS` (spec S3-119).
    """
    require_format(format)
    if format in {"openai", "ollama"}:
        parameters = _with_items(_plain_object(input_schema(spec)))
        function = {"name": spec.name, "description": spec.description, "parameters": parameters}
        return {"type": "function", "function": function}
    if format == "anthropic":
        return {"name": spec.name, "description": spec.description, "input_schema": _plain_object(input_schema(spec))}
    # Gemini takes a JSON Schema, or a subset of OpenAPI without values of any type and objects without properties.
    if format == "gemini":
        declaration: Schema = {"name": spec.name, "description": spec.description}
        if spec.input_schema is not None:
            return declaration | {"parametersJsonSchema": input_schema(spec)}
        parameters = _for_gemini(input_schema(spec))
        if not _is_typed(parameters):
            return declaration | {"parametersJsonSchema": _with_items(input_schema(spec))}
        return declaration | ({"parameters": parameters} if spec.parameters else {})
    return {
        "name": spec.name,
        "description": spec.description,
        "inputSchema": input_schema(spec),
        **({} if spec.output_schema is None else {"outputSchema": copy.deepcopy(spec.output_schema)}),
        "annotations": _annotations(spec),
    }


def require_format(format: str) -> None:
    if format not in FORMATS:
        raise ValueError(f"Unknown schema format: {format}. Use one of {', '.join(FORMATS)}.")


def input_schema(spec: ToolSpec) -> Schema:
    """Return a fresh JSON Schema of the arguments, with parameters in the order of declaration (spec S4-27, S4-28)."""
    if spec.input_schema is not None:
        return _in_keywords(copy.deepcopy(spec.input_schema))
    properties = {p.name: copy.deepcopy(p.to_json_schema()) for p in spec.parameters}
    return {"type": "object", "properties": properties, "required": [p.name for p in spec.parameters if p.required]}


def _in_keywords(schema: Any) -> Schema:
    """Write `true` as the schema without keywords, and `false` likewise: providers, their SDKs and adapters expect objects."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return _each_inside(schema, _in_keywords)


def _plain_object(schema: Schema) -> Schema:
    """Move members of alternatives to the top level: OpenAI and Anthropic refuse tools with alternatives there.

    The constraints of the alternatives are checked when the tool is called.
    """
    if _NOT_AT_THE_TOP.isdisjoint(schema) and schema.get("type") == "object":
        schema.setdefault("properties", {})  # MCP lets servers leave it out, and OpenAI refuses such tools
        return schema
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword) or ()]
    members = [part["properties"] for part in (*parts, schema) if isinstance(part, dict) and "properties" in part]
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _NOT_AT_THE_TOP}
    return {**kept, "type": "object", "properties": {name: part for some in members for name, part in some.items()}}


def _with_items(schema: Schema) -> Schema:
    """Give every array without `items` permissive ones, for providers that require them (contradiction C48)."""
    types = schema.get("type")
    if types == "array" or (isinstance(types, list) and "array" in types):
        schema.setdefault("items", {})
    return _each_inside(schema, _with_items)


def _each_inside(schema: Schema, change: Any) -> Schema:
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: change(part) for name, part in schema["properties"].items()}
    if isinstance(schema.get("items"), dict | bool):
        schema["items"] = change(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):  # `true` and `false` stay: they are usual there
        schema["additionalProperties"] = change(schema["additionalProperties"])
    for keyword in schema.keys() & {"anyOf", "oneOf", "allOf"}:
        schema[keyword] = [change(part) for part in schema[keyword]]
    return schema


def _for_gemini(schema: Schema) -> Schema:
    schema = _one_type(schema)
    if isinstance(schema.get("const"), str):
        schema["enum"] = [schema["const"]]
    kept = {keyword: value for keyword, value in schema.items() if keyword in _GEMINI_KEYWORDS}
    if not all(isinstance(choice, str) for choice in kept.get("enum", ())):  # Gemini's enums are of strings
        del kept["enum"]
    if kept.get("type") == "array":
        kept.setdefault("items", {"type": "string"})
    return _each_inside(kept, _for_gemini)


def _is_typed(schema: Schema) -> bool:
    inside = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inside += [schema["items"]] if "items" in schema else []
    return not schema.keys().isdisjoint({"type", "anyOf"}) and all(map(_is_typed, inside))


def _one_type(schema: Schema) -> Schema:
    """Express a list of types as Gemini does: `nullable` for null, alternatives for several."""
    types = schema.get("type")
    if not isinstance(types, list):
        return schema
    others = [name for name in types if name != "null"]
    rest = {keyword: value for keyword, value in schema.items() if keyword != "type"}
    if "null" in types:
        rest["nullable"] = True
    if len(others) == 1:
        return {"type": others[0], **rest}
    return {**rest, "anyOf": [{"type": name} for name in others]}


def _annotations(spec: ToolSpec) -> Schema:
    can = spec.capabilities
    changes = can.writes_files or can.executes_commands
    return {
        "readOnlyHint": not changes,
        "destructiveHint": changes,
        "idempotentHint": can.idempotent,
        "openWorldHint": can.accesses_network,
    }
