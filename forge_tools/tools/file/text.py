"""Bytes of a file as text and back, and as lines of bounded length: encoding, line ends, unprintable characters."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from forge_tools.artifacts.media import text_codec
from forge_tools.errors import SandboxError

ENCODING_ERROR = "ENCODING_ERROR"

MAX_LINE_CHARS = 2000
SAMPLE_BYTES = 1 << 18
_BINARY_SAMPLE = 8192

UNKNOWN = "unknown-8bit"
"""The name for the encoding of bytes that are not UTF-8 and have no mark; they are shown as Latin-1."""

# UTF-32-LE comes before UTF-16-LE, whose mark is the beginning of its own.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
PDF_MAGIC = b"%PDF-"
_MAGIC = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"BZh", "bzip2 archive"),
    (b"\xfd7zXZ", "xz archive"),
    (b"\x28\xb5\x2f\xfd", "zstd archive"),
    (b"\x7fELF", "ELF program"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (b"MZ", "Windows program"),
    (b"SQLite format 3", "SQLite database"),
    (b"\x00asm", "WebAssembly module"),
)
_ODD_BYTES = bytes(set(range(32)) - set(b"\t\n\r\f\x08\x1b"))
_WITH_MARK = {
    "utf-8-sig": b"\xef\xbb\xbf",
    "utf_8_sig": b"\xef\xbb\xbf",
    "utf-16": b"\xff\xfe",
    "utf-32": b"\xff\xfe\0\0",
}
_EXACT = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
_STATEFUL = ("iso2022", "hz", "utf-7", "utf_7", "utf7")
_ALL_BYTES = bytes(range(256))
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_CONTINUATION = bytes(range(0x80, 0xC0))
_CONTROL_BYTES = bytes((*set(range(0x20)) - set(b"\t\n\r"), 0x7F))
_LEAD = re.compile(rb"[^\x80-\xbf]")
_KEPT_BYTES = 4 * (MAX_LINE_CHARS + 2)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file's bytes become text. `codec` is None if they are UTF-8 already."""

    name: str
    codec: str | None = None
    bom: bytes = b""


def sniff(sample: bytes, asked: str | None) -> Encoding:
    """Choose the encoding by the request (LookupError if there is none), the byte order mark, or the first bytes."""
    bom, name = next(((mark, name) for mark, name in _BOMS if sample.startswith(mark)), (b"", "utf-8"))
    if asked is not None:
        codec = text_codec(asked)
        if codec is None:
            raise LookupError(asked)
        name = "utf-8" if codec == "utf-8-sig" else codec
        bom = bom if (bom, name) in _BOMS else b""
    elif not bom and not _is_mostly_utf8(sample):
        return Encoding(UNKNOWN, "latin-1")
    return Encoding(name, None if name == "utf-8" else name, bom)


def binary_kind(sample: bytes) -> str | None:
    """Name the kind of a file that is not text, such as `PNG image` or `binary data`; None for text."""
    head = sample[:_BINARY_SAMPLE]
    if head.startswith(PDF_MAGIC):  # some of these are ASCII, but still not text
        return "PDF document"
    odd = len(head) - len(head.translate(None, _ODD_BYTES))
    if b"\0" not in head and odd * 10 <= len(head) * 3:
        return None
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), "binary data")


def as_utf8(chunks: Iterable[bytes], encoding: Encoding) -> Iterator[bytes]:
    """Convert chunks that start after the byte order mark to UTF-8, in which `\\n` is always one byte."""
    if encoding.codec is None:
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding.codec)("replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")  # noqa: FBT003  some codecs take no keyword here


def visible(text: str) -> str:
    """Show control characters other than tab and newline, and lone surrogates, as escapes."""
    if text.isprintable():  # nearly always, and checked for every line
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def encoding_for(head: bytes | None, asked: str | None) -> Encoding:
    """Choose the encoding of new text: the requested one, else that of the file that starts with `head`, else UTF-8."""
    head = head or b""
    if asked is None:
        found = sniff(head, None)
        return Encoding("utf-8") if not found.bom and binary_kind(head) else found
    name = asked.lower()
    try:
        found = sniff(head, _EXACT.get(name, name))
    except LookupError:
        what = f"Unknown text encoding {asked!r}. Try utf-8, latin-1, cp1252 or utf-16-le"
        raise SandboxError(what, ENCODING_ERROR) from None
    return Encoding(found.name, found.codec, _WITH_MARK.get(name, found.bom))


