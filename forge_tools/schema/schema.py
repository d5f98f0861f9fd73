"""Compiles JSON Schema fragments into checks that name the path of every problem, and quick answers for valid calls."""

import difflib
import operator
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from forge_tools.model.tools import FILE, Schema
from forge_tools.schema.transport import MAX_DEPTH, shown

Check = Callable[[Any, str], Iterable[str]]
"""Called with a value and its path; returns the problems, none if the value is fine."""

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
    """What a keyword limits: values of a type, or their length. `said` names the problem."""

    of: str
    holds: Callable[[Any, Any], bool]
    said: str
    is_length: bool = False


BOUNDS = {
    "minLength": Bound("string", operator.ge, "is shorter than minimum length", is_length=True),
    "maxLength": Bound("string", operator.le, "exceeds maximum length", is_length=True),
    "minimum": Bound("number", operator.ge, "is below minimum"),
    "maximum": Bound("number", operator.le, "exceeds maximum"),
    "exclusiveMinimum": Bound("number", operator.gt, "must be greater than"),
    "exclusiveMaximum": Bound("number", operator.lt, "must be less than"),
    "minItems": Bound("array", operator.ge, "has fewer items than minimum", is_length=True),
    "maxItems": Bound("array", operator.le, "has more items than maximum", is_length=True),
}


class SchemaError(ValueError):
    """A schema fragment that cannot be turned into checks."""


def is_of_type(value: Any, expected: str) -> bool:
    """Return whether `value` is of that JSON type; an unknown type accepts everything (spec S3-050)."""
    known = _TYPES.get(expected)
    return known is None or known(value)


def compile_schema(schema: Any, depth: int = 0) -> Check:
    """Compile a fragment into one check: type first, then enum, lengths, ranges and nested schemas (spec S4-23).

    Raises:
        SchemaError: naming the keyword that cannot be checked.
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
    """Name the closest `known` name not already `given`, as the end of a message about an unknown one."""
    asked, names = str(name)[:64], sorted(known)  # cut, as comparing takes quadratic time
    # Reversed: of names that differ only in case, the first counts.
    folded = {candidate.casefold(): candidate for candidate in reversed(names)}
    close = [folded[one] for one in difflib.get_close_matches(asked.casefold(), folded, n=1, cutoff=0.7)]
    close += [candidate for candidate in names if len(asked) > 1 and asked in candidate]
    return f" (did you mean '{close[0]}'?)" if close and close[0] not in given else ""


def _check(types: tuple[str, ...], checks: tuple[Check, ...], value: Any, path: str) -> Iterable[str]:
    if types and not any(is_of_type(value, name) for name in types):
        return (f"Invalid type for {path}: expected {' or '.join(types)}",)
    return chain.from_iterable(check(value, path) for check in checks)


def _enum(schema: Schema, _depth: int) -> Check:
    allowed = [schema["const"]] if "const" in schema else list(_list(schema["enum"], "enum"))

    def check(value: Any, path: str) -> Iterable[str]:
        # As in JSON, true is not 1.
        if any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed):
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
    pattern = schema["pattern"]
    matches = _matcher(pattern)

    def check(value: Any, path: str) -> Iterable[str]:
        if not isinstance(value, str) or matches(value):
            return ()
        return (f"Value for {path} does not match pattern: {pattern}",)

    return check


def _matcher(pattern: Any) -> Callable[[Any], bool]:
    """Prepare a search in time that only grows with the text: a model chooses that, and every other call would wait."""
    if not isinstance(pattern, str):
        raise SchemaError(f"pattern {pattern!r} does not compile: it must be a string")
    try:
        matches = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except PatternError as error:
        reason = str(error).rpartition("\n")[2].strip().removeprefix("SchemaError: ").removeprefix("error: ")
        raise SchemaError(f"pattern {pattern!r} does not compile: {reason}") from error
    # Once more with question marks for lone surrogates, which pydantic refuses.
    return lambda text: matches(text) or matches(text.encode(errors="replace").decode())


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
        why = "; ".join(reasons[:3])
        return (f"Invalid value for {path}: it matches none of the {len(options)} allowed forms ({why})",)

    return check


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
"""The supported keywords; a fragment with none of them accepts everything."""


Accept = Callable[[dict[str, Any]], bool]
"""True only for arguments without a problem. False is inconclusive: the checks then find the problem, if any."""

_RANGE = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_CORE: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "string": (core_schema.str_schema, {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"}),
    "integer": (core_schema.int_schema, _RANGE),
    "number": (core_schema.float_schema, _RANGE),
    "boolean": (core_schema.bool_schema, {}),
    "array": (core_schema.list_schema, {"minItems": "min_length", "maxItems": "max_length"}),
}
"""The types that pydantic checks at once, and its words for their keywords."""

_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_EXACT = 2**53
"""From here on pydantic's comparison of an integer with a limit, as floats, may be wrong."""
_NUMBER = core_schema.is_instance_schema((int, float))  # pydantic alone also takes what only converts to one


