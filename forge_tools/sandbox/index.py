"""What was worked out of files, kept on this host for all calls and processes: found by the file's bytes, never by its name."""

import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")
Seen = os.stat_result

_VERSION = 1
_RACY_NS = 2_000_000_000
"""A file that was changed so shortly before may change again without another time in its facts."""

_MOST_ROWS = 500_000
_LOCK_SECONDS = 2.0
_TABLES = """
CREATE TABLE IF NOT EXISTS files (sight TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (digest TEXT PRIMARY KEY, facts TEXT NOT NULL) WITHOUT ROWID;
"""


class HostIndex:
    """One SQLite file in a folder that is this user's alone. Whatever is wrong with it, calls only get slower.

    `folder` None keeps nothing. A file that is damaged, or of another version, is made anew.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / f"code-{_VERSION}.db" if folder and _is_ours(folder) else None

    def digests(self, seen: Sequence[Seen]) -> list[str | None]:
        """The digests of files that are as they were when they were read, by what `fstat` says of them."""
        found = self._look("files", [sight for one in seen if (sight := _sight(one))])
        return [found.get(_sight(one) or "") for one in seen]

    def facts(self, digests: Sequence[str]) -> dict[str, Any]:
        """What was kept of files with these digests."""
        found: dict[str, Any] = {}
        for digest, text in self._look("facts", digests).items():
            with suppress(ValueError):
                found[digest] = json.loads(text)
        return found

    def keep(self, files: Sequence[tuple[Seen, str]], facts: Mapping[str, Any]) -> None:
        """Add what was read and worked out."""
        sights = [(sight, digest) for one, digest in files if (sight := _sight(one))]
        texts = [(digest, json.dumps(one, separators=(",", ":"))) for digest, one in facts.items()]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            for table, rows in (("files", sights), ("facts", texts)):
                [[count]] = connection.execute(f"SELECT count(*) FROM {table}")
                if count > _MOST_ROWS:
                    connection.execute(f"DELETE FROM {table}")
                connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)
            connection.execute("COMMIT")

        if sights or texts:
            self._with(write, None)

    def _look(self, table: str, keys: Sequence[str]) -> dict[str, str]:
        name = "sight" if table == "files" else "digest"

        def look(connection: sqlite3.Connection) -> dict[str, str]:
            found: dict[str, str] = {}
            for at in range(0, len(keys), 500):
                some = keys[at : at + 500]
                marks = ",".join("?" * len(some))
                found |= dict(connection.execute(f"SELECT * FROM {table} WHERE {name} IN ({marks})", some))
            return found

        return self._with(look, {}) if keys else {}

    def _with(self, work: Callable[[sqlite3.Connection], Answer], otherwise: Answer) -> Answer:
        if self._path is None:
            return otherwise
        try:
            with closing(sqlite3.connect(self._path, timeout=_LOCK_SECONDS, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = OFF")  # what a crash damages is made anew
                connection.executescript(_TABLES)
                return work(connection)
        except sqlite3.OperationalError:  # in use, or no room: others get on
            return otherwise
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self._path.unlink()
            return otherwise


def _sight(seen: Seen) -> str | None:
    """What changes with every change of the file; None where one right now might leave it."""
    if time.time_ns() - max(seen.st_ctime_ns, seen.st_mtime_ns) < _RACY_NS:
        return None
    return f"{seen.st_dev}:{seen.st_ino}:{seen.st_size}:{seen.st_mtime_ns}:{seen.st_ctime_ns}"


def _is_ours(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
