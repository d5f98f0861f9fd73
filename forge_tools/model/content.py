"""The parts of a result: texts, images, sounds, files, links. Names and fields follow MCP's content types."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePath
from typing import Any, ClassVar, Protocol

from forge_tools.errors import InvalidCallError

CONTENT = "content"
"""The key in a result's metadata that holds the descriptions of its parts, as JSON."""

MAX_PARTS = 100
"""How many parts a result may have besides its texts."""

_PLAIN = frozenset({str, int, float, bool, type(None), dict})
_DRAWN = {"PIL": "save", "matplotlib": "savefig"}
"""Packages whose images become parts, with the method that writes one; matched by name, so nothing is imported."""


class Source(Protocol):
    """Where the bytes of parts are read from. Methods return a value or an awaitable of it."""

    def bytes(self, part: "Media", /) -> Any:
        """Return all bytes of a part."""
        ...

    def save(self, part: "Media", folder: str | Path, /) -> Any:
        """Write a part into a folder and return the path."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """Text, between or beside other parts."""

    type: ClassVar[str] = "text"
    text: str

    @property
    def line(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Json:
    """A value that JSON can hold."""

    type: ClassVar[str] = "json"
    value: Any

    @property
    def line(self) -> str:
        return json.dumps(self.value, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Link:
    """The address of something outside the result."""

    type: ClassVar[str] = "resource_link"
    uri: str
    name: str | None = None
    mime_type: str | None = None
    description: str | None = None

    @property
    def line(self) -> str:
        return f"[link {', '.join(str(one) for one in (self.name, self.uri, self.mime_type) if one)}]"


@dataclass(frozen=True, slots=True)
class Media:
    """A part made of bytes. The author gives `data`, or the path of a file in the workspace; the caller gets a `uri`.

    `mime_type` is detected from the bytes; the author's value is used only if they do not reveal it. `note` says why
    an image was returned as a plain file.
    """

    type: ClassVar[str] = "file"
    data: object = field(default=None, repr=False)
    name: str | None = None
    mime_type: str | None = None
    size: int | None = None
    uri: str | None = None
    width: int | None = None
    height: int | None = None
    note: str | None = None
    source: Source | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the texts here, so that the TypeError points to the author's line."""
        for name, said in (("name", self.name), ("mime_type", self.mime_type)):
            if not isinstance(said, str | None):
                raise TypeError(f"{name} is a {type(said).__name__}, not a text")

    @property
    def line(self) -> str:
        """The line that represents it in a text."""
        told = (None if self.size is None else human(self.size), self.mime_type, self.note)
        return f"[{', '.join(str(one) for one in (f'{self.type} {self.name}', *told) if one)}]"

    @property
    def description(self) -> str:
        """The line, with the handle that tools accept in place of a path."""
        return f"{self.line[:-1]}: {self.uri}]" if self.uri else self.line

    def bytes(self) -> Any:
        """Read all bytes. Awaitable, except on parts that a SyncExecutorClient returned."""
        return self._source.bytes(self)

    def save(self, folder: str | Path) -> Any:
        """Write it into a folder and return the path; a taken name is varied. Awaitable as `bytes` is."""
        return self._source.save(self, folder)

    @property
    def _source(self) -> Source:
        if self.source is None or self.uri is None:
            raise InvalidCallError(f"{self.line} has no bytes yet: they are stored when the call that returns it ends")
        return self.source


class Image(Media):
    """A picture that models can see: PNG, JPEG, GIF or WebP."""

    __slots__ = ()
    type = "image"


class Audio(Media):
    """A sound."""

    __slots__ = ()
    type = "audio"


class File(Media):
    """Any other file."""

    __slots__ = ()


Part = Text | Json | Link | Media

_KINDS: dict[str, Any] = {kind.type: kind for kind in (Text, Json, Link, Image, Audio, File)}


def is_part(value: Any) -> bool:
    """Whether a value is a part of a result, or something that becomes one, rather than JSON."""
    if isinstance(value, bytes | bytearray | PurePath | Media | Text | Json | Link):
        return True
    return drawn(value) is not None


def drawn(value: Any) -> Callable[..., Any] | None:
    """Return the method that writes a Pillow image or a matplotlib figure to a file."""
    for kind in type(value).__mro__:
        if (method := _DRAWN.get(kind.__module__.partition(".")[0])) and hasattr(value, method):
            write: Callable[..., Any] = getattr(value, method)
            return write
    return None


def holds_parts(output: Any) -> bool:
    """Whether an output is a part, or a list that contains parts. For plain values this costs one type check."""
    kind = type(output)
    if kind in _PLAIN:
        return False
    if kind is list or kind is tuple:
        return any(type(item) not in _PLAIN and is_part(item) for item in output)
    return is_part(output)


def as_facts(part: Part) -> dict[str, Any]:
    """Return a part as JSON, without its bytes."""
    held = {one.name: getattr(part, one.name) for one in fields(part) if one.name not in {"data", "source"}}
    return {"type": part.type, **{name: value for name, value in held.items() if value is not None}}


def parts_of(output: Any, described: Any, source: Source | None) -> tuple[Part, ...]:
    """Return the parts of a result in order: those `described`, and the output's text before, between and after them."""
    listed = [_part(facts, source) for facts in described] if isinstance(described, list) else []
    parts, rest = list[Part](), output if isinstance(output, str) else ""
    if output is not None and not isinstance(output, str):
        parts.append(Json(output))
    for part in listed:
        if part is None:
            continue
        before, is_there, after = rest.partition(part.line)
        if is_there:
            parts += _text(before)
            rest = after
        parts.append(part)
    return (*parts, *(_text(rest) if listed else [Text(rest)] if isinstance(output, str) else []))


def human(size: float) -> str:
    """Format a number of bytes for people: `34 kB`."""
    units = iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 1000:
        size, unit = size / 1000, next(units, "PB")
    return f"{size:.0f} {unit}"


def lines_missing(text: str, described: Sequence[Any]) -> list[str]:
    """Return the lines of parts that a text of the output lacks."""
    return [part.line for facts in described if (part := _part(facts, None)) and part.line not in text]


def _part(facts: Any, source: Source | None) -> Part | None:
    """None if a tool put something else there."""
    kind = _KINDS.get(str(facts.get("type"))) if isinstance(facts, Mapping) else None
    if kind is None:
        return None
    known = {one.name: facts.get(one.name) for one in fields(kind) if one.name in facts and one.name != "data"}
    try:
        part: Part = kind(**known, **({"source": source} if issubclass(kind, Media) else {}))
    except TypeError:
        return None
    return part


def _text(text: str) -> list[Part]:
    text = text.removeprefix("\n").removesuffix("\n")
    return [Text(text)] if text else []
