"""The forms in which texts quote a secret, and the search for very many of them at once."""

import json
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import AnyStr, Generic
from urllib.parse import quote

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


def forms_of(secret: str, least: int) -> Iterable[str]:
    """The secret as programs write it: as it is, escaped, encoded for URLs, in hexadecimal and in base64."""
    lines = [line.strip() for line in secret.splitlines()] if "\n" in secret else []
    for text in dict.fromkeys((secret, secret.strip(), *(line for line in lines if len(line) >= LEAST_LINE))):
        if len(text) >= least:
            yield from _written(text)


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


def _written(text: str) -> Iterable[str]:
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
