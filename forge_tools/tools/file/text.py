"""Bytes of a file as text for a reader: which encoding, whether text at all, what is shown in place of the unprintable."""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SAMPLE_BYTES = 1 << 18
_BINARY_SAMPLE = 8192

UNKNOWN = "unknown-8bit"
"""What the encoding is called where bytes are neither UTF-8 nor said to be anything: they are shown as Latin-1."""

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAGIC = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF", "PDF document"),
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
_NOT_FOR_FILES = ("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file's bytes become text. `codec` is None where they are UTF-8 already."""

    name: str
    codec: str | None = None
    bom: bytes = b""


def sniff(sample: bytes, asked: str | None) -> Encoding:
    """Choose the encoding by what the caller asked for, the byte order mark, or what the first bytes are.

    Raises:
        LookupError: there is no text encoding of the name asked for.
    """
    bom, name = next(((mark, name) for mark, name in _BOMS if sample.startswith(mark)), (b"", "utf-8"))
    if asked is not None:
        name = _text_codec(asked)
        bom = bom if (bom, name) in _BOMS else b""
    elif not bom and not _is_mostly_utf8(sample):
        return Encoding(UNKNOWN, "latin-1")
    return Encoding(name, None if name == "utf-8" else name, bom)


def binary_kind(sample: bytes) -> str | None:
    """Say what kind of file is no text (`PNG image`, `binary data`), or None where it is text."""
    head = sample[:_BINARY_SAMPLE]
    odd = len(head) - len(head.translate(None, _ODD_BYTES))
    if b"\0" not in head and odd * 10 <= len(head) * 3:
        return None
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), "binary data")


def as_utf8(chunks: Iterable[bytes], encoding: Encoding) -> Iterator[bytes]:
    """Turn chunks that start after the byte order mark into UTF-8, so that `\\n` is one byte in all of them."""
    if encoding.codec is None:
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding.codec)("replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")  # noqa: FBT003  some codecs take no keyword here


def visible(text: str) -> str:
    """Show control characters other than tab and newline, and lone surrogates, as escapes."""
    if text.isprintable():  # nearly always, and asked of every line
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def _text_codec(name: str) -> str:
    try:
        codec = codecs.lookup(name)
    except ValueError:  # a NUL, or half a surrogate pair
        raise LookupError(name) from None
    if codec.name in _NOT_FOR_FILES or not codec._is_text_encoding:  # noqa: SLF001  the standard library offers no public way to ask
        raise LookupError(name)
    return "utf-8" if codec.name == "utf-8-sig" else codec.name


def _is_mostly_utf8(sample: bytes) -> bool:
    """Whether it is UTF-8, give or take stray bytes that well-formed characters outnumber, and a cut at the end."""
    is_whole = len(sample) < SAMPLE_BYTES
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(sample, is_whole)
    strays = text.count("\ufffd")
    return not strays or sum(not char.isascii() for char in text) - strays > strays
