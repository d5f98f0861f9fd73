"""Parameters in the subset of JSON Schema that OpenAI's strict mode takes, or the reason why they cannot be."""

import copy
from typing import Any

from forge_tools.errors import InvalidToolError
from forge_tools.model import Schema, ToolSpec
from forge_tools.schema.formats import input_schema

_KEPT = frozenset(
    {"type", "description", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"}
    | {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minItems", "maxItems"}
)
"""Keywords that strict mode knows (OpenAI, Structured Outputs, supported schemas)."""

_TOLD = {"minLength": "at least {} characters", "maxLength": "at most {} characters", "default": "default: {}"}
"""Keywords that it does not know and a model should: they are said in the description, and checked where the tool runs."""

_UNSUPPORTED = frozenset(
    {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties"}
)
_MAX_DEPTH = 10
_MAX_PROPERTIES = 5_000


def strict_parameters(spec: ToolSpec) -> Schema:
    """Describe the parameters so that the provider can hold the model to them: every object closed, every member required.

    Optional members may be null, which means absent.

    Raises:
        InvalidToolError: naming the member that strict mode cannot describe, and the way out.
    """
    return _Strict(spec.name).whole(input_schema(spec))


class _Strict:
    """One walk over the schemas of a tool."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._properties = 0

    def whole(self, schema: Schema) -> Schema:
        if unsupported := sorted((_UNSUPPORTED | {"anyOf", "$ref"}) & schema.keys()):
            raise self._refused("its input", f"uses {unsupported[0]}, which strict mode does not take there")
        return self.object({keyword: part for keyword, part in schema.items() if keyword in _KEPT}, "", 1)

    def object(self, schema: Schema, path: str, depth: int) -> Schema:
        declared: dict[str, Schema] = schema.get("properties") or {}
        if path and not declared:
            raise self._refused(path, "is an object whose members are not declared: list them in `properties`")
        if schema.get("additionalProperties") not in (None, False):
            raise self._refused(path, "takes members that are not declared: set `additionalProperties` to false")
        if depth > _MAX_DEPTH:
            raise self._refused(path, f"is nested deeper than {_MAX_DEPTH} levels")
        self._properties += len(declared)
        if self._properties > _MAX_PROPERTIES:
            raise self._refused(path, f"is one of more than {_MAX_PROPERTIES:,} properties")
        required = set(schema.get("required") or ())
        members = {}
        for name, member in declared.items():
            strict = self.value(member, f"{path}.{name}" if path else name, depth)
            members[name] = strict if name in required else _nullable(strict)
        return schema | {"properties": members, "required": list(members), "additionalProperties": False}

    def value(self, schema: Schema, path: str, depth: int) -> Schema:
        if unsupported := sorted(_UNSUPPORTED & schema.keys()):
            raise self._refused(path, f"uses {unsupported[0]}, which strict mode does not know")
        kept = {keyword: copy.deepcopy(part) for keyword, part in schema.items() if keyword in _KEPT}
        if notes := [
            note.format(schema[keyword]) for keyword, note in _TOLD.items() if schema.get(keyword) is not None
        ]:
            kept["description"] = f"{schema.get('description', '')} ({', '.join(notes)})".strip()
        if "anyOf" in kept:
            kept["anyOf"] = [self.value(part, path, depth + 1) for part in kept["anyOf"]]
            return kept
        types = kept.get("type")
        if types is None and not {"enum", "const"} & kept.keys():
            raise self._refused(path, "takes anything: give it a type")
        if _is(types, "object"):
            kept = self.object(kept, path, depth + 1)
        if _is(types, "array"):
            if not kept.get("items"):
                raise self._refused(path, "is an array of anything: describe its `items`")
            kept["items"] = self.value(kept["items"], f"{path}[]", depth)
        return kept

    def _refused(self, path: str, why: str) -> InvalidToolError:
        message = f'{self._tool} cannot be offered in strict mode: {path or "it"} {why}. Or ask for strict="auto", which leaves such tools as they are.'
        return InvalidToolError(self._tool, message)


def _is(types: Any, name: str) -> bool:
    return types == name or (isinstance(types, list) and name in types)


def _nullable(schema: Schema) -> Schema:
    """Let a member that may be left out be null, as strict mode wants it told."""
    if "anyOf" in schema:
        is_nullable = any(_is(part.get("type"), "null") for part in schema["anyOf"])
        return schema if is_nullable else {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "const" in schema:
        schema = {keyword: part for keyword, part in schema.items() if keyword != "const"} | {"enum": [schema["const"]]}
    if "enum" in schema and None not in schema["enum"]:
        schema = schema | {"enum": [*schema["enum"], None]}
    types = schema.get("type")
    if types is None or _is(types, "null"):
        return schema
    return schema | {"type": [*types, "null"] if isinstance(types, list) else [types, "null"]}
