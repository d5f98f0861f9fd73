"""Translates the drivers' errors to this package's, and says which versions of the tables it works on."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from forge_tools.errors import (
    ConfigurationError,
    DatabaseCorruptError,
    DatabaseUnavailableError,
    ForgeError,
    SchemaVersionError,
    StorageError,
    UnstorableRowError,
)
from forge_tools.storage.tables import SCHEMA_REVISION

_SQLITE_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SQLITE_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE_VALUE = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)
_SQLITE_NEEDS = {
    sqlite3.SQLITE_READONLY: "SQLite writes beside its file even when reading, so this user must be able to write to the file and its folder",
    # its limit is 512, for the files beside it, too
    sqlite3.SQLITE_CANTOPEN: "its folder must be there and writable for this user, and its path no longer than 500 bytes",
}

# PostgreSQL's SQLSTATE codes and, at two characters, classes
_CONFLICTS = ("40001", "40P01", "55P03", "57014")
"""The last two: a lock, or the whole statement, took longer than its limit. That may pass, like a deadlock."""
_NO_TABLE = ("42P01", "42703", "42883", "3F000")
_CORRUPT = ("XX001", "XX002")
_VALUES = ("22", "23", "54")
_REFUSED = ("28", "3D")
"""The server answers, and refuses the role, its password or the name of the database."""
_NEVER_BEGAN = (*_REFUSED, "25", "53", "57P03")
"""The others: a transaction that may only read or idled too long, no memory or connection left, a starting server."""
_GONE = ("08", "57P", "58")
_FORBIDDEN = "42501"
_OTHER_SERVER = ("26000", "42P05")
"""A prepared statement is unknown, or already known: the connection reached another server than before."""
_REFUSED_SETTING = "unsupported startup parameter"

UPGRADE = "Run `forge-tools db upgrade`."

POOLER = (
    "The URL leads to a pooler, which refuses settings of connections or changes servers between transactions. Set FORGE_DATABASE_POOLER=transaction "
    "here, which also suits its session mode, and FORGE_DATABASE_MIGRATION_URL for `forge-tools db upgrade` to the server itself."
)
_FULL = "53100"
_READ_ONLY = "25006"
_ONLY_READ = "it can only be read there: name the primary in FORGE_DATABASE_URL, or find out who set default_transaction_read_only"


class ConflictError(StorageError):
    """Another transaction won (deadlock, serialization, a busy file): nothing was written, a retry may succeed."""

    retryable = True


class RefusedError(UnstorableRowError):
    """The database refuses a value somewhere in the rows: nothing was written."""


class UnreachableError(DatabaseUnavailableError):
    """The connection is gone or could not be made.

    `maybe_committed` says whether the rows may have been written, `is_final` that a retry cannot succeed.
    """

    def __init__(
        self, message: str, *, maybe_committed: bool = False, is_final: bool = False, may_pass: bool = True
    ) -> None:
        super().__init__(message)
        self.maybe_committed = maybe_committed
        self.is_final = is_final
        self.may_pass = may_pass


class ForbiddenError(StorageError):
    """The role lacks the right to do that; `refused` is the server's message."""

    def __init__(self, refused: str) -> None:
        super().__init__(
            f"{refused}. deploy/postgres/README.md says what each role may do; after an upgrade, run roles.sql there again."
        )
        self.refused = refused


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Raise a driver's errors as those of `forge_tools.errors`; `shown` is the database as people may see it."""
    try:
        yield
    except ForgeError:
        raise
    except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
        raise explain(error, shown) from error
    except Exception as error:
        if not is_from_asyncpg(error):
            raise
        raise explain(error, shown) from error


def explain(origin: BaseException, shown: str) -> ForgeError:
    if isinstance(origin, sqlite3.Error):
        return _explain_sqlite(origin, shown)
    state = getattr(origin, "sqlstate", None)
    if isinstance(state, str):
        return _explain_postgres(origin, state, shown)
    if isinstance(origin, (ValueError, OverflowError)):
        return RefusedError(f"{shown} cannot store a value: {origin}")
    return unreachable(shown, origin, maybe_committed=True)


def is_from_asyncpg(error: BaseException) -> bool:
    return any(base.__module__.startswith("asyncpg") for base in type(error).__mro__)


def is_of_read_only(error: BaseException) -> bool:
    """Return whether a standby refused a write, or a server out of room did: keep no connection to it.

    A new one may lead to the primary after a failover, and has the settings of now.
    """
    return getattr(error, "sqlstate", None) == _READ_ONLY


