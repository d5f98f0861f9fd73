"""Removes a call's own secrets from everything it leaves behind, in the forms in which texts quote them."""

import json
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import Any, AnyStr, Generic
from urllib.parse import quote

from forge_tools.model import REDACTED, ToolResult, ToolSpec, secrets_in
from forge_tools.secrets.readings import Readings

LEAST = 6
"""The fewest characters of a secret to remove from results: a shorter one may be any word or number there."""

LEAST_LINE = 16
"""The fewest characters of a line to remove: secrets of several lines, such as private keys, may be quoted by line."""

FEW = 250
"""Up to this many forms, those of about twenty secrets, are searched one by one, faster than splitting the text."""

_LEAST_ENCODED = 9
"""The fewest bytes of a secret that base64 shows recognizably, wherever it lies in a longer text."""

_WIDTHS = (12, 6, 3, 1)
"""How many final characters of each form are searched first; secrets share beginnings more often than ends."""

_AT_ONCE = 1 << 16

_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")
"""Text that is written the same way in a literal, in JSON and in a URL."""

_URL_SAFE = str.maketrans("+/", "-_")
_unescaped = json.JSONEncoder(ensure_ascii=False).encode

LEAST_IN_FAILURES = 3
"""The fewest characters of a secret to remove from failures, which report a problem and lose less by it."""

_BEGINNINGS = tuple(REDACTED[:length] for length in range(1, len(REDACTED) + 1))
_ENDS = tuple(REDACTED[-length:] for length in range(1, len(REDACTED) + 1))
_MAX_DEPTH = 100
_NONE: Mapping[str, Any] = MappingProxyType({})


def forms_of(secret: str, least: int) -> Iterable[str]:
    """Yield the secret as programs write it: unchanged, escaped, encoded for URLs, in hexadecimal and in base64."""
    lines = [line.strip() for line in secret.splitlines()] if "\n" in secret else []
    for text in dict.fromkeys((secret, secret.strip(), *(line for line in lines if len(line) >= LEAST_LINE))):
        if len(text) >= least:
            yield from _escaped(text)


class Finder(Generic[AnyStr]):
    """Finds which of its forms occur in a text, in time independent of their number. No form may be empty."""

    def __init__(self, forms: Collection[AnyStr]) -> None:
        self.longest = max(map(len, forms), default=1)
        self._few: list[AnyStr] = []
        self._by_end: dict[int, dict[AnyStr, AnyStr]] = {}
        self._others: dict[AnyStr, list[AnyStr]] = defaultdict(list)
        for width in _WIDTHS:
            group = [form for form in forms if len(form) >= width]
            forms = [form for form in forms if len(form) < width]
            if len(group) <= FEW:
                self._few += group
                continue
            ends = self._by_end[width] = {form[-width:]: form for form in group}
            for form in [form for form in group if ends[form[-width:]] is not form]:
                self._others[form[-width:]].append(form)

    def found_in(self, text: AnyStr) -> list[AnyStr]:
        """Return those in the text, in no particular order."""
        found = [form for form in self._few if form in text]
        for width, ends in self._by_end.items():
            for end in _pieces_among(ends, text, width):
                found += [form for form in self._ending(ends, end) if form in text]
        return found

    def _ending(self, ends: dict[AnyStr, AnyStr], end: AnyStr) -> list[AnyStr]:
        return [ends[end], *self._others.get(end, ())]


def search_for(forms: list[bytes]) -> Callable[[bytes], list[bytes]]:
    """Build the function that returns which of the forms are in some data."""
    return Finder(forms).found_in


def _pieces_among(ends: dict[AnyStr, AnyStr], text: AnyStr, width: int) -> set[AnyStr]:
    """Return the pieces of that width that are keys, one part of the text at a time: their set is many times its size."""
    met = set[AnyStr]()
    for start in range(0, len(text) - width + 1, _AT_ONCE):
        until = min(start + _AT_ONCE, len(text) - width + 1)
        met |= ends.keys() & {text[at : at + width] for at in range(start, until)}
    return met


def _escaped(text: str) -> Iterable[str]:
    """Yield escaped forms, and their encodings as parts of a longer text."""
    if _PLAIN.fullmatch(text):
        yield from _encoded(text)
        return
    for form in {text, repr(text)[1:-1], ascii(text)[1:-1], json.dumps(text)[1:-1], _unescaped(text)[1:-1]}:
        data = form.encode("utf-8", "surrogatepass")
        whole = quote(data, safe="")
        for quoted in (whole, whole.replace("%2F", "/"), whole.replace("%20", "+")):
            yield quoted
            yield quoted.lower() if "%" in quoted else quoted
        yield from _encoded(form)


