"""Compiles JSON Schema fragments into checks that name the path of every problem, and code that accepts calls fast."""

import difflib
import math
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from forge_tools.model import Schema
from forge_tools.model.tools import FILE
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

MAX_WRITTEN_DEPTH = 10
"""How many levels are compiled to code; Python limits the loops and the indentation of one function."""

MAX_WRITTEN_SCHEMAS = 1_000
"""How many fragments are compiled to code for one tool: the code is kept as long as the tool is."""

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


class Bound(NamedTuple):
    """What a keyword limits: values of a type, or their length. `sign` is `holds` in Python; `said` names the problem."""

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
    return lambda text: matches(text) or matches(text.encode(errors="replace").decode())  # half characters are no text


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
        return (
            f"Invalid value for {path}: it matches none of the {len(options)} allowed forms ({'; '.join(reasons[:3])})",
        )

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
"""The supported keywords; a fragment with none of them accepts everything."""


Accept = Callable[[dict[str, Any]], bool]
"""True only for arguments without a problem. False is inconclusive: the checks then find the problem, if any."""


class Part(NamedTuple):
    """One parameter, or one property of an object.

    With `skips_none`, None counts as absent.
    """

    name: str
    schema: Schema
    is_required: bool
    skips_none: bool = False


def compile_acceptance(parts: Sequence[Part], *, closed: bool) -> Accept:
    """Generate and load the function for one tool; `closed` arguments are only those of `parts`.

    The schemas must be known to compile. Only exact types are accepted: subclasses of `str` or `dict`, whose behaviour
    is arbitrary, are left to the checks.
    """
    writer = _Writer()
    body = writer.members("values", parts, closed=closed, depth=0)
    source = ["def accept(values):", " try:", *_inside(_inside([*body, "return True"]))]
    # A required one is missing, or a foreign value cannot be compared: the checks will handle it.
    source += [" except Exception:", "  return False"]
    exec("\n".join(source), writer.scope)  # noqa: S102 fixed phrases and made-up names; see `_Writer`
    accept: Accept = writer.scope["accept"]
    return accept


class _Writer:
    """Generates lines that return False for anything not certainly valid.

    They consist of phrases in this module and of names made here. Content of a schema is bound to such a name as a
    value, in `scope`, and never becomes text: no schema can inject code.
    """

    def __init__(self) -> None:
        built_in = (type, len, str, int, float, list, dict, Exception)
        self.scope: dict[str, Any] = {"__builtins__": {}} | {one.__name__: one for one in built_in}
        self._written = self._names = 0

    def members(self, value: str, parts: Sequence[Part], *, closed: bool, depth: int) -> list[str]:
        """Check the contents of a dict. A closed one has no other members if as many were matched as it contains."""
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
        # None passes all keywords except those that list or combine allowed values.
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
            refused.append(f"not {self._bind(_matcher(schema['pattern']))}({value})")
        return _refuse(refused) + self._contents(value, kind, schema, depth)

    def _outside(self, value: str, kind: str, schema: Schema) -> list[str]:
        """Refuse by negating "inside the bounds": NaN is on neither side of any."""
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
        """Call the checks themselves for anything too rare, or too deep, to compile."""
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
    """Return the choices of those exact types, without NaN: a set finds it, although it is equal to nothing."""
    listed = [schema["const"]] if "const" in schema else schema["enum"]
    kept = (choice for choice in listed if type(choice) in types)
    return frozenset(choice for choice in kept if isinstance(choice, str) or not math.isnan(choice))


def _refuse(conditions: list[str]) -> list[str]:
    return [f"if {' or '.join(conditions)}:", " return False"]


def _inside(lines: list[str]) -> list[str]:
    return [f" {line}" for line in lines]
