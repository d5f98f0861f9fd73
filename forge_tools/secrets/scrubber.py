"""Takes a call's own secrets out of everything it leaves behind, in the forms in which texts quote them."""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import Any, AnyStr

from forge_tools.model import REDACTED, ToolResult, ToolSpec, secrets_in
from forge_tools.secrets.forms import FEW, LEAST, Finder, forms_of, search_for
from forge_tools.secrets.readings import Readings

LEAST_IN_FAILURES = 3
"""The characters of the shortest that is taken out of failures, which tell of a problem, and lose less."""

_BEGINNINGS = tuple(REDACTED[:length] for length in range(1, len(REDACTED) + 1))
_ENDS = tuple(REDACTED[-length:] for length in range(1, len(REDACTED) + 1))

_MAX_DEPTH = 100
_NONE: Mapping[str, Any] = MappingProxyType({})


class Scrubber:
    """Replaces secrets by `[redacted]`. `least` is how many characters a secret must have to be looked for."""

    def __init__(self, secrets: Iterable[str], least: int = LEAST) -> None:
        self.secrets = frozenset(secrets)
        self._forms = {form for secret in self.secrets if len(secret) >= least for form in forms_of(secret, least)}
        self._few = sorted(self._forms, key=_longest_first) if len(self._forms) <= FEW else None

    @property
    def forms(self) -> list[bytes]:
        """What is looked for, in bytes, for what passes in parts."""
        return [form.encode("utf-8", "surrogatepass") for form in self._forms]

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._forms)

    def text(self, text: str) -> str:
        """Copy a text without the secrets, the longest forms first; then those that have something in between."""
        if not self._readings.of(text.encode("utf-8", "surrogatepass")):
            return text
        for form in self._few if self._few is not None else self._worth_a_look(text):
            if form in text:
                text = text.replace(form, REDACTED)
        data = text.encode("utf-8", "surrogatepass")
        return self._readings.replaced(data, REDACTED.encode()).decode("utf-8", "surrogatepass")

    def value(self, value: Any, depth: int = 0) -> Any:
        """Copy a value of JSON's kind without the secrets, be they keys, texts or numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return REDACTED if len(text := _written(value)) >= LEAST and text in self._forms else value
        if depth >= _MAX_DEPTH:  # JSON that is stored is not as deep
            return REDACTED if isinstance(value, Mapping | list | tuple) else value
        if isinstance(value, Mapping):
            return {self._key(key): self.value(item, depth + 1) for key, item in value.items()}
        return [self.value(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value

    def result(self, result: ToolResult) -> ToolResult:
        """Copy a result without the secrets, wherever it has them."""
        return result.model_copy(
            update={
                "output": self.value(result.output),
                "error": None if result.error is None else self.text(result.error),
                "error_details": self.value(result.error_details),
                "metadata": self.value(result.metadata),
            }
        )

    def _key(self, key: Any) -> Any:
        """What is no text cannot be stored as a key, and the refusal quotes it."""
        if key is None or isinstance(key, str | int | float):
            return self.value(key)
        try:
            text = repr(key)
        except Exception:  # noqa: BLE001 the repr of a foreign object is foreign code too
            return REDACTED
        return key if self.text(text) == text else REDACTED

    def _worth_a_look(self, text: str) -> Sequence[str]:
        """The forms that are in a text, and those that may seem to be once others have been replaced."""
        found = self._finder.found_in(text)
        return sorted({*found, *self._beside_replaced}, key=_longest_first) if found else ()

    @cached_property
    def _readings(self) -> Readings:
        return Readings(self.forms, search_for)

    @cached_property
    def _finder(self) -> Finder[str]:
        return Finder(self._forms)

    @cached_property
    def _beside_replaced(self) -> Sequence[str]:
        return [
            form
            for form in self._forms
            if form.endswith(_BEGINNINGS) or form.startswith(_ENDS) or REDACTED in form or form in REDACTED
        ]


CONCEALED: ContextVar[Scrubber | None] = ContextVar("forge_tools_concealed", default=None)
"""What takes out the secrets of the call that runs; None for a call that has none, as nearly all."""


def scrubber_of(
    spec: ToolSpec,
    parameters: Mapping[str, Any],
    least: int = LEAST,
    *,
    metadata: Mapping[str, Any] = _NONE,
    also: Iterable[str] = (),
) -> Scrubber | None:
    """What takes out the secrets of a call with these parameters, and those that its worker knows of besides.

    `metadata` is that of the call's context, in which names tell what is secret; `also` are others.
    """
    known = CONCEALED.get()
    secrets = set(also)
    if metadata:
        secrets.update(leaves(secrets_in(metadata)))
    if spec.may_hide:
        secrets.update(leaves([parameters[name] for name in spec.hidden(parameters)]))
        secrets.update(leaves([secrets_in(parameters[name]) for name in spec.holding(parameters)]))
    if known is not None:
        if least == LEAST and secrets <= known.secrets:
            return known
        secrets |= known.secrets
    return Scrubber(secrets, least) if secrets else None


def scrubbed(value: Any) -> Any:
    """Copy a value without the secrets of the call that runs; it is the same one where that has none."""
    scrubber = CONCEALED.get()
    return value if scrubber is None else scrubber.value(value)


def _longest_first(form: AnyStr) -> tuple[int, AnyStr]:
    return -len(form), form


def leaves(value: Any, depth: int = 0) -> Iterable[str]:
    """Every text and number inside a value of JSON's kind, as text. Whatever else it is may be there to be read once."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item, depth + 1) if depth < _MAX_DEPTH else ()
    elif isinstance(value, int | float):
        if not isinstance(value, bool) and (text := _written(value)):
            yield text
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from leaves(item, depth + 1) if depth < _MAX_DEPTH else ()


def _written(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # of more digits than Python writes, so nothing quotes it
        return ""
