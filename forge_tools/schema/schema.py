"""JSON Schema fragments, turned once into checks that name the path of every problem."""

import difflib
import operator
import re
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from forge_tools.model import Schema
from forge_tools.model.tools import FILE
from forge_tools.schema.transport import MAX_DEPTH, shown

Check = Callable[[Any, str], Iterable[str]]
"""Called with a value and its path; gives the problems, none if the value is fine."""

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
    FILE: lambda value: isinstance(value, str),
}
KNOWN_TYPES = frozenset(_TYPES)


class Bound(NamedTuple):
    """A keyword that limits values of a type, or their length: what must hold, as code and as Python writes it, and what is said if not."""

    of: str
    holds: Callable[[Any, Any], bool]
    sign: str
    said: str
    is_length: bool = False


BOUNDS = {
    "minLength": Bound("string", operator.ge, ">=", "is shorter than minimum length", is_length=True),
    "maxLength": Bound("string", operator.le, "<=", "exceeds maximum length", is_length=True),
    "minimum": Bound("number", operator.ge, ">=", "is below minimum"),
    "maximum": Bound("number", operator.le, "<=", "exceeds maximum"),
    "exclusiveMinimum": Bound("number", operator.gt, ">", "must be greater than"),
    "exclusiveMaximum": Bound("number", operator.lt, "<", "must be less than"),
    "minItems": Bound("array", operator.ge, ">=", "has fewer items than minimum", is_length=True),
    "maxItems": Bound("array", operator.le, "<=", "has more items than maximum", is_length=True),
}


class SchemaError(ValueError):
    """A schema fragment that cannot be turned into checks."""


def is_of_type(value: Any, expected: str) -> bool:
    """Tell whether `value` is of that JSON type; a type nobody knows accepts everything (spec S3-050)."""
    known = _TYPES.get(expected)
    return known is None or known(value)


def compile_schema(schema: Any, depth: int = 0) -> Check:
    """Turn a fragment into one check: type first, then enum, lengths, ranges and what is inside (spec S4-23).

    Raises:
        SchemaError: saying which keyword cannot be checked.
    """
    if not isinstance(schema, dict):
        raise SchemaError(f"a schema must be an object, not {type(schema).__name__}")
    if depth > MAX_DEPTH:
        raise SchemaError(f"its schema is nested deeper than {MAX_DEPTH} levels, or contains itself")
    checks = tuple(build(schema, depth) for keywords, build in _KEYWORDS if not keywords.isdisjoint(schema))
    declared = schema.get("type", ())
    types = (declared,) if isinstance(declared, str) else tuple(_list(declared, "type"))
    return partial(_check, types, checks)


def suggestion(name: Any, known: Iterable[str], given: Container[str] = ()) -> str:
    """Name the closest of the `known` names, as the end of a message about an unknown one; not one that was `given` as well."""
    asked, names = str(name)[:64], sorted(known)
    folded = {candidate.casefold(): candidate for candidate in reversed(names)}
    close = [folded[one] for one in difflib.get_close_matches(asked.casefold(), folded, n=1, cutoff=0.7)]
    close += [candidate for candidate in names if len(asked) > 1 and asked in candidate]
    return f" (did you mean '{close[0]}'?)" if close and close[0] not in given else ""


def _check(types: tuple[str, ...], checks: tuple[Check, ...], value: Any, path: str) -> Iterable[str]:
    if types and not any(is_of_type(value, name) for name in types):
        return (f"Invalid type for {path}: expected {' or '.join(types)}",)
    return _run(checks, value, path) if checks else ()


def _run(checks: tuple[Check, ...], value: Any, path: str) -> Iterator[str]:
    for check in checks:
        yield from check(value, path)


def _enum(schema: Schema, _depth: int) -> Check:
    allowed = [schema["const"]] if "const" in schema else list(_list(schema["enum"], "enum"))

    def check(value: Any, path: str) -> Iterable[str]:
        if any(_equal(value, choice) for choice in allowed):
            return ()
        return (f"Invalid value for {path}: must be one of {allowed}",)

    return check


def _bounds(schema: Schema, _depth: int) -> Check:
    bounds = [(bound, limit) for keyword, bound in BOUNDS.items() if (limit := _number(schema, keyword)) is not None]

    def check(value: Any, path: str) -> Iterator[str]:
        for bound, limit in bounds:
            if is_of_type(value, bound.of):
                measured = len(value) if bound.is_length else value
                if not bound.holds(measured, limit):  # so that NaN, which is on neither side of any bound, is refused
                    yield f"Value for {path} {bound.said}: {limit}"

    return check


def _pattern(schema: Schema, _depth: int) -> Check:
    try:
        expression = re.compile(schema["pattern"])
    except (re.error, TypeError, RecursionError) as error:
        raise SchemaError(f"pattern {schema['pattern']!r} does not compile: {error}") from error

    def check(value: Any, path: str) -> Iterable[str]:
        if not isinstance(value, str) or expression.search(value):
            return ()
        return (f"Value for {path} does not match pattern: {expression.pattern}",)

    return check


def _items(schema: Schema, depth: int) -> Check:
    inner = compile_schema(schema["items"], depth + 1)

    def check(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from inner(item, f"{path}[{index}]")

    return check


def _properties(schema: Schema, depth: int) -> Check:
    declared = schema.get("properties", {})
    if not isinstance(declared, dict):
        raise SchemaError(f"properties must be an object, not {type(declared).__name__}")
    inner = {name: compile_schema(part, depth + 1) for name, part in declared.items()}
    required = tuple(_list(schema.get("required", ()), "required"))
    additional = schema.get("additionalProperties", True)
    others = compile_schema(additional, depth + 1) if isinstance(additional, dict) else None

    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            return
        yield from (f"Missing required parameter: {path}.{name}" for name in required if name not in value)
        for name, item in value.items():
            rule = inner.get(name, others)
            if rule is not None:
                yield from rule(item, f"{path}.{shown(name)}")
            elif additional is False:
                yield f"Unknown parameter '{path}.{shown(name)}'{suggestion(name, inner, value)}"

    return check


def _any_of(schema: Schema, depth: int) -> Check:
    options = [compile_schema(option, depth + 1) for option in _list(schema["anyOf"], "anyOf")]

    def check(value: Any, path: str) -> Iterable[str]:
        reasons = []
        for option in options:
            reason = next(iter(option(value, path)), None)
            if reason is None:
                return ()
            reasons.append(reason)
        return (f"Invalid value for {path}: none of the {len(options)} allowed forms fits ({'; '.join(reasons[:3])})",)

    return check


def _equal(value: Any, choice: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)


def _number(schema: Schema, keyword: str) -> Any:
    value = schema.get(keyword)
    if value is None or is_of_type(value, "number"):
        return value
    raise SchemaError(f"{keyword} must be a number, not {type(value).__name__}")


def _list(value: Any, keyword: str) -> list[Any] | tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return value
    raise SchemaError(f"{keyword} must be a list, not {type(value).__name__}")


_KEYWORDS: tuple[tuple[frozenset[str], Callable[[Schema, int], Check]], ...] = (
    (frozenset({"enum", "const"}), _enum),
    (frozenset(BOUNDS), _bounds),
    (frozenset({"pattern"}), _pattern),
    (frozenset({"items"}), _items),
    (frozenset({"properties", "required", "additionalProperties"}), _properties),
    (frozenset({"anyOf"}), _any_of),
)
KEYWORDS = frozenset({"type"}).union(*(keywords for keywords, _ in _KEYWORDS))
"""What a fragment may say; one that says none of it accepts everything."""
