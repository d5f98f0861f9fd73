"""Reads what a docstring says of a function and its parameters, in the styles of Google, NumPy and Sphinx."""

import inspect
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

_SECTIONS = (
    "args|arguments|parameters|params|keyword args|keyword arguments|other parameters|returns?|yields?|raises|warns|notes?"
    "|examples?|attributes|see also|references|warnings?|todo"
)
_GOOGLE_SECTION = re.compile(rf"({_SECTIONS}):", re.IGNORECASE)
_NUMPY_SECTION = re.compile(_SECTIONS, re.IGNORECASE)
_PARAMETER_FIELDS = ("param", "parameter", "arg", "argument", "key", "keyword")
_OTHER_FIELDS = ("type", "returns?", "rtype", "raises?", "except", "exception", "yields?")
_FIELD = re.compile(
    rf":(?P<kind>{'|'.join((*_PARAMETER_FIELDS, *_OTHER_FIELDS))})(\s+(?P<what>[^:]*))?:\s*(?P<text>.*)"
)
_ENTRY = re.compile(r"\*{0,2}(?P<names>\w+(\s*,\s*\w+)*)\s*(\((?P<type>.*?)\))?\s*:\s*(?P<text>.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(?P<names>\w+(\s*,\s*\w+)*)\s*(:.*)?")
_PARAMETER_SECTIONS = {
    *("args", "arguments", "parameters", "params"),
    *("keyword args", "keyword arguments", "other parameters"),
}


class Docs(NamedTuple):
    """`description` is the text before the first section; `parameters` maps names to texts."""

    description: str
    parameters: Mapping[str, str]


def read_docstring(docstring: str | None) -> Docs:
    """Read a docstring; text in an unknown style becomes the description."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next((number for number, _ in enumerate(lines) if _begins_section(lines, number)), len(lines))
    return Docs(_paragraphs(lines[:start]), dict(_parameters(lines[start:])))


def _begins_section(lines: list[str], number: int) -> bool:
    return _heading(lines, number) is not None or _FIELD.match(lines[number]) is not None


def _heading(lines: list[str], number: int) -> str | None:
    line = lines[number].rstrip()
    if _GOOGLE_SECTION.fullmatch(line):
        return line[:-1].lower()
    underline = lines[number + 1].strip() if number + 1 < len(lines) else ""
    if _NUMPY_SECTION.fullmatch(line) and len(underline) >= 3 and set(underline) == {"-"}:
        return line.lower()
    return None


def _parameters(lines: list[str]) -> Iterable[tuple[str, str]]:
    heads = [number for number in range(len(lines)) if _begins_section(lines, number)]
    for start, end in pairwise([*heads, len(lines)]):
        if (field := _FIELD.match(lines[start])) is not None:
            if field["kind"] in _PARAMETER_FIELDS and field["what"]:
                # `:param int limit:` puts the type before the name.
                yield field["what"].split()[-1].lstrip("*"), _paragraphs([field["text"], *lines[start + 1 : end]])
        elif _heading(lines, start) in _PARAMETER_SECTIONS:
            is_numpy = not lines[start].rstrip().endswith(":")
            yield from _entries(lines[start + 1 + is_numpy : end], _NUMPY_ENTRY if is_numpy else _ENTRY)


def _entries(lines: list[str], head: re.Pattern[str]) -> Iterable[tuple[str, str]]:
    """Yield the entries; each begins at the indentation of the first line and includes the deeper lines that follow."""
    indent = next((_indent(line) for line in lines if line.strip()), 0)
    entries: list[tuple[list[str], list[str]]] = []
    for line in lines:
        found = head.fullmatch(line.strip()) if line.strip() and _indent(line) <= indent else None
        if found is not None:
            names = [name.strip() for name in found["names"].split(",")]
            entries.append((names, [found.groupdict().get("text") or ""]))
        elif entries:
            entries[-1][1].append(line)
    return [(name, _paragraphs(text)) for names, text in entries for name in names]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _paragraphs(lines: list[str]) -> str:
    blocks = "\n".join(line.strip() for line in lines).split("\n\n")
    return "\n\n".join(" ".join(block.split("\n")).strip() for block in blocks if block.strip())
