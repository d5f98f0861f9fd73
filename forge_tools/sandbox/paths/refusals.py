"""What tools refuse: the codes and sentences for a path that cannot be used, and the names that no tool touches."""

import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.sandbox.paths.names import escape_path

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
_FULL = (DISK_FULL, "No space left to write {}. Nothing was changed. Free some, then try again")

_SENTENCES = {
    errno.EXDEV: (OUTSIDE, "Path is outside the workspace: {}"),
    errno.ENOENT: (NOT_FOUND, "File not found: {}"),
    errno.ENOTDIR: (NOT_A_DIRECTORY, "{} goes through a file as if it were a directory"),
    errno.ELOOP: (NOT_A_FILE, "{} is a symbolic link that cannot be followed: it leads in a circle"),
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


def refusal(error: OSError, shown: str, doing: str = "open") -> SandboxError:
    """Turn what the kernel said into what the caller reads; nothing about the target of a link is revealed."""
    code = error.errno or 0
    if code in _SENTENCES:
        name, sentence = _SENTENCES[code]
        return SandboxError(sentence.format(shown), name)
    kind = READ_ERROR if doing in ("open", "read") else ErrorCode.EXECUTION_ERROR
    return SandboxError(f"Cannot {doing} {shown}: {os.strerror(code)}", kind)


def not_a_file(shown: str, mode: int) -> SandboxError:
    """Say what is there instead of a regular file."""
    if stat.S_ISDIR(mode):
        return SandboxError(f"{shown} is a directory; pass the path of a file in it", NOT_A_FILE)
    return SandboxError(_NOT_REGULAR[1].format(shown), NOT_A_FILE)


@dataclass(frozen=True)
class Protection:
    """Patterns for names, with `*` and `?`; a path is protected by any name on it, in whatever case.

    `internals` can be read and not written, `secrets` neither; `harmless` names are never protected.
    """

    internals: Sequence[str] = INTERNALS
    secrets: Sequence[str] = SECRETS
    harmless: Sequence[str] = HARMLESS

    def check(self, parts: Iterable[str], shown: str, *, is_write: bool) -> None:
        """Refuse a path, given by its names below the root.

        Raises:
            SandboxError: it is protected (PATH_PROTECTED); with the way out.
        """
        path = f"/{'/'.join(parts)}".casefold()
        for found in self._secret.finditer(path):
            if not self._harmless.match(found[0]):
                raise _refused(
                    shown, f"{escape_path(found[0][1:])} may hold secrets, which tools neither read nor write"
                )
        inner = self._internal.search(path) if is_write else None
        if inner:
            why = f"{escape_path(inner[0][1:])} is changed by its own commands alone, such as git; tools only read it"
            raise _refused(shown, why)

    def hides(self, name: str) -> bool:
        """Whether what has that name cannot be read."""
        path = f"/{name}".casefold()
        return bool(self._secret.match(path)) and not self._harmless.match(path)

    def hidden_of(self, names: Sequence[str]) -> set[str]:
        """Choose those of the names in a folder that cannot be read."""
        # As no name has a slash in it, all of them are asked about at once, like the parts of a path.
        if not self._secret.search(f"/{'/'.join(names)}".casefold()):
            return set()
        return {name for name in names if self.hides(name)}

    @cached_property
    def _secret(self) -> re.Pattern[str]:
        return _any_of(tuple(self.secrets))

    @cached_property
    def _internal(self) -> re.Pattern[str]:
        return _any_of(tuple(self.internals))

    @cached_property
    def _harmless(self) -> re.Pattern[str]:
        return _any_of(tuple(self.harmless))


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """An expression for a slash and the name after it, to be searched in a whole path at once; every call has the same."""
    names = "|".join("".join(_WILD.get(char, re.escape(char)) for char in one.casefold()) for one in patterns)
    return re.compile(rf"/(?:{names})(?=/|\Z)" if names else r"(?!)")


def _refused(shown: str, why: str) -> SandboxError:
    way_out = "Leave it out, use a file without secrets (.env.example), or ask a person to do this step"
    if "commands" in why:
        way_out = "Run that command with Bash"
    return SandboxError(f"Path is protected by policy: {shown}: {why}. {way_out}", PROTECTED)
