"""A notebook as text: where each cell is, and the text with one cell inserted, changed or deleted."""

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from forge_tools.errors import SandboxError
from forge_tools.schema import suggestion
from forge_tools.tools.file.text import binary_kind

INVALID = "NOTEBOOK_INVALID"
CELL_NOT_FOUND = "CELL_NOT_FOUND"
CELL_TYPES = ("code", "markdown", "raw")
_MAJOR = 4
_MAX_DIGITS = 4000  # Python refuses to convert longer numbers
_BLANKS = re.compile(r"[ \t\r\n]*")
_ESCAPED = re.compile(r"\\u(?!00[0-7])[0-9a-fA-F]{4}")  # beyond ASCII: control characters are escaped in any style


_decoder = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else float(digits))


class Span(NamedTuple):
    """A value in a text, from `start` to `end`; `key` is where the key of an object's member begins."""

    key: int
    start: int
    end: int
    value: Any


Parse = Callable[[str, int], Span]


def parse_value(text: str, at: int) -> Span:
    value, end = _decoder.raw_decode(text, at)
    return Span(at, at, end, value)


def parse_array(text: str, at: int) -> Span:
    """Parse the array at `at`; its value is the spans of its elements."""
    if not text.startswith("[", at):
        raise json.JSONDecodeError("expected a list", text, at)
    elements: list[Span] = []
    position, is_first = _after_blanks(text, at + 1), True
    while is_first or text.startswith(",", position):
        if is_first and text.startswith("]", position):
            break
        elements.append(parse_value(text, position if is_first else _after_blanks(text, position + 1)))
        position, is_first = _after_blanks(text, elements[-1].end), False
    return Span(at, at, _closed(text, position, "]"), elements)


def parse_object(text: str, at: int, parsers: Mapping[str, Parse] | None = None) -> Span:
    """Parse the object at `at`; its value is the spans of its members by key. Of equal keys the last one counts."""
    if not text.startswith("{", at):
        raise json.JSONDecodeError("expected an object", text, at)
    members: dict[str, Span] = {}
    position, is_first = _after_blanks(text, at + 1), True
    while is_first or text.startswith(",", position):
        if is_first and text.startswith("}", position):
            break
        key = parse_value(text, position if is_first else _after_blanks(text, position + 1))
        if not isinstance(key.value, str):
            raise json.JSONDecodeError("expected a name in double quotes", text, key.start)
        colon = _after_blanks(text, key.end)
        if not text.startswith(":", colon):
            raise json.JSONDecodeError("expected ':'", text, colon)
        parse = (parsers or {}).get(key.value, parse_value)
        value = parse(text, _after_blanks(text, colon + 1))
        members[key.value] = value._replace(key=key.start)
        position, is_first = _after_blanks(text, value.end), False
    return Span(at, at, _closed(text, position, "}"), members)


