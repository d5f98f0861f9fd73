"""Detects the media type of bytes, and the size of images, from their beginning and end. Nothing is decoded."""

import codecs
import mimetypes
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from forge_tools.model.artifacts import TEXTS

HEAD_BYTES = 256 << 10
"""How much of the beginning is examined: in photographs the size may follow a thumbnail."""

TAIL_BYTES = 64
MAX_PIXELS = 64_000_000
"""The largest image that models are shown; a larger one becomes a file."""

OCTETS = "application/octet-stream"
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The types that models can be shown."""
# Of host names and literals: some refuse any text, and a megabyte of punycode takes minutes.
_NOT_OF_TEXTS = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"})
_GENERIC = frozenset({OCTETS, "application/zip", "text/plain"})

_CLAIM = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}", re.ASCII)
"""The beginning of a claim that counts, without parameters such as a charset."""

_MAGIC: tuple[tuple[int, bytes, str], ...] = (  # the first match counts
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"BM", "image/bmp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypheic", "image/heic"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
)


def text_codec(name: str) -> str | None:
    """Return the name by which Python knows an encoding of text; None for what is none."""
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):  # ValueError: a NUL, or a lone surrogate
        return None
    is_text = codec._is_text_encoding and codec.name not in _NOT_OF_TEXTS  # noqa: SLF001  there is no public way to ask
    return codec.name if is_text else None


@dataclass(frozen=True, slots=True)
class Found:
    """The detected type. `kind` is the part's: image, audio or file; `note` says why models are not shown an image."""

    mime_type: str
    kind: str
    width: int | None = None
    height: int | None = None
    note: str | None = None


def media_type(head: bytes) -> str:
    for at, magic, kind in _MAGIC:
        # A RIFF file says its kind at 8.
        if head.startswith(magic, at) and (at != 8 or head.startswith(b"RIFF")):
            return kind
    return OCTETS if is_binary(head) else "text/plain"


def is_binary(head: bytes) -> bool:
    """Whether bytes with this beginning are not UTF-8; a character may be cut at the end."""
    if b"\0" in head:
        return True
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start < len(head) - 3 or error.reason != "unexpected end of data"
    return False


def find(head: bytes, tail: bytes, size: int, *, claim: str | None = None, name: str | None = None) -> Found:
    """Detect the type of bytes from their beginning and end, else from `claim` or the file name's extension.

    SVG counts as text, as it may contain scripts.
    """
    told = media_type(head)
    is_claim = _CLAIM.match(claim or "")
    claim = is_claim[0] if is_claim else (mimetypes.guess_type(name)[0] if name else None)
    is_shown = claim is None or claim.startswith(("image/", "audio/", "video/"))
    # A claim narrows down what the bytes leave open, but makes no text of binary or the reverse, and no media of it.
    if claim is not None and not is_shown and told in _GENERIC and claim.startswith(TEXTS) == (told == "text/plain"):
        return Found(claim, "file")
    if told == OCTETS and claim is not None and claim.startswith("audio/"):
        told = claim
    if told.startswith("audio/"):
        return Found(told, "audio")
    if not told.startswith("image/"):
        return Found(told, "file")
    if told not in IMAGES:
        return Found(told, "file", note="a format that is not shown to models")
    width, height = _SIZES[told](head) or (None, None)
    note = _flaw(told, head, tail, size, (width or 0) * (height or 0))
    return Found(told, "file" if note else "image", width, height, note)


def _flaw(told: str, head: bytes, tail: bytes, size: int, pixels: int) -> str | None:
    if pixels > MAX_PIXELS:
        return f"{pixels / 1e6:,.0f} million pixels; the limit for models is {MAX_PIXELS / 1e6:.0f} million"
    if not pixels or not _ENDS[told](head, tail, size):
        return "damaged or cut off"
    return None


def _png(head: bytes) -> tuple[int, int] | None:
    return struct.unpack_from(">II", head, 16) if len(head) >= 24 and head[12:16] == b"IHDR" else None


def _gif(head: bytes) -> tuple[int, int] | None:
    return struct.unpack_from("<HH", head, 6) if len(head) >= 10 else None


def _webp(head: bytes) -> tuple[int, int] | None:
    if len(head) < 30:
        return None
    if head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", head, 26)
    return width & 0x3FFF, height & 0x3FFF


def _jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:  # those are tables and reserved, no frames
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        at += 1 if marker == 0xFF else 2 + max(length, 2)
    return None


_SIZES: dict[str, Callable[[bytes], tuple[int, int] | None]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}
_ENDS: dict[str, Callable[[bytes, bytes, int], bool]] = {
    "image/png": lambda head, tail, size: b"IEND" in tail,
    "image/jpeg": lambda head, tail, size: b"\xff\xd9" in tail,
    "image/gif": lambda head, tail, size: b";" in tail[-8:],
    "image/webp": lambda head, tail, size: size >= int.from_bytes(head[4:8], "little") + 8,
}
