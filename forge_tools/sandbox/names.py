"""What a path may look like before anything is asked of the kernel, and which names are like a missing one."""

import difflib
import os
import unicodedata

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.records.artifacts import SCHEME

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255


def check_path(path: str) -> None:
    """Refuse what no file system could hold, before any system call.

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