def encode(text: str, encoding: Encoding, shown: str, what: str) -> bytes:
    """Encode the text of a parameter, without the byte order mark."""
    if encoding.name == UNKNOWN and not text.isascii():
        sign = next(char for char in text if not char.isascii())
        way = "name the file's encoding, with encoding=latin-1, cp1252, shift_jis or another"
        raise SandboxError(f"{shown} is not UTF-8, and {what} has {sign!r}: {way}", ENCODING_ERROR)
    try:
        return text.encode(encoding.codec or "utf-8")
    except UnicodeEncodeError as error:
        sign, place = text[error.start], error.start + 1
        if "\ud800" <= sign <= "\udfff":
            why = f"{what} contains half a surrogate pair at character {place:,}, which no encoding can represent"
            raise SandboxError(why, ENCODING_ERROR) from None
        why = f"{what} contains {sign!r} at character {place:,}, which {encoding.name} cannot represent. Pass encoding=utf-8"
        raise SandboxError(f"{why} to rewrite {shown} in it", ENCODING_ERROR) from None


def decoded(data: bytes, encoding: Encoding) -> str:
    return data.removeprefix(encoding.bom).decode(encoding.codec or "utf-8", "replace")


def eol_of(text: str) -> str | None:
    return eol_name(text.count("\n"), text.count("\r\n"))


def eol_name(newlines: int, crlf: int) -> str | None:
    """Return `lf`, `crlf` or `mixed`; None without any line end."""
    return {0: "lf", newlines: "crlf"}.get(crlf, "mixed") if newlines else None


def with_eol(text: str, eol: str) -> str:
    """Return the text with all its line ends `lf` or `crlf`."""
    plain = text.replace("\r\n", "\n")
    return plain.replace("\n", "\r\n") if eol == "crlf" else plain


@dataclass(frozen=True, slots=True)
class View:
    """Matching happens in `text`.

    If the bytes alone identify every character of the encoding (UTF-8 and the 8-bit ones), `text` has one character for
    each byte, and nothing is ever decoded. Otherwise, as in UTF-16 or Shift-JIS, `text` is decoded: there the bytes of
    one character may look like the end of another.
    """

    text: str
    encoding: Encoding
    is_decoded: bool

    @classmethod
    def of(cls, data: bytes, encoding: Encoding, shown: str) -> "View":
        if not data.startswith(encoding.bom):  # requested by the name of the encoding, but absent
            encoding = replace(encoding, bom=b"")
        body = data[len(encoding.bom) :]
        codec = encoding.codec
        if codec is None or encoding.name == UNKNOWN or _is_8_bit(codec):
            return cls(body.decode("latin-1"), encoding, is_decoded=False)
        try:
            text = body.decode(codec)
            is_same = not codec.startswith(_STATEFUL) and text.encode(codec) == body
        except UnicodeError:
            is_same, text = False, ""
        if not is_same:
            what = f"{shown} is not entirely {encoding.name}, so it cannot be edited without changing the rest of it. "
            raise SandboxError(f"{what}Pass another encoding, or latin-1 to edit its ASCII parts", ENCODING_ERROR)
        return cls(text, encoding, is_decoded=True)

    def pattern(self, text: str) -> str | None:
        """Return `text` as it looks in this view; None if the encoding lacks its characters."""
        try:
            data = text.encode(self.encoding.codec or "utf-8")
        except UnicodeEncodeError:
            return None
        return text if self.is_decoded else data.decode("latin-1")

    def insertion(self, text: str, shown: str, what: str, known: str) -> str:
        """Return new text in this view; characters that also occur in `known` need no check."""
        if self.encoding.name == UNKNOWN:
            encode("".join(char for char in text if char not in known), self.encoding, shown, what)
            encoded = encode(text, Encoding("latin-1", "latin-1"), shown, what)
        else:
            encoded = encode(text, self.encoding, shown, what)
        return text if self.is_decoded else encoded.decode("latin-1")

    def data(self, text: str) -> bytes:
        return self.encoding.bom + text.encode((self.encoding.codec or "utf-8") if self.is_decoded else "latin-1")

    def readable(self, text: str) -> str:
        """Return a part of the view as people read it."""
        return text if self.is_decoded else text.encode("latin-1").decode(self.encoding.codec or "utf-8", "replace")


class Line(NamedTuple):
    """A line without its end. `start` characters before `text` and `hidden` after it are not shown."""

    text: str
    start: int = 0
    hidden: int = 0


@dataclass(slots=True)
class Count:
    newlines: int = 0
    crlf: int = 0
    chars: int = 0
    last: bytes = b""

    def add(self, chunk: bytes) -> None:
        if not chunk:
            return
        self.newlines += chunk.count(b"\n")
        if b"\r" in chunk or self.last == b"\r":  # searching for one byte is ten times as fast as for two
            self.crlf += chunk.count(b"\r\n") + (self.last == b"\r" and chunk[:1] == b"\n")
        self.chars += characters(chunk)
        self.last = chunk[-1:]

    @property
    def lines(self) -> int:
        return self.newlines + (self.last not in (b"", b"\n"))

    @property
    def eol(self) -> str | None:
        return eol_name(self.newlines, self.crlf)


