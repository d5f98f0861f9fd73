"""The checks of one tool's parameters, prepared once for clients and tools; also for complete foreign JSON Schemas."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

from forge_tools.errors import InvalidCallError, InvalidToolError
from forge_tools.model.tools import Schema, ToolParameter, ToolSpec
from forge_tools.schema.schema import Accept, Check, SchemaError, compile_acceptance, compile_schema, suggestion
from forge_tools.schema.transport import MAX_DEPTH, encode_json, shown

MAX_ERRORS = 50
"""How many problems of one call are listed."""

MAX_BYTES = 1_000_000

MAX_CHECKS = 5_000
"""How many schemas may apply to the same value, following references: they may multiply at every step."""

_MOST_SAID = 500
_REASONS = 3
_YES_OR_NO: Schema = {}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_ON_THE_SAME_VALUE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)

_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})

_INSIDE = _ON_THE_SAME_VALUE | frozenset(
    {"items", "prefixItems", "additionalItems", "contains", "additionalProperties", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)


class Validator:
    """The checks of one tool's parameters.

    Raises:
        InvalidToolError: on construction, when a schema cannot be checked (a pattern that does not compile).
    """

    def __init__(self, spec: ToolSpec) -> None:
        self._tool = spec.name
        self._foreign = None if spec.input_schema is None else ForeignSchema(spec.name, spec.input_schema)
        self._accepts: Accept = self._accepts_first if self._foreign is None else self._foreign.accepts
        self._extra = spec.extra
        self._checks = [(parameter, self._prepare(parameter)) for parameter in spec.parameters]
        self._names = {p.name for p in spec.parameters}
        self._aliases = {alias: p.name for p in spec.parameters for alias in p.aliases}
        self._droppable = {p.name for p in spec.parameters if not p.required and p.type != "null"}
        self._defaults = [(p.name, p.default) for p in spec.parameters if not p.required and p.default is not None]

    @classmethod
    def for_spec(cls, spec: ToolSpec) -> "Validator":
        """Return the validator of `spec`, prepared on the first call for that definition."""
        return _prepared(_Definition(spec.digest, spec))

    def first_error(self, params: Mapping[str, Any]) -> str | None:
        if type(params) is dict and self._accepts(params):
            return None
        return next(self._problems(params), None)

    def all_errors(self, params: Mapping[str, Any]) -> list[str]:
        """Return every problem, at most `MAX_ERRORS` (contradiction C45)."""
        if type(params) is dict and self._accepts(params):
            return []
        return list(islice(self._problems(params), MAX_ERRORS))

    def effective(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for the tool: as `named`, with defaults filled in."""
        values = self.named(params)
        for name, default in self._defaults:
            if name not in values:
                values[name] = copy.deepcopy(default)
        return values

    def named(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was given under the parameters' own names, without None for optional ones."""
        values = {n: v for n, v in params.items() if v is not None or n not in self._droppable}
        for alias, target in self._aliases.items():
            if alias in values and (value := values.pop(alias)) is not None:
                values.setdefault(target, value)
        return values

    def default_error(self) -> str | None:
        """Return why a parameter refuses its own default, for the first such parameter, or None."""
        problems = (
            problem
            for parameter, check in self._checks
            if parameter.default is not None
            for problem in check(parameter.default, parameter.name)
        )
        return next(problems, None)

    def _accepts_first(self, params: dict[str, Any]) -> bool:
        """Prepare for fast answers on the first call: most tools known to a process are never called there."""
        properties = {parameter.name: parameter.to_json_schema() for parameter, _ in self._checks}
        if len(properties) < len(self._checks) or not properties.keys().isdisjoint(self._aliases):
            return False  # names are ambiguous
        schema = {
            "properties": properties,
            "required": [parameter.name for parameter, _ in self._checks if parameter.required],
            # An alias may name any parameter, so a tool with aliases accepts only the parameters' own names here.
            "additionalProperties": self._extra and not self._aliases,
        }
        self._accepts = compile_acceptance(schema, self._droppable)
        return self._accepts(params)

    def _problems(self, params: Mapping[str, Any]) -> Iterator[str]:
        """Yield misnamed parameters first: their message is what repairs the missing one."""
        if self._foreign is not None:
            yield from self._foreign.problems(params)
            return
        if not self._names.issuperset(params):
            yield from self._misnamed(params)
        values = self.named(params)
        for parameter, check in self._checks:
            if parameter.name in values:
                yield from check(values[parameter.name], parameter.name)
            elif parameter.required:
                yield f"Missing required parameter: {parameter.name}"

    def _misnamed(self, params: Mapping[str, Any]) -> Iterator[str]:
        given = {name for name, value in params.items() if value is not None}
        for name in params:
            if (target := self._aliases.get(name)) is not None:
                same = sorted(n for n in given if n == target or self._aliases.get(n) == target)
                if len(same) > 1 and name == next(n for n in same if n != target):
                    yield f"Parameters {' and '.join(map(repr, same))} mean the same. Give only {target!r}."
            elif name not in self._names and not self._extra:
                yield f"Unknown parameter '{shown(name)}'{suggestion(name, [*self._names, *self._aliases], given)}"

    def _prepare(self, parameter: ToolParameter) -> Check:
        try:
            return compile_schema(parameter.to_json_schema())
        except SchemaError as error:
            raise InvalidToolError(self._tool, f"parameter '{parameter.name}': {error}") from error


@dataclass(frozen=True)
class _Definition:
    digest: str
    spec: ToolSpec = field(compare=False)  # it holds dicts, so it has no hash


@lru_cache(maxsize=1024)
def _prepared(definition: _Definition) -> Validator:
    return Validator(definition.spec)


class ForeignSchema:
    """The checks of one schema. Formats are not asserted, and nothing is ever fetched.

    Raises:
        InvalidToolError: on construction, when the schema is invalid, unbounded, or refers outside itself.
    """

    def __init__(self, tool: str, schema: Schema) -> None:
        import jsonschema_rs  # needed only for foreign schemas: few processes meet one

        try:
            encode_json(schema, "its input schema", MAX_BYTES)
            _Survey(schema).check()
            # Its messages say "it" in place of a value, which may be long, or a secret.
            self._validator = jsonschema_rs.validator_for(schema, offline=True, validate_formats=False, mask="it")
        except InvalidCallError as error:
            raise InvalidToolError(tool, error.message) from error
        except (jsonschema_rs.ReferencingError, jsonschema_rs.ValidationError, ValueError) as error:
            at = _path(getattr(error, "instance_path", ()))
            reason = str(error).partition("\n")[0][:_MOST_SAID]
            raise InvalidToolError(tool, f"its input schema{at and f' at {at}'} cannot be used: {reason}") from error

    def accepts(self, values: Mapping[str, Any]) -> bool:
        """Whether there is no problem; False is inconclusive for values that only resemble JSON."""
        try:
            return self._validator.is_valid(values)
        except (TypeError, ValueError):
            return False

    def problems(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield every problem, with the path of the value."""
        try:
            plain = json.loads(json.dumps(values))  # the library refuses subclasses of str, which are JSON too
            errors = self._validator.iter_errors(plain)
        except (RecursionError, TypeError, ValueError) as error:
            yield f"Invalid parameters: {error}"
            return
        for one in errors:
            yield from _said(one)


def _said(error: Any) -> Iterator[str]:
    path, keyword = _path(error.instance_path), error.schema_path[-1] if error.schema_path else ""
    facts = error.kind.as_dict()
    if keyword == "required":
        yield f"Missing required parameter: {_path([*error.instance_path, facts['property']])}"
    elif keyword in {"additionalProperties", "unevaluatedProperties"} and "unexpected" in facts:
        for name in facts["unexpected"]:
            yield f"Unknown parameter '{_path([*error.instance_path, name])}'"
    else:
        subject = f"Invalid value for {path}" if path else "Invalid parameters"
        firsts = (next(_said(branch[0]), "") for branch in facts.get("context", ()) if branch)
        reasons = list(dict.fromkeys(firsts))[:_REASONS]
        because = f" ({'; '.join(reasons)})" if reasons else ""
        yield f"{subject}: {error.message[:_MOST_SAID]}{because}"


def _path(steps: Any) -> str:
    written = "".join(f"[{step}]" if isinstance(step, int) else f".{shown(step)}" for step in steps)
    return written.removeprefix(".")


class _Survey:
    def __init__(self, document: Schema) -> None:
        self._document = document
        self._anchors: dict[str, Any] = {"#": document}
        self._checks: dict[int, int] = {}

    def check(self) -> None:
        """Refuse references outside the schema, and schemas that apply to one value too often."""
        schemas = list(self._all())
        for schema in schemas:
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str):
                    self._anchors[f"#{schema[keyword]}"] = schema
            own = schema.get("$id")
            if isinstance(own, str) and own.startswith("#"):  # an anchor, up to draft 7
                self._anchors[own] = schema
            elif isinstance(own, str) and schema is not self._document:
                raise InvalidCallError(f"its input schema contains another document, {shown(own)}")
        if any(self._count(schema, 0) > MAX_CHECKS for schema in schemas):
            raise InvalidCallError(f"its input schema applies more than {MAX_CHECKS:,} schemas to one value")

    def _all(self) -> Iterator[Schema]:
        seen, waiting = set[int](), [self._document]
        while waiting:
            schema = waiting.pop()
            if id(schema) not in seen:
                seen.add(id(schema))
                yield schema
                waiting += [part for _, part in _parts(schema)]
                waiting += [found for pointer in _references(schema) if (found := self._pointed(pointer)) is not None]

    def _count(self, schema: Schema, depth: int) -> int:
        """Return how many schemas apply to the value of this one; recursive ones count once."""
        if (known := self._checks.get(id(schema))) is not None:
            return known
        if depth > MAX_DEPTH:
            raise InvalidCallError(f"its input schema follows more than {MAX_DEPTH} references in a row")
        self._checks[id(schema)] = 0  # while counting is in progress
        parts = [part for keyword, part in _parts(schema) if keyword in _ON_THE_SAME_VALUE]
        parts += [self._resolved(pointer) for pointer in _references(schema)]
        count = 1
        for part in parts:
            count = min(MAX_CHECKS + 1, count + self._count(part, depth + 1))
        self._checks[id(schema)] = count
        return count

    def _resolved(self, reference: str) -> Schema:
        found = self._anchors.get(reference) or self._pointed(reference)
        if found is not None:
            return found
        if reference.startswith("#"):
            raise InvalidCallError(f"its input schema refers to {shown(reference)}, which is not in it")
        raise InvalidCallError(f"its input schema refers to {shown(reference)}, and references are not fetched")

    def _pointed(self, reference: str) -> Schema | None:
        """Follow a JSON pointer; None if it leads to no schema with keywords."""
        own = self._document.get("$id")
        if isinstance(own, str) and own:
            reference = reference.removeprefix(own.rstrip("#"))
        if not reference.startswith("#/"):
            return self._document if reference in {"#", ""} else None
        found: Any = self._document
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, bool):
            return _YES_OR_NO
        return found if isinstance(found, dict) else None


def _references(schema: Schema) -> list[str]:
    return [reference for keyword in _REFERENCES if isinstance(reference := schema.get(keyword), str)]


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            inside = list(value.values())
        elif keyword in _INSIDE:
            inside = value if isinstance(value, list) else [value]
        else:
            continue
        yield from ((keyword, part) for part in inside if isinstance(part, dict))