def _explain_sqlite(error: sqlite3.Error, shown: str) -> ForgeError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _SQLITE_CORRUPT:
        return DatabaseCorruptError(
            f"{shown} is damaged or not a database ({error}). "
            "Restore it from a copy, or move the file away and run `forge-tools db upgrade` to start with an empty one."
        )
    if code in _SQLITE_BUSY:
        return ConflictError(f"{shown} is locked by another process ({error}).")
    if code in _SQLITE_VALUE or (not code and isinstance(error, (sqlite3.DataError, sqlite3.ProgrammingError))):
        return RefusedError(f"{shown} refuses a value: {error}")
    if "no such table" in str(error) or "no such column" in str(error) or "has no column" in str(error):
        return SchemaVersionError(f"{shown} does not have the tables of this version ({error}). {UPGRADE}")
    if code in _SQLITE_NEEDS:
        return unreachable(shown, f"{error}; {_SQLITE_NEEDS[code]}", maybe_committed=False, may_pass=False)
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return _full(shown, error)
    if code == sqlite3.SQLITE_ERROR:
        return StorageError(f"{shown}: {error}")
    return unreachable(shown, error, maybe_committed=code == sqlite3.SQLITE_IOERR, may_pass=False)


def _explain_postgres(error: BaseException, state: str, shown: str) -> ForgeError:
    if state == _FULL:
        return _full(shown, error)
    if state in _OTHER_SERVER or _REFUSED_SETTING in str(error):
        return ConfigurationError(f"The database {shown} cannot be used: {str(error).splitlines()[0]}. {POOLER}")
    if state in _CONFLICTS:
        return ConflictError(f"{shown}: {error}")
    if state in _NO_TABLE:
        return SchemaVersionError(f"{shown} does not have the tables of this version ({error}). {UPGRADE}")
    if state in _CORRUPT:
        return DatabaseCorruptError(f"{shown} is damaged ({error}). Restore it from a backup.")
    if state.startswith(_VALUES):
        return RefusedError(f"{shown} refuses a value: {str(error).splitlines()[0]}")  # further lines quote the row
    if state.startswith((*_NEVER_BEGAN, *_GONE)):
        never_began, refused = state.startswith(_NEVER_BEGAN), state.startswith(_REFUSED)
        primary = f"; {_ONLY_READ}" if state == _READ_ONLY else ""
        return unreachable(shown, f"{error}{primary}", maybe_committed=not never_began, may_pass=not refused)
    said = f"{shown}: {error} (SQLSTATE {state})"
    return ForbiddenError(said) if state == _FORBIDDEN else StorageError(said)


def _full(shown: str, error: BaseException) -> UnreachableError:
    """Return the error of a full database: an outage, since space may be freed, but with its own way out."""
    return UnreachableError(
        f"The database {shown} is full: {str(error).splitlines()[0]}. Nothing was written. Make room on its disk, or raise its limit; "
        "until then calls are refused, and results wait in their workers."
    )


MORE = "`forge-tools doctor` says more"
"""`doctor` itself leaves this out of what it shows."""


def unreachable(
    shown: str, reason: BaseException | str, *, maybe_committed: bool, may_pass: bool = True
) -> UnreachableError:
    said = str(reason).rstrip(".") or "it did not answer in time"
    return UnreachableError(
        f"The database {shown} cannot be used: {said}. "
        f"Check that it runs and that FORGE_DATABASE_URL is right; {MORE}.",
        maybe_committed=maybe_committed,
        may_pass=may_pass,
    )


def is_usable(revision: str) -> bool:
    """Return whether this code works on tables at `revision`: its own, or a newer one that allows it."""
    ours, _ = _window(SCHEMA_REVISION)
    number, oldest = _window(revision)
    return oldest <= ours <= number


def require_usable(shown: str, revision: str | None) -> None:
    """Refuse a database that this code cannot work on; `shown` is its place as people may see it."""
    if revision == SCHEMA_REVISION:
        return
    if revision is None or _window(revision)[0] < _window(SCHEMA_REVISION)[0]:
        said = f"is at version {revision or 'none'}; this code needs {SCHEMA_REVISION}. {UPGRADE}"
        raise SchemaVersionError(f"{shown} {said}")
    if not is_usable(revision):
        raise unknown_version(shown, revision)


def unknown_version(shown: str, revision: str) -> SchemaVersionError:
    return SchemaVersionError(
        f"{shown} is at version {revision}, which this code does not know; its newest is {SCHEMA_REVISION}. "
        "Install a newer forge-tools here; or, if one that was never released wrote it, export its calls with that one "
        "(`forge-tools export`) and start on a new database (FORGE_DATABASE_URL)."
    )


def _window(revision: str) -> tuple[str, str]:
    """Return the number of a revision, and the number of the oldest code that can work on its tables."""
    number, _, oldest = revision.partition("_from_")
    return number, oldest or number