def characters(utf8: bytes) -> int:
    """Count the characters that start in these bytes."""
    return len(utf8 if utf8.isascii() else utf8.translate(None, _CONTINUATION))


def lines_from(chunks: Iterable[bytes], first: int, column: int = 0) -> Iterator[Line]:
    """Yield the lines from number `first` (1-based) on; of the first of them only what follows `column` characters."""
    skip = first - 1
    line, is_new = _Line(column), not column
    for chunk in chunks:
        start = 0
        if skip:
            newlines = chunk.count(b"\n")
            start = 0 if newlines < skip else _after_newline(chunk, skip)
            skip = max(0, skip - newlines)
            if not start:
                continue
        *ended, rest = chunk[start:].split(b"\n")
        for piece in ended:
            if is_new and len(piece) <= MAX_LINE_CHARS:  # nearly every line: nothing to assemble
                yield Line(piece.removesuffix(b"\r").decode("utf-8", "replace"))
            else:
                line.add(piece)
                yield line.finish(is_terminated=True)
                line, is_new = _Line(), True
        if rest:
            line.add(rest)
            is_new = False
    if line.size:
        yield line.finish(is_terminated=False)


def plain_lines(utf8: bytes, first: int, count: int) -> tuple[list[str], bool]:
    """Return lines of a file, and whether more follow; none if it is not UTF-8, has control characters or a long line."""
    if len(utf8.translate(None, _CONTROL_BYTES)) < len(utf8):
        return [], False
    try:
        text = utf8.decode()
    except UnicodeDecodeError:
        return [], False
    if "\r" in text and "\r" in (text := text.replace("\r\n", "\n")):
        return [], False
    last = min(first - 1 + count, len(text))
    lines = text.split("\n", last)
    rest = lines.pop()
    has_more = bool(rest) and len(lines) == last
    if rest and not has_more:  # the file does not end with a line end
        lines.append(rest)
    wanted = lines[first - 1 :]
    return ([], False) if max(map(len, wanted), default=0) > MAX_LINE_CHARS else (wanted, has_more)


def tail_start(read: Callable[[int, int], bytes], begin: int, end: int, count: int, chunk_bytes: int) -> int:
    """Find where the last `count` lines of the bytes from `begin` to `end` start, reading backwards."""
    wanted = count + 1 if read(end - 1, 1) == b"\n" else count
    position = end
    while position > begin:
        size = min(chunk_bytes, position - begin)
        position -= size
        chunk = read(position, size)
        newlines = chunk.count(b"\n")
        if newlines >= wanted:
            return position + _after_newline(chunk, newlines - wanted + 1)
        wanted -= newlines
    return begin


class _Line:
    """One line while its pieces arrive: what may be shown is kept, the rest is counted."""

    def __init__(self, skip: int = 0) -> None:
        self.size = 0
        self._to_skip = skip
        self._skipped = 0
        self._kept = bytearray()
        self._dropped = 0
        self._last = b""

    def add(self, piece: bytes) -> None:
        if not piece:
            return
        self.size += len(piece)
        self._last = piece[-1:]
        if self._skipped < self._to_skip or (self._skipped and not self._kept):
            piece = self._skip(piece)
        room = max(0, _KEPT_BYTES - len(self._kept))
        self._kept += piece[:room]
        self._dropped += characters(piece[room:])

    def finish(self, *, is_terminated: bool) -> Line:
        text = self._kept.decode("utf-8", "replace")
        hidden = max(0, len(text) - MAX_LINE_CHARS) + self._dropped
        if is_terminated and self._last == b"\r":
            text, hidden = (text, hidden - 1) if hidden else (text.removesuffix("\r"), 0)
        return Line(text[:MAX_LINE_CHARS], self._skipped, hidden)

    def _skip(self, piece: bytes) -> bytes:
        """Drop the characters before the column, including the rest of one split between chunks."""
        missing = self._to_skip - self._skipped
        count = characters(piece)
        if count <= missing:
            self._skipped += count
            return b""
        self._skipped += missing
        return piece[next(islice(_LEAD.finditer(piece), missing, None)).start() :]


def _after_newline(chunk: bytes, number: int) -> int:
    """Return the position after the newline of that number (1-based)."""
    position = 0
    for _ in range(number):
        position = chunk.index(b"\n", position) + 1
    return position


def _is_mostly_utf8(sample: bytes) -> bool:
    """Whether it is UTF-8 except for a cut at the end and fewer stray bytes than well-formed characters."""
    is_whole = len(sample) < SAMPLE_BYTES
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(sample, is_whole)
    strays = text.count("\ufffd")
    return not strays or sum(not char.isascii() for char in text) - strays > strays


def _is_8_bit(codec: str) -> bool:
    return not codec.startswith(_STATEFUL) and len(_ALL_BYTES.decode(codec, "replace")) == len(_ALL_BYTES)
