"""The input schema of a server's tool, as the parameters of ours: every keyword kept, references written out."""

import json
import re
from typing import Any

from forge_tools.records import Schema, ToolParameter
from forge_tools.validation import MAX_DEPTH, clean_text
from forge_tools.validation.schema import SchemaError, compile_schema

MAX_PARTS = 5_000
"""Schemas inside one input schema, references written out; what lies beyond accepts everything."""

_ONE = ("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else", "unevaluatedItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas")
_LISTED = ("anyOf", "allOf", "oneOf", "prefixItems")
_DROPPED = frozenset({"$ref", "$defs", "definitions", "$schema", "$id", "$anchor", "$comment"})


def parameters_of(schema: Schema) -> tuple[ToolParameter, ...]:
    """Make the parameters that an input schema declares.

    A type that contains itself accepts everything where it does. So does what our checks cannot understand, such as a pattern in the
    dialect of another language: the server still checks it.
    """
    schema = _storable(schema)
    properties = schema.get("properties")
    required = schema.get("required")
    names = set(required) if isinstance(required, list) else set()
    writer = _Writer(schema)
    return tuple(
        _parameter(name, writer.written(part), required=name in names)
        for name, part in (properties.items() if isinstance(properties, dict) else ())
    )


def _storable(value: Any) -> Any:
    """Copy JSON with what a database refuses in its texts made visible: the catalogue must not fail for one server."""
    if isinstance(value, dict):
        return {clean_text(key): _storable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_storable(part) for part in value]
    return clean_text(value) if isinstance(value, str) else value


def _parameter(name: str, fragment: Schema, *, required: bool) -> ToolParameter:
    kept = fragment if _is_checkable(fragment) else {}
    keywords = {keyword: value for keyword, value in kept.items() if keyword not in ("type", "description")}
    kind = kept.get("type", "any")
    if not isinstance(kind, str):
        keywords["type"], kind = kind, "any"
    described = fragment.get("description")
    return ToolParameter(
        name=name,
        type=kind,
        description=described if isinstance(described, str) else "",
        required=required,
        keywords=keywords or None,
    )


def _is_checkable(fragment: Schema) -> bool:
    try:
        compile_schema(fragment)
        json.dumps(fragment, allow_nan=False)
    except (SchemaError, ValueError, TypeError):
        return False
    return True


class _Writer:
    """Writes out the schemas inside one document."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._left = MAX_PARTS

    def written(self, schema: Any, inside: tuple[str, ...] = (), depth: int = 1) -> Schema:
        """Copy a schema with what its references stand for in their places."""
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0 or depth > MAX_DEPTH:
            return {}  # `true` is a schema too; ours have no form of `false`
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in inside:
                return {k: v for k, v in schema.items() if k == "description"}
            inside = (*inside, reference)
            schema = {**self._resolved(reference), **{k: v for k, v in schema.items() if k != "$ref"}}
            if "$ref" in schema:
                return self.written(schema, inside, depth + 1)
        copy = {k: v for k, v in schema.items() if k not in _DROPPED and not (k == "pattern" and not _compiles(v))}
        self._write_parts(copy, inside, depth + 1)
        return copy

    def _write_parts(self, copy: Schema, inside: tuple[str, ...], depth: int) -> None:
        for keyword in _ONE:
            if isinstance(copy.get(keyword), dict):
                copy[keyword] = self.written(copy[keyword], inside, depth)
        for keyword in _NAMED:
            if isinstance(parts := copy.get(keyword), dict):
                copy[keyword] = {name: self.written(part, inside, depth) for name, part in parts.items()}
        for keyword in _LISTED:
            if isinstance(forms := copy.get(keyword), list):
                copy[keyword] = [self.written(form, inside, depth) for form in forms]

    def _resolved(self, reference: str) -> Schema:
        """Follow a JSON pointer into the document; nothing is fetched from elsewhere."""
        if not reference.startswith("#"):
            return {}
        found: Any = self._document
        for step in reference[1:].strip("/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) and name else (None if name else found)
        return found if isinstance(found, dict) else {}


def _compiles(pattern: Any) -> bool:
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True
