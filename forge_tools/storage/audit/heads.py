"""The last heads of the audit chain, kept in a file outside the database: they reveal that its end was cut off, or that the chain was rebuilt."""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import IO

from forge_tools.errors import ConfigurationError
from forge_tools.model.audit import Head

KEPT = 500
"""How many heads remain when a file is shortened; that happens at twice as many lines."""

_HEAD = re.compile(rb"([0-9]{1,18}):([0-9a-f]{64})")
_TORN = re.compile(rb"[0-9]{0,18}(:[0-9a-f]{0,64})?")
"""What a crash of the machine may leave of a line."""

KeptHead = tuple[int, str]
"""Sequence and hash of a batch."""


class HeadFile:
    """A file with one head per line, `N:HASH` as `forge-tools audit head` prints it, the newest last. Several processes may write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[KeptHead]:
        """Return all heads in it, the oldest first; none if the file does not exist."""
        try:
            return self._parsed(self.path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unusable("read", error) from error

    def keep(self, head: Head) -> bool:
        """Add a head that the chain holds; return whether it is the first in the file."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return self._append(file, head)
        except OSError as error:
            raise self._unusable("written", error) from error

    def _append(self, file: IO[bytes], head: Head) -> bool:
        content = file.read()
        kept = self._parsed(content)
        new = f"{head}\n".encode()
        if not content.endswith(new):
            file.write(new if not content or content.endswith(b"\n") else b"\n" + new)
            file.flush()
            os.fsync(file.fileno())
        if len(kept) >= 2 * KEPT:
            with suppress(OSError):  # an append-only file, or a folder of another user: the file just grows
                self._shorten([*kept, (head.sequence, head.hash)][-KEPT:])
        return not kept

    def _shorten(self, kept: list[KeptHead]) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.writelines(f"{sequence}:{hash_}\n".encode() for sequence, hash_ in kept)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def _parsed(self, content: bytes) -> list[KeptHead]:
        found = []
        for number, line in enumerate(content.split(b"\n"), 1):
            if match := _HEAD.fullmatch(line):
                found.append((int(match[1]), match[2].decode()))
            elif not _TORN.fullmatch(line):
                raise ConfigurationError(
                    f"{self.path} contains something other than heads of an audit chain, in line {number}. Move it away, and the next "
                    "batch begins a new one; or name another file."
                )
        return found

    def _unusable(self, how: str, error: OSError) -> ConfigurationError:
        why = error.strerror or error
        return ConfigurationError(
            f"{self.path}, the file of the audit chain's heads, cannot be {how}: {why}. FORGE_AUDIT_HEADS names another."
        )
