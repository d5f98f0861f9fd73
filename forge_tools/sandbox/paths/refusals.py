"""Paths in words: how to print and read them, why one cannot be used; and the names that no tool touches."""

import difflib
import errno
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import zip_longest

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model.artifacts import SCHEME

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
MAX_PATH_CHARS = 4 * MAX_PATH_BYTES
"""The limit for a path as printed: an escape takes up to four characters for a byte."""

NOT_FOUND = "FILE_NOT_FOUND"
READ_ERROR = "READ_ERROR"
NOT_A_FILE = "NOT_A_FILE"
NOT_A_DIRECTORY = "NOT_A_DIRECTORY"
OUTSIDE = "PATH_OUTSIDE_WORKSPACE"
PROTECTED = "PATH_PROTECTED"
PERMISSION_DENIED = "PERMISSION_DENIED"
READ_ONLY = "READ_ONLY_WORKSPACE"
DISK_FULL = "DISK_FULL"
TOO_LARGE = "FILE_TOO_LARGE"
STALE = "STALE_FILE"
LOCK_TIMEOUT = "LOCK_TIMEOUT"

_NOT_REGULAR = (NOT_A_FILE, "{} is not a regular file; only files and directories can be opened")
_FULL = (DISK_FULL, "No space left to write {}. Nothing was changed. Free some space, then try again")

_SENTENCES = {
    errno.EXDEV: (OUTSIDE, "Path is outside the workspace: {}"),
    errno.ENOENT: (NOT_FOUND, "File not found: {}"),
    errno.ENOTDIR: (NOT_A_DIRECTORY, "{} goes through a file as if it were a directory"),
    errno.ELOOP: (NOT_A_FILE, "{} is a symbolic link in a loop and cannot be followed"),
    errno.EACCES: (PERMISSION_DENIED, "Permission denied: {}"),
    errno.EPERM: (PERMISSION_DENIED, "Permission denied: {}"),
    errno.ENXIO: _NOT_REGULAR,
    errno.ENODEV: _NOT_REGULAR,
    errno.ENAMETOOLONG: (ErrorCode.VALIDATION_ERROR, "Path has a name that is too long for this file system: {}"),
    errno.EROFS: (READ_ONLY, "{} is on a read-only file system. Write elsewhere in the workspace"),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: (TOO_LARGE, "{} would be larger than this worker may write. Nothing was changed. Write several files"),
    errno.EBUSY: (PERMISSION_DENIED, "{} is a mount point or in use by the system, and cannot be replaced or deleted"),
}

INTERNALS = (".git", ".hg", ".svn")
SECRETS = (
    ".env", ".env.*", ".netrc", ".pgpass", ".pypirc", ".git-credentials", ".ssh", ".gnupg", ".aws", ".forge-journal",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
)  # fmt: skip
HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")

_WILD = {"*": "[^/]*", "?": "[^/]"}

# Printable ASCII has no escape, so none represents a slash or a dot.
_ESCAPE = r"[\\nrt]|x(?:[01][0-9a-f]|7f|[89a-f][0-9a-f])|u(?!00[0-7])[0-9a-f]{4}|U00(?:0[1-9a-f]|10)[0-9a-f]{4}"
_ESCAPED = re.compile(rf"\\(?:{_ESCAPE})")
_MISREAD = re.compile(rf"\\(?={_ESCAPE})")


def escape_path(path: str) -> str:
    """Print a path, or a name, on one line of valid Unicode, so that `unescape_path` restores it.

    Control characters, other invisible characters and bytes that are not UTF-8 become escapes; a backslash is doubled
    only if it would begin one.
    """
    if "\\" in path:
        path = _MISREAD.sub(r"\\\\", path)
    if path.isprintable():
        return path
    return "".join(_escape(char, then) for char, then in zip_longest(path, path[1:], fillvalue=" "))


def unescape_path(text: str) -> str:
    """Read a path as `escape_path` prints it; anything that is not such an escape stays as it is."""
    return _ESCAPED.sub(_unescape, text) if "\\" in text else text


