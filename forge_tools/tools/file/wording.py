"""Text on its way to bytes: in which encoding, with which line ends, and why it cannot be where it cannot."""

from forge_tools.errors import SandboxError
from forge_tools.tools.file.text import UNKNOWN, Encoding, binary_kind, sniff

ENCODING_ERROR = "ENCODING_ERROR"
_WITH_MARK = {
    "utf-8-sig": b"\xef\xbb\xbf",
    "utf_8_sig": b"\xef\xbb\xbf",
    "utf-16": b"\xff\xfe",
    "utf-32": b"\xff\xfe\0\0",
}
_EXACT = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}


def encoding_for(head: bytes | None, asked: str | None) -> Encoding:
    """Choose how new text is written: as asked, else as the file that starts with `head` is, else UTF-8.

    Raises:
        SandboxError: there is no text encoding of that name (ENCODING_ERROR).
    """
    if asked is None:
        if not head:
            return Encoding("utf-8")
        found = sniff(head, None)
        return Encoding("utf-8") if not found.bom and binary_kind(head) else found
    name = asked.lower()
    try:
        found = sniff(head or b"", _EXACT.get(name, name))
    except LookupError:
        what = f"Unknown text encoding {asked!r}. Try utf-8, latin-1, cp1252 or utf-16-le"
        raise SandboxError(what, ENCODING_ERROR) from None
    return Encoding(found.name, found.codec, _WITH_MARK.get(name, found.bom))


def encode(text: str, encoding: Encoding, shown: str, what: str) -> bytes:
    """Turn the text that a parameter holds into bytes, without the byte order mark.

    Raises:
        SandboxError: it has a character that the encoding lacks (ENCODING_ERROR).
    """
    if encoding.name == UNKNOWN and not text.isascii():
        sign = next(char for char in text if not char.isascii())
        raise SandboxError(
            f"{shown} is not UTF-8, and {what} has {sign!r}: say how it is written there, with encoding=latin-1, "
            "cp1252, shift_jis or another",
            ENCODING_ERROR,
        )
    try:
        return text.encode(encoding.codec or "utf-8")
    except UnicodeEncodeError as error:
        sign, place = text[error.start], error.start + 1
        if "\ud800" <= sign <= "\udfff":
            why = f"{what} holds half a surrogate pair at character {place:,}, which no encoding can hold"
            raise SandboxError(why, ENCODING_ERROR) from None
        why = f"{what} holds {sign!r} at character {place:,}, which {encoding.name} cannot hold. Pass encoding=utf-8"
        raise SandboxError(f"{why} to write {shown} anew in it", ENCODING_ERROR) from None


def decoded(data: bytes, encoding: Encoding) -> str:
    """A file's bytes as text to count and to show."""
    return data.removeprefix(encoding.bom).decode(encoding.codec or "utf-8", "replace")


def eol_of(text: str) -> str | None:
    """`lf`, `crlf` or `mixed`; None without any line end."""
    newlines, crlf = text.count("\n"), text.count("\r\n")
    if not newlines:
        return None
    return {0: "lf", newlines: "crlf"}.get(crlf, "mixed")


def with_eol(text: str, eol: str) -> str:
    """The text with all its line ends `lf` or `crlf`."""
    plain = text.replace("\r\n", "\n")
    return plain.replace("\n", "\r\n") if eol == "crlf" else plain
