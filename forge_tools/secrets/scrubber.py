"""Removes a call's own secrets from everything it leaves behind, in the forms in which texts quote them."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from forge_tools.model.calls import ToolResult
from forge_tools.model.secret_names import MAX_DEPTH, REDACTED, secrets_in
from forge_tools.model.tools import ToolSpec
from forge_tools.secrets.readings import Readings

LEAST = 6
"""The fewest characters of a secret to remove from results: a shorter one may be any word or number there."""

LEAST_LINE = 16
"""The fewest characters of a line to remove: secrets of several lines, such as private keys, may be quoted by line."""

_LEAST_ENCODED = 9
"""The fewest bytes of a secret that base64 shows recognizably, wherever it lies in a longer text."""

_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")
"""Text that is written the same way in a literal, in JSON and in a URL."""

_URL_SAFE = str.maketrans("+/", "-_")
_unescaped = json.JSONEncoder(ensure_ascii=False).encode

LEAST_IN_FAILURES = 3
"""The fewest characters of a secret to remove from failures, which report a problem and lose less by it."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""The metadata of most calls."""


def forms_of(secret: str, least: int) -> Iterable[str]:
    """Yield the secret as programs write it: unchanged, escaped, encoded for URLs, in hexadecimal and in base64."""
    lines = [line.strip() for line in secret.splitlines()] if "\n" in secret else []
    for text in dict.fromkeys((secret, secret.strip(), *(line for line in lines if len(line) >= LEAST_LINE))):
        if len(text) >= least:
            yield from _escaped(text)


def _escaped(text: str) -> Iterable[str]:
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
            # Only characters all of whose six bits are the secret's: those at both ends depend on its neighbours.
            start, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
            yield b64encode(bytes(before) + data).decode()[start:end]


class Scrubber:
    """Replaces secrets by `[redacted]`. `least` is the minimum length, in characters, of a secret to search for."""

    def __init__(self, secrets: Iterable[str], least: int = LEAST) -> None:
        self.secrets = frozenset(secrets)
        self._forms = {form for secret in self.secrets if len(secret) >= least for form in forms_of(secret, least)}

    @property
    def forms(self) -> list[bytes]:
        """The forms as bytes, for streams that arrive in pieces."""
        return [form.encode("utf-8", "surrogatepass") for form in self._forms]

    def __bool__(self) -> bool:
        return bool(self._forms)

    def text(self, text: str) -> str:
        """Copy a text without the secrets, the longest of the forms that begin at one place."""
        data = text.encode("utf-8", "surrogatepass")
        clean = self._readings.replaced(data, REDACTED.encode())
        return text if clean is data else clean.decode("utf-8", "surrogatepass")

    def value(self, value: Any, depth: int = 0) -> Any:
        """Copy a JSON value without the secrets, whether keys, texts or numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return REDACTED if len(text := _written(value)) >= LEAST and text in self._forms else value
        if depth >= MAX_DEPTH:  # stored JSON is not that deep
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

    @cached_property
    def _readings(self) -> Readings:
        return Readings(self.forms)


CONCEALED: ContextVar[Scrubber | None] = ContextVar("forge_tools_concealed", default=None)
"""Removes the secrets of the running call; None for a call without any, as nearly all are."""


def scrubber_of(
    spec: ToolSpec,
    parameters: Mapping[str, Any],
    least: int = LEAST,
    *,
    metadata: Mapping[str, Any] = NOTHING,
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


def leaves(value: Any, depth: int = 0) -> Iterable[str]:
    """Yield every text and number inside a JSON value, as text. Other objects may be readable only once."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item, depth + 1) if depth < MAX_DEPTH else ()
    elif isinstance(value, int | float):
        if not isinstance(value, bool) and (text := _written(value)):
            yield text
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from leaves(item, depth + 1) if depth < MAX_DEPTH else ()


def _written(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # it has more digits than Python writes, so nothing quotes it
        return ""
