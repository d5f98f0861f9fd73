"""Takes a call's own secrets out of everything it leaves behind, in the forms in which texts quote them."""

import base64
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, quote_plus

from forge_tools.records import REDACTED, ToolResult, ToolSpec, secrets_in

LEAST = 6
"""Characters of the shortest secret that is taken out of results: a shorter one may be any word or number there."""

LEAST_IN_FAILURES = 3
"""The same for failures, which tell of a problem, and lose less."""

LEAST_LINE = 16
"""A secret of several lines, such as a private key, may be quoted line by line."""

_LEAST_ENCODED = 9
"""Bytes of the shortest secret of which base64 shows enough, wherever in a longer text it is encoded."""

_MAX_DEPTH = 100


class Scrubber:
    """Replaces secrets by `[redacted]`. `least` is how many characters a secret must have to be looked for."""

    def __init__(self, secrets: Iterable[str], least: int = LEAST) -> None:
        self.secrets = frozenset(secrets)
        found = {form for secret in self.secrets if len(secret) >= least for form in _forms(secret, least)}
        self._forms = sorted(found, key=lambda form: (-len(form), form))

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._forms)

    def text(self, text: str) -> str:
        """Copy a text without the secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """Copy a value of JSON's kind without the secrets, be they keys, texts or numbers."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return REDACTED if len(text := str(value)) >= LEAST and text in self._forms else value
        if depth >= _MAX_DEPTH:
            return value
        if isinstance(value, Mapping):
            return {
                self.text(key) if isinstance(key, str) else key: self.value(item, depth + 1)
                for key, item in value.items()
            }
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

    async def chunks(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Hand on a stream of bytes without the secrets, also where one begins in a chunk and ends in a later one."""
        forms = sorted((form.encode("utf-8", "surrogatepass") for form in self._forms), key=len, reverse=True)
        held, keep = b"", max(map(len, forms), default=1) - 1
        async for chunk in chunks:
            held += chunk
            # What begins further behind may go on in the next chunk, as a longer form than the one that is here.
            clean, at = _without(forms, held, len(held) - keep)
            held = held[at:]
            if clean:
                yield clean
        if held:
            yield _without(forms, held, len(held))[0]


CONCEALED: ContextVar[Scrubber | None] = ContextVar("forge_tools_concealed", default=None)
"""What takes out the secrets of the call that runs; None for a call that has none, as nearly all."""


def scrubber_of(spec: ToolSpec, parameters: Mapping[str, Any], least: int = LEAST) -> Scrubber | None:
    """What takes out the secrets of a call with these parameters, and those that its worker knows of besides."""
    known = CONCEALED.get()
    if not spec.may_hide:
        return known if known is None or least == LEAST else Scrubber(known.secrets, least)
    secrets = set(leaves([parameters[name] for name in spec.hidden(parameters)]))
    secrets.update(leaves([secrets_in(parameters[name]) for name in spec.holding(parameters)]))
    if known is not None:
        secrets |= known.secrets
    return Scrubber(secrets, least) if secrets else None


def scrubbed(value: Any) -> Any:
    """Copy a value without the secrets of the call that runs; it is the same one where that has none."""
    scrubber = CONCEALED.get()
    return value if scrubber is None else scrubber.value(value)


def scrubbed_chunks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Hand on a stream without the secrets of the call that runs."""
    scrubber = CONCEALED.get()
    return chunks if not scrubber else scrubber.chunks(chunks)


def _without(forms: Sequence[bytes], data: bytes, end: int) -> tuple[bytes, int]:
    """The beginning of `data` without `forms`, and how much of it that was: to `end`, or a form across it."""
    parts, at, end = list[bytes](), 0, max(0, end)
    there = [form for form in forms if form in data]  # nearly always none, which is seen much faster than by a search
    for match in re.finditer(b"|".join(map(re.escape, there)), data) if there else ():
        if match.start() >= end:
            break
        parts += data[at : match.start()], REDACTED.encode()
        at = match.end()
    parts.append(data[at : max(at, end)])
    return b"".join(parts), max(at, end)


def leaves(value: Any, depth: int = 0) -> Iterable[str]:
    """Every text and number inside a value of JSON's kind, as text. Whatever else it is may be there to be read once."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item, depth + 1) if depth < _MAX_DEPTH else ()
    elif isinstance(value, int | float):
        if not isinstance(value, bool):
            yield str(value)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from leaves(item, depth + 1) if depth < _MAX_DEPTH else ()


def _forms(secret: str, least: int) -> Iterable[str]:
    """The secret as programs write it: as it is, escaped, encoded for URLs, in hexadecimal and in base64."""
    lines = [line.strip() for line in secret.splitlines()] if "\n" in secret else []
    for text in (secret, secret.strip(), *(line for line in lines if len(line) >= LEAST_LINE)):
        if len(text) >= least:
            yield from _written(text)


def _written(text: str) -> Iterable[str]:
    """What is escaped may be encoded in its turn, as part of a longer text."""
    for form in {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}:
        yield form
        data = form.encode("utf-8", "surrogatepass")
        for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
            yield quoted
            yield quoted.lower() if "%" in quoted else quoted
        if len(form) >= LEAST:
            yield data.hex()
            yield data.hex().upper()
            yield from _base64_forms(data)


def _base64_forms(data: bytes) -> Iterable[str]:
    """The encoding of the whole, and what is the same of it wherever in a longer text it begins (user:password)."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode().rstrip("=")
        if len(data) < _LEAST_ENCODED:
            continue
        for before in range(3):
            start, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
            yield encode(bytes(before) + data).decode()[start:end]
