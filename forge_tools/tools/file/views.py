"""A file's bytes as text to match in, from which every byte outside a match comes back as it was."""

from dataclasses import dataclass, replace

from forge_tools.errors import SandboxError
from forge_tools.tools.file.text import UNKNOWN, Encoding
from forge_tools.tools.file.wording import ENCODING_ERROR, encode

_STATEFUL = ("iso2022", "hz", "utf-7", "utf_7", "utf7")
_ALL_BYTES = bytes(range(256))


@dataclass(frozen=True, slots=True)
class View:
    """Matching happens in `text`.

    Where every character of the encoding is found by its bytes alone (UTF-8 and the 8-bit ones), `text` has one character
    for each byte, and nothing is ever decoded. Elsewhere, as in UTF-16 or Shift-JIS, `text` is decoded: there the bytes of
    one character may look like the end of another.
    """

    text: str
    encoding: Encoding
    is_decoded: bool

    @classmethod
    def of(cls, data: bytes, encoding: Encoding, shown: str) -> "View":
        """View the bytes of a file.

        Raises:
            SandboxError: they are no text in that encoding, or cannot be put together again (ENCODING_ERROR).
        """
        if not data.startswith(encoding.bom):  # asked for with the name of the encoding, and not there
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
            what = f"{shown} is not wholly {encoding.name}, so it cannot be edited without changing the rest of it. "
            raise SandboxError(f"{what}Pass another encoding, or latin-1 to edit what is ASCII in it", ENCODING_ERROR)
        return cls(text, encoding, is_decoded=True)

    def pattern(self, text: str) -> str | None:
        """What `text` looks like in this view; None where the encoding has no such characters."""
        try:
            data = text.encode(self.encoding.codec or "utf-8")
        except UnicodeEncodeError:
            return None
        return text if self.is_decoded else data.decode("latin-1")

    def insertion(self, text: str, shown: str, what: str, known: str) -> str:
        """What new text looks like in this view; characters that `known` has too are known to be right.

        Raises:
            SandboxError: the encoding lacks one of its characters (ENCODING_ERROR).
        """
        if self.encoding.name == UNKNOWN:
            encode("".join(char for char in text if char not in known), self.encoding, shown, what)
            encoded = encode(text, Encoding("latin-1", "latin-1"), shown, what)
        else:
            encoded = encode(text, self.encoding, shown, what)
        return text if self.is_decoded else encoded.decode("latin-1")

    def data(self, text: str) -> bytes:
        """The bytes of a file whose view is `text`."""
        return self.encoding.bom + text.encode((self.encoding.codec or "utf-8") if self.is_decoded else "latin-1")

    def readable(self, text: str) -> str:
        """A part of the view as people read it."""
        return text if self.is_decoded else text.encode("latin-1").decode(self.encoding.codec or "utf-8", "replace")


def _is_8_bit(codec: str) -> bool:
    return not codec.startswith(_STATEFUL) and len(_ALL_BYTES.decode(codec, "replace")) == len(_ALL_BYTES)
