"""What a host does for all of its shells: look at them, keep them alive, and forget those that are over."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from forge_tools.records import ShellRecord, ShellStatus, host_of
from forge_tools.sandbox.shells.layout import STATUS
from forge_tools.sandbox.shells.state import ShellFolder

_Identity = tuple[int, ...]

_STARTING_SECONDS = 60.0
_MAX_FOLDERS = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Of each folder the shells that are over: what they were does not change, and a host keeps many for days.
_over: dict[Path, dict[str, tuple[_Identity, ShellRecord]]] = {}


def survey(folder: Path) -> list[ShellRecord]:
    """Say of each shell of this host what its folder says, the oldest first.

    One whose supervisor is gone without having said how it ended becomes LOST, for ever, and what it left running is ended:
    that may take a second, so call this on a thread.
    """
    known, over, records = _over.get(folder, {}), {}, []
    for name in _names(folder):
        identity = _identity(folder, name)
        if identity is not None and (kept := known.get(name)) is not None and kept[0] == identity:
            over[name] = kept
            records.append(kept[1])
        elif (record := _record(folder, name)) is not None:
            records.append(record)
            if identity is not None and record.status is not ShellStatus.RUNNING:
                over[name] = identity, record
    if len(_over) >= _MAX_FOLDERS:
        _over.clear()
    _over[folder] = over
    return sorted(records, key=lambda record: (record.started_at, record.id))


def renew(folder: Path) -> None:
    """Renew the leases of all shells: a supervisor whose lease nobody renews for so long as it was given ends its shell."""
    for shell in each(folder):
        shell.renew()


def forget(folder: Path, older_than_seconds: float) -> int:
    """Remove what is kept of shells that ended at least so long ago; return how many were forgotten."""
    oldest = time.time() - older_than_seconds
    forgotten = 0
    for shell in each(folder):
        if shell.is_whole:
            record = shell.record()
            is_old = record.ended_at is not None and record.ended_at.timestamp() <= oldest
        else:  # whoever started it was killed on the way
            is_old = os.fstat(shell.fd).st_mtime <= min(oldest, time.time() - _STARTING_SECONDS)
        if is_old:
            shutil.rmtree(folder / shell.id, ignore_errors=True)
            forgotten += 1
    return forgotten


def find(folder: Path, id: str) -> ShellFolder | None:
    """Open the folder of a shell that has been started on this host; None where there is none. Close it."""
    shell = _open(folder, id)
    if shell is not None and not shell.is_whole:
        shell.close()
        return None
    return shell


def each(folder: Path) -> Iterator[ShellFolder]:
    """Open the shells of a folder one after the other."""
    for name in _names(folder):
        shell = _open(folder, name)
        if shell is not None:
            with shell:
                yield shell


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  names are all that is wanted
    except OSError:
        return []


def _identity(folder: Path, name: str) -> _Identity | None:
    """What says that a shell's status is the one that was read before; None where there is none."""
    try:
        seen = os.stat(f"{folder}/{name}/{STATUS}", follow_symlinks=False)  # noqa: PTH116  a host keeps thousands
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _record(folder: Path, name: str) -> ShellRecord | None:
    shell = _open(folder, name)
    if shell is None:
        return None
    with shell:
        return shell.record() if shell.is_whole else None


def _open(folder: Path, id: str) -> ShellFolder | None:
    """Open by a name that can be no path: only the form of an id is accepted."""
    if host_of(id) is None:
        return None
    try:
        return ShellFolder(os.open(folder / id, _FOLDER), id)
    except OSError:
        return None
