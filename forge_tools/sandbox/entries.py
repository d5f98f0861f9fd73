"""What is in an open folder: names and kinds at once, the rest for the entries that somebody wants to see."""

import os
import stat
from dataclasses import dataclass
from enum import StrEnum

from forge_tools.errors import SandboxError
from forge_tools.sandbox.handles import Handle
from forge_tools.sandbox.names import escape_path
from forge_tools.sandbox.refusals import OUTSIDE, refusal
from forge_tools.sandbox.roots import OPEN_FOLDER

_TYPE_BITS = 0o170000
_OTHERS = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class Kind(StrEnum):
    """What an entry is, without following a link."""

    FILE = "file"
    FOLDER = "directory"
    LINK = "link"
    OTHER = "other"


@dataclass(slots=True)
class Entry:
    """`target` is where a link leads, as people may see it; None where that is outside the workspace."""

    name: str
    kind: Kind
    type: str = ""
    size: int | None = None
    mtime_ns: int | None = None
    mode: int | None = None
    target: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.kind is Kind.FOLDER


def scan(folder: Handle) -> list[Entry]:
    """List an open folder in no order.

    Raises:
        SandboxError: it cannot be listed.
    """
    try:
        with os.scandir(folder.fd) as entries:
            return [Entry(entry.name, _kind(entry)) for entry in entries]
    except OSError as error:
        raise refusal(error, folder.name, "list") from error


def look_at(folder: Handle, entry: Entry) -> None:
    """Fill in the facts of an entry; one that is gone by now keeps none."""
    try:
        status = os.stat(entry.name, dir_fd=folder.fd, follow_symlinks=False)
    except OSError:
        return
    mode = status.st_mode
    entry.size, entry.mtime_ns, entry.mode = status.st_size, status.st_mtime_ns, mode & 0o7777
    entry.type = _OTHERS.get(mode & _TYPE_BITS, entry.kind)
    if entry.kind is Kind.LINK:
        entry.target = _target(folder, entry.name)


def enter(folder: Handle, name: str) -> Handle:
    """Open a folder in a folder; a link put in its place meanwhile is refused.

    Raises:
        SandboxError: it cannot be opened, or is protected.
    """
    shown = escape_path(name) if folder.name == "." else f"{folder.name.rstrip('/')}/{escape_path(name)}"
    try:
        inner = Handle(os.open(name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=folder.fd), shown, folder.root)
    except OSError as error:
        raise refusal(error, shown) from error
    try:
        folder.root.check(inner.fd, shown)
    except SandboxError:
        inner.close()
        raise
    return inner


def _kind(entry: "os.DirEntry[str]") -> Kind:
    if entry.is_file(follow_symlinks=False):
        return Kind.FILE
    if entry.is_dir(follow_symlinks=False):
        return Kind.FOLDER
    return Kind.LINK if entry.is_symlink() else Kind.OTHER


def _target(folder: Handle, name: str) -> str | None:
    """Where a link leads: as it says, below the root where it says so absolutely; None where that is outside."""
    parts = folder.root.true_parts(folder.fd)
    try:
        target = os.readlink(name, dir_fd=folder.fd)
    except OSError:
        return ""
    try:
        os.close(folder.root.open("/".join([*(parts or ()), name]), OPEN_FOLDER & ~os.O_DIRECTORY | os.O_NONBLOCK))
    except OSError as error:
        if refusal(error, "").code == OUTSIDE:
            return None
    below = folder.root.parts(target) if target.startswith("/") else None
    return escape_path(target if below is None else "/".join(below) or ".")
