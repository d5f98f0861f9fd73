"""Quick acceptance of valid calls: code generated once a definition. It accepts, or leaves the answer to the checks."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from forge_tools.model import Schema
from forge_tools.schema.schema import BOUNDS, KEYWORDS, compile_schema

Accept = Callable[[dict[str, Any]], bool]
"""True only for arguments without a problem. False says nothing: the checks then find the problem, or that there is none."""

MAX_WRITTEN_DEPTH = 10
"""Levels that are written out; Python bounds the loops and the indentation of one function."""
MAX_WRITTEN_SCHEMAS = 1_000
"""Fragments that are written out for one tool: its code is kept as long as the tool is."""

_REFUSED_TYPES = {
    "string": "type({0}) is not str",
    "integer": "type({0}) is not int",
    "number": "type({0}) is not int and type({0}) is not float",
    "boolean": "{0} is not True and {0} is not False",
    "null": "{0} is not None",
    "array": "type({0}) is not list",
    "object": "type({0}) is not dict",
}
_EXACT_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
"""Types whose choices are looked up in a set."""


class Part(NamedTuple):
    """One parameter, or one property of an object.

    Where `skips_none`, None counts as absent.
    """

    name: str
    schema: Schema
    is_required: bool
    skips_none: bool = False


def compile_acceptance(parts: Sequence[Part], *, closed: bool) -> Accept:
    """Write and load the function for one tool; `closed` arguments are only those of `parts`.

    The schemas must be known to compile. Only exact types are accepted: subclasses of `str` or `dict`, which may behave
    as they like, are left to the checks.
    """
    writer = _Writer()
    body = writer.members("values", parts, closed=closed, depth=0)
    source = ["def accept(values):", " try:", *_inside(_inside([*body, "return True"]))]
    # A required one is missing, or a foreign value cannot be compared: let the checks meet it.
    source += [" except Exception:", "  return False"]
    exec("\n".join(source), writer.scope)  # noqa: S102 fixed phrases and made-up names; see `_Writer`
    accept: Accept = writer.scope["accept"]
    return accept


class _Writer:
    """Writes the lines that return False for what is not accepted for certain.

    They consist of the phrases in this module and of names made here. What a schema says is bound to such a name as a
    value, in `scope`, and never becomes text: no schema can make them do anything else.
    """

    def __init__(self) -> None:
        built_in = (type, len, str, int, float, list, dict, Exception)
        self.scope: dict[str, Any] = {"__builtins__": {}} | {one.__name__: one for one in built_in}
        self._written = self._names = 0

    def members(self, value: str, parts: Sequence[Part], *, closed: bool, depth: int) -> list[str]:
        """Check what a dict holds. A closed one holds nothing else if as many were met as it has."""
        required = sum(part.is_required for part in parts)
        is_counted = closed and required < len(parts)
        count = self._name("n")
        lines = [f"{count} = {required}"] if is_counted else []
        for part in parts:
            lines += self._member(value, part, [f"{count} += 1"] if is_counted else [], depth)
        if closed:
            lines += _refuse([f"len({value}) != {count if is_counted else required}"])
        return lines

    def _member(self, value: str, part: Part, met: list[str], depth: int) -> list[str]:
        key, member = self._bind(part.name), self._name("v")
        found = [f"{member} = {value}[{key}]"]
        checks = self._schema(member, part.schema, depth + 1)
        if part.is_required:
            return found + checks
        if part.skips_none and checks:
            checks = [f"if {member} is not None:", *_inside(checks)]
        inside = met + (found + checks if checks else [])
        return [f"if {key} in {value}:", *_inside(inside)] if inside else []

    def _schema(self, value: str, schema: Schema, depth: int) -> list[str]:
        self._written += 1
        if KEYWORDS.isdisjoint(schema):
            return []
        declared = schema.get("type", ())
        types = [declared] if isinstance(declared, str) else [str(name) for name in declared]
        # None passes all keywords but those that list or combine what may be there.
        if len(types) == 2 and "null" in types and not schema.keys() & {"enum", "const", "anyOf"}:
            types.remove("null")
            return [f"if {value} is not None:", *_inside(self._one_type(value, types[0], schema, depth))]
        return self._one_type(value, types[0] if len(types) == 1 else "", schema, depth)

    def _one_type(self, value: str, kind: str, schema: Schema, depth: int) -> list[str]:
        is_too_much = depth > MAX_WRITTEN_DEPTH or self._written > MAX_WRITTEN_SCHEMAS
        has_choices = not schema.keys().isdisjoint({"enum", "const"})
        is_rare = kind not in _REFUSED_TYPES or "anyOf" in schema or (has_choices and kind not in _EXACT_TYPES)
        if is_rare or is_too_much:
            return self._asked(value, schema)
        refused = [_REFUSED_TYPES[kind].format(value), *self._outside(value, kind, schema)]
        if has_choices:
            refused.append(f"{value} not in {self._bind(_choices(schema, _EXACT_TYPES[kind]))}")
        if kind == "string" and "pattern" in schema:
            refused.append(f"{self._bind(re.compile(schema['pattern']).search)}({value}) is None")
        return _refuse(refused) + self._contents(value, kind, schema, depth)

    def _outside(self, value: str, kind: str, schema: Schema) -> list[str]:
        """Refuse by what is not inside the bounds: NaN is on neither side of any."""
        limited = "number" if kind == "integer" else kind
        return [
            f"not {f'len({value})' if bound.is_length else value} {bound.sign} {self._bind(schema[keyword])}"
            for keyword, bound in BOUNDS.items()
            if bound.of == limited and schema.get(keyword) is not None
        ]

    def _contents(self, value: str, kind: str, schema: Schema, depth: int) -> list[str]:
        if kind == "array" and "items" in schema:
            item = self._name("v")
            checks = self._schema(item, schema["items"], depth + 1)
            return [f"for {item} in {value}:", *_inside(checks)] if checks else []
        if kind == "object":
            return self._object(value, schema, depth)
        return []

    def _object(self, value: str, schema: Schema, depth: int) -> list[str]:
        declared, required = schema.get("properties", {}), list(schema.get("required", ()))
        others = schema.get("additionalProperties", True)
        if isinstance(others, dict) or any(name not in list(declared) for name in required):
            return self._asked(value, schema)
        parts = [Part(name, part, name in required) for name, part in declared.items()]
        return self.members(value, parts, closed=others is False, depth=depth)

    def _asked(self, value: str, schema: Schema) -> list[str]:
        """Ask the checks themselves about what is too rare, or too deep, to be written out."""
        check = self._bind(compile_schema(schema))
        return [f"for _ in {check}({value}, ''):", " return False"]

    def _bind(self, value: Any) -> str:
        name = self._name("k")
        self.scope[name] = value
        return name

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"


def _choices(schema: Schema, types: tuple[type, ...]) -> frozenset[Any]:
    """The choices of those exact types, without NaN: a set finds it, although it is equal to nothing."""
    listed = [schema["const"]] if "const" in schema else schema["enum"]
    kept = (choice for choice in listed if type(choice) in types)
    return frozenset(choice for choice in kept if isinstance(choice, str) or not math.isnan(choice))


def _refuse(conditions: list[str]) -> list[str]:
    return [f"if {' or '.join(conditions)}:", " return False"]


def _inside(lines: list[str]) -> list[str]:
    return [f" {line}" for line in lines]