@dataclass(frozen=True, slots=True)
class Style:
    """How a notebook's JSON is laid out. `unit` is one step of indentation, None if everything is on one line."""

    unit: str | None
    eol: str
    colon: str
    comma: str
    is_ascii: bool

    @classmethod
    def of(cls, text: str, top: Span) -> "Style":
        first, *others = top.value.values()
        lead = text[top.start + 1 : first.key]
        key_end = parse_value(text, first.key).end
        gap = text[first.end : others[0].key] if others else ", "
        return cls(
            unit=lead.rpartition("\n")[2] if "\n" in lead else None,
            eol="\r\n" if "\r\n" in lead else "\n",
            colon=text[key_end : first.start],
            comma="," if gap == "," else ", ",
            is_ascii=text.isascii() and bool(_ESCAPED.search(text)),
        )

    def render(self, value: Any, margin: str, *, is_broken: bool = True) -> str:
        """Render a value whose first line has that margin; on one line unless `is_broken`."""
        if self.unit is None or not is_broken:
            return json.dumps(value, ensure_ascii=self.is_ascii, separators=(self.comma, self.colon))
        text = json.dumps(value, ensure_ascii=self.is_ascii, indent=self.unit, separators=(",", self.colon))
        return text.replace("\n", self.eol + margin)


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook of format 4; `cells` are the spans of its cells, with parsed JSON as their values."""

    text: str
    has_mark: bool
    members: Mapping[str, Span]
    style: Style

    @classmethod
    def of(cls, data: bytes, shown: str) -> "Notebook":
        """Parse the bytes of a file."""
        has_mark = data.startswith(codecs.BOM_UTF8)
        try:
            text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
            top = parse_object(text, _after_blanks(text, 0), {"cells": parse_array})
            rest = _after_blanks(text, top.end)
            if rest < len(text):
                raise json.JSONDecodeError("more after the end", text, rest)
        except UnicodeDecodeError as error:
            line, kind = data.count(b"\n", 0, error.start) + 1, binary_kind(data[:8192])
            raise _invalid(shown, f"not UTF-8 at line {line:,}{f': it is {kind}' if kind else ''}") from None
        except json.JSONDecodeError as error:
            what = "unexpected end" if error.pos >= len(error.doc.rstrip()) else error.msg.lower()
            raise _invalid(shown, f"not valid JSON at line {error.lineno:,} ({what})") from None
        except RecursionError:
            raise _invalid(shown, f"nested too deeply at line {_deepest_line(text):,}") from None
        _check_format(text, top.value, shown)
        return cls(text, has_mark, top.value, Style.of(text, top))

    @property
    def cells(self) -> Sequence[Span]:
        cells: Sequence[Span] = self.members["cells"].value
        return cells

    @property
    def minor(self) -> int:
        found = self.members.get("nbformat_minor")
        return found.value if found and isinstance(found.value, int) else 0

    @property
    def metadata(self) -> dict[str, Any]:
        found = self.members.get("metadata")
        return found.value if found and isinstance(found.value, dict) else {}

    def data(self, text: str) -> bytes:
        return (codecs.BOM_UTF8 if self.has_mark else b"") + text.encode("utf-8")

    def find(self, cell_id: str | None, index: int | None, shown: str) -> int:
        """Return the index of the cell that is meant."""
        if cell_id is None:
            if index is None or index >= len(self.cells):
                last = f": its cells have the indexes 0 to {len(self.cells) - 1}" if self.cells else ": it has no cells"
                raise SandboxError(f"No cell {index} in {shown}{last}", CELL_NOT_FOUND)
            return index
        found = [at for at, cell in enumerate(self.cells) if str(cell.value.get("id")) == cell_id]
        if len(found) == 1:
            return found[0]
        if found:
            places = ", ".join(map(str, found[:10]))
            what = f"{len(found)} cells of {shown} have the id {cell_id!r}: pass cell_index, one of {places}"
            raise SandboxError(what, CELL_NOT_FOUND)
        known = [one.value["id"] for one in self.cells if isinstance(one.value.get("id"), str)]
        way = suggestion(cell_id, known) if known else ". Its cells have no ids: pass cell_index"
        raise SandboxError(f"No cell with id {cell_id!r} in {shown}{way}", CELL_NOT_FOUND)

    def replaced(self, index: int, cell: str) -> str:
        old = self.cells[index]
        return self.text[: old.start] + cell + self.text[old.end :]

    def deleted(self, index: int) -> str:
        return _without(self.text, self.members["cells"], self.cells, index)

    def inserted(self, index: int, cell: Mapping[str, Any]) -> str:
        """Return the text with a cell inserted at that index, laid out like its neighbours."""
        text, cells, (start, end) = self.text, self.cells, self.members["cells"][1:3]
        if not cells:
            outer = self.style.unit or ""
            margin, is_broken = outer * 2, self.style.unit is not None
            lead, tail = (f"{self.style.eol}{margin}", f"{self.style.eol}{outer}") if is_broken else ("", "")
            return f"{text[: start + 1]}{lead}{self.style.render(cell, margin)}{tail}{text[end - 1 :]}"
        near = cells[max(0, index - 1)]
        margin, is_broken = margin_at(text, near.start), "\n" in text[near.start : near.end]
        new = self.style.render(cell, margin, is_broken=is_broken)
        if index == 0:
            return text[: near.start] + new + self._gap(0) + text[near.start :]
        return text[: near.end] + self._gap(index - 1) + new + text[near.end :]

    def _gap(self, index: int) -> str:
        cells = self.cells
        if len(cells) > 1:
            index = min(index, len(cells) - 2)
            return self.text[cells[index].end : cells[index + 1].start]
        lead = self.text[self.members["cells"].start + 1 : cells[0].start]
        return f",{lead}" if lead else self.style.comma


def put(cell: str, key: str, value: Any, style: Style) -> str:
    """Return the text of a cell with a new value for a key, laid out like the old one; the rest is unchanged."""
    members = parse_object(cell, 0).value
    if (old := members.get(key)) is not None:
        if old.value == value and type(old.value) is type(value):
            return cell
        was = cell[old.start : old.end]
        is_broken = "\n" in was if isinstance(old.value, list) and old.value else "\n" in cell
        new = style.render(value, margin_at(cell, old.key), is_broken=is_broken)
        return cell[: old.start] + new + cell[old.end :]
    last = max(members.values(), key=lambda one: one.end)
    is_broken, margin = "\n" in cell, margin_at(cell, last.key)
    gap = f",{style.eol}{margin}" if is_broken else style.comma
    member = f"{json.dumps(key)}{style.colon}{style.render(value, margin, is_broken=is_broken)}"
    return cell[: last.end] + gap + member + cell[last.end :]


def drop(cell: str, key: str) -> str:
    whole = parse_object(cell, 0)
    members = sorted(whole.value.values(), key=lambda one: one.key)
    index = next((at for at, one in enumerate(members) if one is whole.value.get(key)), None)
    return cell if index is None else _without(cell, whole, members, index)


def margin_at(text: str, at: int) -> str:
    """Return the indentation of the line with that position."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def source_of(cell: Mapping[str, Any]) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def _without(text: str, whole: Span, items: Sequence[Span], index: int) -> str:
    start, end = items[index].key, items[index].end
    if len(items) == 1:
        start, end = whole.start + 1, whole.end - 1
    elif index == 0:
        end = items[1].key
    else:
        start = items[index - 1].end
    return text[:start] + text[end:]


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _closed(text: str, at: int, sign: str) -> int:
    if not text.startswith(sign, at):
        raise json.JSONDecodeError(f"expected ',' or '{sign}'", text, at)
    return at + 1


