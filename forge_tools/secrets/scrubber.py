"""Takes a call's own secrets out of everything it leaves behind, in the forms in which texts quote them."""

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
"""Characters of the shortest secret that is taken out of results: a shorter one may be any word or number there."""

LEAST_LINE = 16
"""A secret of several lines, such as a private key, may be quoted line by line."""

FEW = 250
"""Up to so many forms, those of some twenty secrets, are searched one by one, which is faster than cutting up the text."""

_LEAST_ENCODED = 9
"""Bytes of the shortest secret of which base64 shows enough, wherever in a longer text it is encoded."""

_WIDTHS = (12, 6, 3, 1)
"""So many of the last characters of each form are searched first; secrets more often begin alike than end alike."""

_AT_ONCE = 1 << 16

_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")
"""Text that is written the same way in a literal, in JSON and in a URL."""

_URL_SAFE = str.maketrans("+/", "-_")
_unescaped = json.JSONEncoder(ensure_ascii=False).encode

LEAST_IN_FAILURES = 3
"""The characters of the shortest that is taken out of failures, which tell of a problem, and lose less."""

_BEGINNINGS = tuple(REDACTED[:length] for length in range(1, len(REDACTED) + 1))
_ENDS = tuple(REDACTED[-length:] for length in range(1, len(REDACTED) + 1))
_MAX_DEPTH = 100
_NONE: Mapping[str, Any] = MappingProxyType({})


def forms_of(secret: str, least: int) -> Iterable[str]:
    """The secret as programs write it: as it is, escaped, encoded for URLs, in hexadecimal and in base64."""
    lines = [line.strip() for line in secret.splitlines()] if "\n" in secret else []
    for text in dict.fromkeys((secret, secret.strip(), *(line for line in lines if len(line) >= LEAST_LINE))):
        if len(text) >= least:
            yield from _escaped(text)


class Finder(Generic[AnyStr]):
    """Finds which of its forms occur in a text, in time that does not grow with their number. No form may be empty."""

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
        """Those that are in it, in no order."""
        found = [form for form in self._few if form in text]
        for width, ends in self._by_end.items():
            for end in _pieces_among(ends, text, width):
                found += [form for form in self._ending(ends, end) if form in text]
        return found

    def _ending(self, ends: dict[AnyStr, AnyStr], end: AnyStr) -> list[AnyStr]:
        return [ends[end], *self._others.get(end, ())]


def search_for(forms: list[bytes]) -> Callable[[bytes], list[bytes]]:
    """Make what says which of them are in some data."""
    return Finder(forms).found_in


def _pieces_among(ends: dict[AnyStr, AnyStr], text: AnyStr, width: int) -> set[AnyStr]:
    """Which pieces of a text of that width are keys, a part of it at a time: their set is many times as large as the part."""
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
    """The encoding of the whole, and what is the same of it wherever in a longer text it begins (user:password)."""
    yield b64encode(data).decode().rstrip("=")
    if len(data) >= _LEAST_ENCODED:
        for before in range(3):
            start, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
            yield b64encode(bytes(before) + data).decode()[start:end]


class Scrubber:
    """Replaces secrets by `[redacted]`. `least` is how many characters a secret must have to be looked for."""

    def __init__(self, secrets: Iterable[str], least: int = LEAST) -> None:
        self.secrets = frozenset(secrets)
        self._forms = {form for secret in self.secrets if len(secret) >= least for form in forms_of(secret, least)}
        self._few = sorted(self._forms, key=_longest_first) if len(self._forms) <= FEW else None

    @property
    def forms(self) -> list[bytes]:
        """The forms in bytes, for streams that pass in parts."""
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
        """Scrub a key. One that JSON cannot store will be quoted by the error, so its repr counts."""
        if key is None or isinstance(key, str | int | float):
            return self.value(key)
        try:
            text = repr(key)
        except Exception:  # noqa: BLE001 the repr of a foreign object is foreign code too
            return REDACTED
        return key if self.text(text) == text else REDACTED

    def _worth_a_look(self, text: str) -> Sequence[str]:
        """The forms in a text, and those that may appear once others have been replaced."""
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
