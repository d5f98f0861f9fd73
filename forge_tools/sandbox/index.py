"""Results computed from files, cached on this host for all calls and processes by the file's bytes, never its name."""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

Answer = TypeVar("Answer")
Seen = os.stat_result

_VERSION = 3
_RACY_NS = 2_000_000_000
"""A file changed this recently may change again without a visible difference in its timestamps."""

_MOST_BYTES = 1 << 30
_LOCK_SECONDS = 2.0
_SKIPPED_SECONDS = 24 * 3600.0
_TABLES = """
CREATE TABLE IF NOT EXISTS files (sight TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (digest TEXT PRIMARY KEY, names TEXT NOT NULL, words TEXT NOT NULL, facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS skipped (digest TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID;
"""
_USED = """SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"""


class Kept(NamedTuple):
    """What is kept of a file: the names that it defines and its words, each between two line ends, and the computed results."""

    names: str
    words: str
    facts: str


class HostIndex:
    """One SQLite file in a folder that belongs only to this user. If anything is wrong with it, calls only get slower.

    `folder` None keeps nothing. A damaged file, or one of another version, is recreated. For one thread and one call.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / f"code-{_VERSION}.db" if folder and _is_ours(folder) else None
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def digests(self, seen: Sequence[Seen]) -> list[str | None]:
        """Return the digests of files that have not changed since they were read, according to `fstat`."""
        found = dict(self._rows("SELECT * FROM files WHERE sight IN", [_sight(one) for one in seen]))
        return [found.get(_sight(one)) for one in seen]

    def facts(
        self, digests: Sequence[str], column: Literal["names", "words"], needs: Callable[[str], bool]
    ) -> dict[str, Kept | None]:
        """Return what is kept of files with these digests, None for those whose names or words show no need: most are not read."""
        known = self._rows(f"SELECT digest, {column} FROM facts WHERE digest IN", digests)
        wanted = [digest for digest, said in known if needs(said)]
        found = {digest: Kept(*kept) for digest, *kept in self._rows("SELECT * FROM facts WHERE digest IN", wanted)}
        return {digest: found.get(digest) for digest, _ in known}

    def keep(self, files: Sequence[tuple[Seen, str]], facts: Mapping[str, Kept]) -> None:
        sights = [(sight, digest) for one, digest in files if (sight := _sight(one))]

        def write(connection: sqlite3.Connection) -> None:
            # A transaction that began by reading would fail at its first write, if another has written since.
            connection.execute("BEGIN IMMEDIATE")
            [[used]] = connection.execute(_USED)
            for table in ("files", "facts") if used > _MOST_BYTES else ():
                connection.execute(f"DELETE FROM {table}")
            connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", sights)
            rows = [(digest, *kept) for digest, kept in facts.items()]
            connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?)", rows)
            connection.executemany("DELETE FROM skipped WHERE digest = ?", [(one,) for one in facts])
            connection.execute("COMMIT")

        if sights or facts:
            self._with(write, None)

    def skip(self, digest: str, after: float = 0.0) -> None:
        """Block work on that file for a day, starting in `after` seconds; recorded first, as it may kill the process."""
        row = (digest, time.time() + after)
        self._with(lambda connection: connection.execute("INSERT OR REPLACE INTO skipped VALUES (?, ?)", row), None)

    def is_skipped(self, digest: str) -> bool:
        """Whether work on that file took too long, within the last day."""
        rows = self._rows("SELECT since FROM skipped WHERE digest IN", [digest])
        return any(since < time.time() < since + _SKIPPED_SECONDS for (since,) in rows)

    def _rows(self, select: str, keys: Sequence[str | None]) -> list[Any]:
        wanted = [key for key in keys if key]

        def look(connection: sqlite3.Connection) -> list[Any]:
            found: list[Any] = []
            for at in range(0, len(wanted), 500):
                some = wanted[at : at + 500]
                found += connection.execute(f"{select} ({','.join('?' * len(some))})", some)
            return found

        return self._with(look, []) if wanted else []

    def _with(self, work: Callable[[sqlite3.Connection], Answer], otherwise: Answer) -> Answer:
        if self._path is None:
            return otherwise
        try:
            self._connection = self._connection or _opened(self._path)
            return work(self._connection)
        except sqlite3.OperationalError:  # in use, or no room: other calls continue
            if self._connection is not None and self._connection.in_transaction:
                self._connection.rollback()
            return otherwise
        except sqlite3.DatabaseError:
            self.close()
            for end in ("", "-wal", "-shm"):
                with suppress(OSError):
                    self._path.with_name(f"{self._path.name}{end}").unlink()
            self._path = None
            return otherwise


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # what a crash damages is recreated
        connection.executescript(_TABLES)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _sight(seen: Seen) -> str | None:
    """Return what changes with every change of the file; None if a change right now might not."""
    if time.time_ns() - max(seen.st_ctime_ns, seen.st_mtime_ns) < _RACY_NS:
        return None
    return f"{seen.st_dev}:{seen.st_ino}:{seen.st_size}:{seen.st_mtime_ns}:{seen.st_ctime_ns}"


def _is_ours(folder: Path) -> bool:
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
        return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
    return False
