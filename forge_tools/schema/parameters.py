"""The checks of one tool's parameters, prepared once and used by clients and tools alike."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

from forge_tools.errors import InvalidToolError
from forge_tools.model import ToolParameter, ToolSpec
from forge_tools.schema.acceptance import Accept, Part, compile_acceptance
from forge_tools.schema.foreign import ForeignSchema
from forge_tools.schema.schema import Check, SchemaError, compile_schema, suggestion
from forge_tools.schema.transport import shown

MAX_ERRORS = 50
"""How many problems of one call are listed."""


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
        """Return the validator of `spec`, prepared at the first call for that definition."""
        return _prepared(_Definition(spec.digest, spec))

    def first_error(self, params: Mapping[str, Any]) -> str | None:
        """Return the first problem, or None."""
        if type(params) is dict and self._accepts(params):
            return None
        return next(self._problems(params), None)

    def all_errors(self, params: Mapping[str, Any]) -> list[str]:
        """Return every problem, at most `MAX_ERRORS` (contradiction C45)."""
        if type(params) is dict and self._accepts(params):
            return []
        return list(islice(self._problems(params), MAX_ERRORS))

    def effective(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the tool is called with: aliases resolved, None for optional ones dropped, defaults filled in."""
        values = self._resolve(params)
        for name, default in self._defaults:
            if name not in values:
                values[name] = copy.deepcopy(default)
        return values

    def default_error(self) -> str | None:
        """Return why the first default that its own parameter refuses is refused, or None."""
        problems = (
            problem
            for parameter, check in self._checks
            if parameter.default is not None
            for problem in check(parameter.default, parameter.name)
        )
        return next(problems, None)

    def _accepts_first(self, params: dict[str, Any]) -> bool:
        """Prepare for quick answers at the first call: most tools that a process knows are never called there."""
        parts = [
            Part(p.name, p.to_json_schema(), p.required, skips_none=p.name in self._droppable) for p, _ in self._checks
        ]
        is_ambiguous = len(self._names) < len(parts) or not self._names.isdisjoint(self._aliases)
        # An alias may stand for anything, so nothing but the parameters' own names is accepted where there are any.
        is_closed = not self._extra or bool(self._aliases)
        self._accepts = _never if is_ambiguous else compile_acceptance(parts, closed=is_closed)
        return self._accepts(params)

    def _problems(self, params: Mapping[str, Any]) -> Iterator[str]:
        """Yield misnamed parameters first: their message is what repairs the missing one."""
        if self._foreign is not None:
            yield from self._foreign.problems(params)
            return
        if not self._names.issuperset(params):
            yield from self._misnamed(params)
        values = self._resolve(params)
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
                    yield f"Parameters {' and '.join(map(repr, same))} are the same one. Give only {target!r}."
            elif name not in self._names and not self._extra:
                yield f"Unknown parameter '{shown(name)}'{suggestion(name, [*self._names, *self._aliases], given)}"

    def _resolve(self, params: Mapping[str, Any]) -> dict[str, Any]:
        values = {n: v for n, v in params.items() if v is not None or n not in self._droppable}
        for alias, target in self._aliases.items():
            if alias in values and (value := values.pop(alias)) is not None:
                values.setdefault(target, value)
        return values

    def _prepare(self, parameter: ToolParameter) -> Check:
        try:
            return compile_schema(parameter.to_json_schema())
        except SchemaError as error:
            raise InvalidToolError(self._tool, f"parameter '{parameter.name}': {error}") from error


def _never(_params: dict[str, Any]) -> bool:
    return False


@dataclass(frozen=True)
class _Definition:
    digest: str
    spec: ToolSpec = field(compare=False)


@lru_cache(maxsize=1024)
def _prepared(definition: _Definition) -> Validator:
    return Validator(definition.spec)
