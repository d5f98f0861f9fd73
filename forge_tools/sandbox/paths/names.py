"""What a path may look like before anything is asked of the kernel, how it is printed, and which names are like a missing one."""

import difflib
import os
import re
import unicodedata
from itertools import zip_longest

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model.artifacts import SCHEME

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_PATH_CHARS = 4 * MAX_PATH_BYTES
"""Of a path as it is printed: an escape takes up to four characters for a byte."""

# Printable ASCII has no escape, so that none stands for a slash or a dot.
_ESCAPE = r"[\\nrt]|x(?:[01][0-9a-f]|7f|[89a-f][0-9a-f])|u(?!00[0-7])[0-9a-f]{4}|U00(?:0[1-9a-f]|10)[0-9a-f]{4}"
_ESCAPED = re.compile(rf"\\(?:{_ESCAPE})")
_MISREAD = re.compile(rf"\\(?={_ESCAPE})")


def escape_path(path: str) -> str:
    """Print a path, or a name, on one line of valid Unicode, so that `unescape_path` gives it back.

    Control characters, other characters that do not show and bytes that are no UTF-8 become escapes; a backslash is doubled
    only where it would begin one.
    """
    if "\\" in path:
        path = _MISREAD.sub(r"\\\\", path)
    if path.isprintable():
        return path
    return "".join(_escape(char, then) for char, then in zip_longest(path, path[1:], fillvalue=" "))


def unescape_path(text: str) -> str:
    """Read a path as `escape_path` prints it; what is no escape of its stands for itself."""
    return _ESCAPED.sub(_unescape, text) if "\\" in text else text


def _escape(char: str, then: str) -> str:
    if char.isprintable():
        return r"\\" if char == "\\" and not then.isprintable() else char
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{number - 0xDC00:02x}"
    if 0x80 <= number <= 0xFF:
        return f"\\u{number:04x}"
    return char.encode("unicode_escape").decode("ascii")


def _unescape(found: re.Match[str]) -> str:
    char = found[0].encode("ascii").decode("unicode_escape")
    is_byte = found[0].startswith(r"\x") and char >= "\x80"
    return chr(0xDC00 + ord(char)) if is_byte else char


def check_path(path: str) -> str:
    """Refuse what no file system could hold, before any system call; return the path as listings of folders have it.

    Raises:
        SandboxError: saying what is wrong with it (VALIDATION_ERROR).
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise _invalid("Path holds characters that no file name can hold") from None
    if not encoded:
        raise _invalid("Path is empty. Pass a path relative to the working directory")
    if path.startswith(SCHEME):
        raise _invalid(f"{path[:60]!r} is an artifact, which only Read and Grep take. Pass a path in the workspace")
    if b"\0" in encoded:
        raise _invalid("Path holds a NUL character")
    if len(encoded) > MAX_PATH_BYTES:
        raise _invalid(f"Path is {len(encoded):,} bytes; the limit is {MAX_PATH_BYTES:,}")
    longest = max(map(len, encoded.split(b"/"))) if len(encoded) > MAX_NAME_BYTES else 0
    if longest > MAX_NAME_BYTES:
        raise _invalid(f"Path has a name of {longest:,} bytes; the limit is {MAX_NAME_BYTES}")
    return os.fsdecode(encoded)


def parts_of(path: str) -> list[str]:
    """The names on a path, `..` among them."""
    return [part for part in path.split("/") if part not in ("", ".")]


def similar_names(name: str, names: list[str]) -> list[str]:
    """Names that differ by case or Unicode form first, then by spelling; at most three."""
    names = [other for other in names if other != name]
    same = [other for other in names if _folded(other) == _folded(name)]
    return list(dict.fromkeys(same + difflib.get_close_matches(name, names, n=3, cutoff=0.7)))[:3]


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _invalid(message: str) -> SandboxError:
    return SandboxError(message, ErrorCode.VALIDATION_ERROR)