def _deepest_line(text: str) -> int:
    """Return the line of the first bracket that is nested deeper than anything in a real notebook."""
    depth = 0
    for found in re.finditer(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > 100:
            return text.count("\n", 0, found.start()) + 1
    return 1


def _check_format(text: str, members: Mapping[str, Span], shown: str) -> None:
    major = members["nbformat"].value if "nbformat" in members else None
    if major != _MAJOR or isinstance(major, bool):
        if major is None:
            raise _invalid(shown, "not a notebook: it has no nbformat")
        line = text.count("\n", 0, members["nbformat"].start) + 1
        way = f"of format {json.dumps(major)[:20]} (line {line:,}); only format {_MAJOR} is supported. Convert it first"
        raise _invalid(shown, f"{way}: jupyter nbconvert --to notebook --nbformat {_MAJOR}")
    if "cells" not in members:
        raise _invalid(shown, "not a notebook: it has no cells")
    for index, cell in enumerate(members["cells"].value):
        if (wrong := _wrong_with(cell.value)) is not None:
            line = text.count("\n", 0, cell.start) + 1
            raise _invalid(shown, f"not a valid notebook: cell {index} at line {line:,} {wrong}")


def _wrong_with(cell: Any) -> str | None:
    if not isinstance(cell, dict):
        return "is not an object"
    if cell.get("cell_type") not in CELL_TYPES:
        return f"has no valid cell_type ({', '.join(CELL_TYPES)})"
    source = cell.get("source", "")
    lines = source if isinstance(source, list) else [source]
    return None if all(isinstance(line, str) for line in lines) else "has a source that is not text"


def _invalid(shown: str, what: str) -> SandboxError:
    return SandboxError(f"{shown} is {what}", INVALID)