def compile_acceptance(schema: Schema, nullable: Container[str] = ()) -> Accept:
    """Compile the quick answer for the arguments of one tool, described as an object whose schemas are known to compile.

    None counts as absent for the parameters that are `nullable`.
    """
    try:
        return SchemaValidator(_object(schema, nullable)).isinstance_python
    except (PatternError, UnicodeEncodeError):  # pydantic cannot express a bound or a name: the checks decide
        return lambda _: False


def _quick(schema: Schema) -> Any:
    used, declared = KEYWORDS & schema.keys(), schema.get("type", ())
    types = [declared] if isinstance(declared, str) else list(declared)
    if not used:
        return core_schema.any_schema()
    if len(types) == 2 and "null" in types and used.isdisjoint({"enum", "const", "anyOf"}):
        types.remove("null")  # which passes all other keywords
        return core_schema.nullable_schema(_quick({**schema, "type": types[0]}))
    if types == ["object"] and used <= _OBJECT and isinstance(schema.get("additionalProperties", True), bool):
        return _object(schema)
    if types == ["string"] and used in ({"type", "enum"}, {"type", "const"}):
        choices = schema["enum"] if "enum" in used else [schema["const"]]
        return core_schema.literal_schema([choice for choice in choices if type(choice) is str])
    return _of_one_type(types[0], schema, used) if len(types) == 1 else _asked(schema)


def _of_one_type(kind: str, schema: Schema, used: AbstractSet[str]) -> Any:
    make, words = _CORE.get(kind, (None, {}))
    if make is None or not used <= {"type", "items", *words} or ("items" in used and kind != "array"):
        return _asked(schema)
    limits = {words[keyword]: schema[keyword] for keyword in used & words.keys() if schema[keyword] is not None}
    if kind == "number" and any(abs(limit) >= _EXACT for limit in limits.values()):
        return _asked(schema)
    if kind == "array":
        return make(_quick(schema.get("items", {})), strict=True, **limits)
    made = make(strict=True, **limits)
    return core_schema.chain_schema([_NUMBER, made]) if kind == "number" else made


def _object(schema: Schema, nullable: Container[str] = ()) -> Any:
    declared, required = schema.get("properties", {}), schema.get("required", ())
    if not set(required) <= declared.keys():
        return _asked(schema)
    fields = {}
    for name, part in declared.items():
        quick = core_schema.nullable_schema(_quick(part)) if name in nullable else _quick(part)
        fields[name] = core_schema.typed_dict_field(quick, required=name in required)
    is_closed = schema.get("additionalProperties") is False
    return core_schema.typed_dict_schema(fields, strict=True, extra_behavior="forbid" if is_closed else "ignore")


def _asked(schema: Schema) -> Any:
    """Ask the checks themselves about what is too rare to compile."""
    check = compile_schema(schema)

    def refuse(value: Any) -> Any:
        if next(iter(check(value, "")), None) is not None:
            raise ValueError
        return value

    return core_schema.no_info_plain_validator_function(refuse)
