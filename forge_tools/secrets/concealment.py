"""Decides what of a call nobody may see, and parts it from what everybody may."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from forge_tools.model import REDACTED, ExecutionContext, ToolSpec, is_reference, secrets_in, without_secrets
from forge_tools.secrets.patterns import Patterns
from forge_tools.secrets.scrubber import Scrubber, leaves

_NONE: Mapping[str, Any] = MappingProxyType({})


class Concealed(NamedTuple):
    """A call's parameters as people see them, and what those do not show.

    `hidden` are the values that are secret as a whole; `quoting` are those that only have a secret in them, and are shown
    without it; `found` are those secrets. `metadata` is that of the context if it has one, which people see as
    `shown_metadata`.
    """

    shown: dict[str, Any]
    hidden: dict[str, Any]
    quoting: dict[str, Any]
    found: list[str]
    metadata: dict[str, Any]
    shown_metadata: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.hidden, *self.quoting, *(("context.metadata",) if self.metadata else ()))

    @property
    def encrypted(self) -> dict[str, Any]:
        """What is to be encrypted."""
        parts = {"hidden": self.hidden, "quoting": self.quoting, "found": self.found, "metadata": self.metadata}
        return {name: part for name, part in parts.items() if part}


class Opened(NamedTuple):
    """The parameters put together again, the secrets among them, and the metadata of the context if it had one, too."""

    parameters: dict[str, Any]
    secrets: tuple[str, ...]
    metadata: dict[str, Any]


class Concealment:
    """What a tool's definition says is to be hidden, and what looks like a secret; prepared once for all its calls."""

    @classmethod
    def of(cls, spec: ToolSpec, patterns: Patterns | None = None) -> Self | None:
        """What conceals the calls of a tool; None where none that it accepts can have anything to hide."""
        return cls(spec, patterns) if spec.may_hide or patterns else None

    def __init__(self, spec: ToolSpec, patterns: Patterns | None = None) -> None:
        self._patterns = patterns
        self._spec = spec
        self.tool = spec.name

    def part(self, parameters: Mapping[str, Any], metadata: Mapping[str, Any] = _NONE) -> Concealed | None:
        """Part what is hidden from what is shown; None where nothing is. A reference to a secret is none itself.

        `metadata` is that of the call's context: names tell what is secret in it, and it may quote a parameter.
        """
        spec = self._spec
        hidden = {name: parameters[name] for name in spec.hidden(parameters) if not is_reference(parameters[name])}
        found = list(leaves([secrets_in(parameters[name]) for name in spec.holding(parameters)]))
        if metadata:
            found += leaves(secrets_in(metadata))
        if self._patterns is not None:
            others = [value for name, value in parameters.items() if name not in hidden]
            found += self._patterns.found_in([*others, metadata])
        if not hidden and not found:
            return None
        scrubber = Scrubber([*leaves(hidden), *found])
        shown = {
            name: REDACTED if name in hidden else scrubber.value(without_secrets(value))
            for name, value in parameters.items()
        }
        quoting = {name: parameters[name] for name in shown if name not in hidden and shown[name] != parameters[name]}
        shown_metadata = scrubber.value(without_secrets(metadata))
        apart = dict(metadata) if shown_metadata != metadata else {}
        return Concealed(shown, hidden, quoting, found, apart, shown_metadata)

    def seen(self, parameters: Mapping[str, Any], context: ExecutionContext) -> tuple[dict[str, Any], ExecutionContext]:
        """Copy the parameters and the context of a call as people may see them."""
        parts = self.part(parameters, context.metadata)
        if parts is None:
            return dict(parameters), context
        return parts.shown, context.model_copy(update={"metadata": parts.shown_metadata})

    @staticmethod
    def join(shown: Mapping[str, Any], encrypted: Mapping[str, Any]) -> Opened:
        """Put together what was parted."""
        hidden, quoting = encrypted.get("hidden", {}), encrypted.get("quoting", {})
        secrets = (*leaves(hidden), *leaves(encrypted.get("found", [])))
        return Opened({**shown, **hidden, **quoting}, secrets, dict(encrypted.get("metadata", {})))


def as_shown(spec: ToolSpec, parameters: Mapping[str, Any], patterns: Patterns | None = None) -> dict[str, Any]:
    """Copy the parameters of a call as people may see them: without secrets, also where another value quotes them."""
    parts = Concealment(spec, patterns).part(parameters)
    return dict(parameters) if parts is None else parts.shown