def check_path(path: str) -> str:
    """Refuse what no file system could hold, before any system call; return the path as folder listings show it."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise _invalid("Path contains characters that file names cannot contain") from None
    if not encoded:
        raise _invalid("Path is empty. Pass a path relative to the working directory")
    if path.startswith(SCHEME):
        raise _invalid(f"{path[:60]!r} is an artifact, which only Read and Grep accept. Pass a path in the workspace")
    if b"\0" in encoded:
        raise _invalid("Path contains a NUL character")
    if len(encoded) > MAX_PATH_BYTES:
        raise _invalid(f"Path is {len(encoded):,} bytes; the limit is {MAX_PATH_BYTES:,}")
    longest = max(map(len, encoded.split(b"/"))) if len(encoded) > MAX_NAME_BYTES else 0
    if longest > MAX_NAME_BYTES:
        raise _invalid(f"Path has a name of {longest:,} bytes; the limit is {MAX_NAME_BYTES}")
    return os.fsdecode(encoded)


def parts_of(path: str) -> list[str]:
    """Return the names on a path, including `..`."""
    return [part for part in path.split("/") if part not in ("", ".")]


def similar_names(name: str, names: list[str]) -> list[str]:
    """Return at most three names: those that differ by case or Unicode form first, then by spelling."""
    names = [other for other in names if other != name]
    same = [other for other in names if _folded(other) == _folded(name)]
    return list(dict.fromkeys(same + difflib.get_close_matches(name, names, n=3, cutoff=0.7)))[:3]


def refusal(error: OSError, shown: str, doing: str = "open") -> SandboxError:
    """Turn a kernel error into a message for the caller; nothing about the target of a link is revealed."""
    code = error.errno or 0
    if code in _SENTENCES:
        name, sentence = _SENTENCES[code]
        return SandboxError(sentence.format(shown), name)
    kind = READ_ERROR if doing in ("open", "read") else ErrorCode.EXECUTION_ERROR
    return SandboxError(f"Cannot {doing} {shown}: {os.strerror(code)}", kind)


@contextmanager
def refusing(shown: str, doing: str = "open") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(error, shown, doing) from error


def outside(shown: str) -> SandboxError:
    return refusal(OSError(errno.EXDEV, ""), shown)


def not_a_file(shown: str, mode: int) -> SandboxError:
    """Say what is there instead of a regular file."""
    if stat.S_ISDIR(mode):
        return SandboxError(f"{shown} is a directory; pass the path of a file in it", NOT_A_FILE)
    return SandboxError(_NOT_REGULAR[1].format(shown), NOT_A_FILE)


@dataclass(frozen=True)
class Protection:
    """`secrets` are patterns for names, with `*` and `?`; a path is protected by any name on it, regardless of case.

    They are neither read nor written. `INTERNALS` can be read but not written; names in `HARMLESS` are never protected.
    """

    secrets: Sequence[str] = SECRETS

    def check(self, path: str, shown: str, *, is_write: bool) -> None:
        """Refuse a protected path below the root, saying what to do instead."""
        path = f"/{path}".casefold()
        for found in self._secret.finditer(path):
            if not _HARMLESS.match(found[0]):
                what = f"{escape_path(found[0][1:])} may hold secrets, which tools neither read nor write. "
                what += "Leave it out, use a file without secrets (.env.example), or ask a person to do this step"
                raise SandboxError(f"Path is protected by policy: {shown}: {what}", PROTECTED)
        if is_write and (inner := _INTERNAL.search(path)):
            what = f"{escape_path(inner[0][1:])} may only be changed by its own commands, such as git; tools only read it. "
            raise SandboxError(f"Path is protected by policy: {shown}: {what}Run that command with Bash", PROTECTED)

    def hidden_of(self, names: Sequence[str]) -> set[str]:
        """Return those of the names in a folder that cannot be read."""
        # Names contain no slash, so all are matched at once, like the parts of a path.
        if not self._secret.search(f"/{'/'.join(names)}".casefold()):
            return set()
        paths = {name: f"/{name}".casefold() for name in names}
        return {name for name, path in paths.items() if self._secret.match(path) and not _HARMLESS.match(path)}

    @cached_property
    def _secret(self) -> re.Pattern[str]:
        return _any_of(tuple(self.secrets))


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return an expression for a slash and the name after it, to search a whole path at once; cached for all calls."""
    names = "|".join("".join(_WILD.get(char, re.escape(char)) for char in one.casefold()) for one in patterns)
    return re.compile(rf"/(?:{names})(?=/|\Z)")


_INTERNAL, _HARMLESS = _any_of(INTERNALS), _any_of(HARMLESS)


def _escape(char: str, then: str) -> str:
    if char.isprintable():
        return r"\\" if char == "\\" and not then.isprintable() else char
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{number - 0xDC00:02x}"
    if 0x80 <= number <= 0xFF:
        return f"\\u{number:04x}"
    return char.encode("unicode_escape").decode("ascii")


def _unescape(found: re.Match[str]) -> str:
    char = found[0].encode("ascii").decode("unicode_escape")
    is_byte = found[0].startswith(r"\x") and char >= "\x80"
    return chr(0xDC00 + ord(char)) if is_byte else char


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _invalid(message: str) -> SandboxError:
    return SandboxError(message, ErrorCode.VALIDATION_ERROR)