def _encoded(form: str) -> Iterable[str]:
    yield form
    if len(form) >= LEAST:
        data = form.encode("utf-8", "surrogatepass")
        yield data.hex()
        yield data.hex().upper()
        for shown in _in_base64(data):
            yield shown
            yield shown.translate(_URL_SAFE) if "+" in shown or "/" in shown else shown


def _in_base64(data: bytes) -> Iterable[str]:
    """Yield the encoding of the whole, and the part that is the same at any offset in a longer text (user:password)."""
    yield b64encode(data).decode().rstrip("=")
    if len(data) >= _LEAST_ENCODED:
        for before in range(3):
            start, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
            yield b64encode(bytes(before) + data).decode()[start:end]


class Scrubber:
    """Replaces secrets by `[redacted]`. `least` is the minimum length, in characters, of a secret to search for."""

    def __init__(self, secrets: Iterable[str], least: int = LEAST) -> None:
        self.secrets = frozenset(secrets)
        self._forms = {form for secret in self.secrets if len(secret) >= least for form in forms_of(secret, least)}
        self._few = sorted(self._forms, key=_longest_first) if len(self._forms) <= FEW else None

    @property
    def forms(self) -> list[bytes]:
        """The forms as bytes, for streams that arrive in pieces."""
        return [form.encode("utf-8", "surrogatepass") for form in self._forms]

    def __bool__(self) -> bool:
        """Whether there is anything to search for."""
        return bool(self._forms)

    def text(self, text: str) -> str:
        """Copy a text without the secrets, the longest forms first; then those with something inside them."""
        if not self._readings.of(text.encode("utf-8", "surrogatepass")):
            return text
        for form in self._few if self._few is not None else self._worth_a_look(text):
            if form in text:
                text = text.replace(form, REDACTED)
        data = text.encode("utf-8", "surrogatepass")
        return self._readings.replaced(data, REDACTED.encode()).decode("utf-8", "surrogatepass")

    def value(self, value: Any, depth: int = 0) -> Any:
        """Copy a JSON value without the secrets, whether keys, texts or numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return REDACTED if len(text := _written(value)) >= LEAST and text in self._forms else value
        if depth >= _MAX_DEPTH:  # stored JSON is not that deep
            return REDACTED if isinstance(value, Mapping | list | tuple) else value
        if isinstance(value, Mapping):
            return {self._key(key): self.value(item, depth + 1) for key, item in value.items()}
        return [self.value(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value

    def result(self, result: ToolResult) -> ToolResult:
        """Copy a result without the secrets, wherever they are."""
        return result.model_copy(
            update={
                "output": self.value(result.output),
                "error": None if result.error is None else self.text(result.error),
                "error_details": self.value(result.error_details),
                "metadata": self.value(result.metadata),
            }
        )

    def _key(self, key: Any) -> Any:
        """Scrub a key. The error for a key that JSON cannot store quotes it, so its repr counts."""
        if key is None or isinstance(key, str | int | float):
            return self.value(key)
        try:
            text = repr(key)
        except Exception:  # noqa: BLE001 the repr of a foreign object is foreign code too
            return REDACTED
        return key if self.text(text) == text else REDACTED

    def _worth_a_look(self, text: str) -> Sequence[str]:
        """Return the forms in a text, and those that may appear once others have been replaced."""
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
"""Removes the secrets of the running call; None for a call without any, as nearly all are."""


def scrubber_of(
    spec: ToolSpec,
    parameters: Mapping[str, Any],
    least: int = LEAST,
    *,
    metadata: Mapping[str, Any] = _NONE,
    also: Iterable[str] = (),
) -> Scrubber | None:
    """Return the scrubber for a call with these parameters, including secrets that its worker knows otherwise.

    `metadata` is that of the call's context, in which names mark secrets; `also` lists others.
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
    """Copy a value without the secrets of the running call; return the same object if the call has none."""
    scrubber = CONCEALED.get()
    return value if scrubber is None else scrubber.value(value)


def _longest_first(form: AnyStr) -> tuple[int, AnyStr]:
    return -len(form), form


def leaves(value: Any, depth: int = 0) -> Iterable[str]:
    """Yield every text and number inside a JSON value, as text. Other objects may be readable only once."""
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
    except ValueError:  # it has more digits than Python writes, so nothing quotes it
        return ""
