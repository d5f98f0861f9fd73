"""Connections to a database: its address, and the drivers (sqlite3 and asyncpg)."""

import asyncio
import os
import sqlite3
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

from forge_tools.deadlines import answered_within
from forge_tools.errors import ConfigurationError, SchemaVersionError, StorageError
from forge_tools.storage.columns import MOMENT_FORMAT
from forge_tools.storage.connection.faults import translated, unreachable
from forge_tools.urls import require_readable, without_passwords

LEAST_SQLITE = (3, 37)
"""Older versions do not know STRICT tables."""

SENT = "sent"
"""The argument of a cancellation of a flush that may have taken effect nevertheless."""

BUSY_SECONDS = 1.0
"""How long SQLite waits for another process's write transaction before the statement is retried."""

STATEMENT_SECONDS = 8.0
"""The server's limit for one statement."""

ANSWER_SECONDS = 2.0
CLIENT_SECONDS = STATEMENT_SECONDS + ANSWER_SECONDS
"""When the client gives up on a statement, because the server is frozen or the network drops packets."""

APPLICATION = "forge-tools"
"""The name of direct connections on the server."""

UNNAMED = {"statement_cache_size": 0}
"""For asyncpg behind a pooler: statements are unnamed, so each is parsed again on each execution."""

SQLITE_SETUP = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")

READ_TEXT = partial(str, encoding="utf-8", errors="replace")
"""Reads a text from SQLite, which stores any bytes as text, so that one broken row does not hide others."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is: a file path or a PostgreSQL URL, and the form of it that people may see."""

    dialect: Literal["sqlite", "postgresql"]
    target: str
    shown: str
    is_pooled: bool = False
    """Whether each transaction may use another connection to the server."""

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse `sqlite:///path` or `postgresql://...`, with or without the driver's name.

        `?pooler=transaction` says that there is a pooler in between.
        """
        try:
            require_readable(url)
        except ValueError as error:
            raise ConfigurationError(
                f"FORGE_DATABASE_URL: {error}. It begins with sqlite:/// or postgresql://."
            ) from error
        scheme, _, rest = url.partition("://")
        family = scheme.partition("+")[0]
        if family == "sqlite":
            _require_sqlite(sqlite3.sqlite_version_info)
            path = rest.removeprefix("/")
            if not path or ":memory:" in path or not rest.startswith("/"):
                raise ConfigurationError(
                    f"Database URL '{url}' names no file; write sqlite:///relative.db or sqlite:////absolute.db."
                )
            return cls("sqlite", str(Path(path).absolute()), f"sqlite:///{path}")
        if family not in ("postgresql", "postgres"):
            raise ConfigurationError(
                f"Database URL starts with '{scheme[:40]}'; forge_tools stores in sqlite:/// or postgresql://."
            )
        target, pooler = _without_pooler(f"postgresql://{rest}")
        return cls("postgresql", target, without_passwords(target), is_pooled=pooler == "transaction")

    def require_file(self) -> None:
        """Refuse an SQLite file that does not exist or cannot be read, before anything opens it."""
        if self.dialect != "sqlite":
            return
        try:
            is_file = stat.S_ISREG(Path(self.target).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SchemaVersionError(
                f"There is no database at {self.target} yet. Run `forge-tools up`, or `forge-tools db upgrade`."
            ) from error
        except OSError:
            is_file = False
        if not is_file or not os.access(self.target, os.R_OK):
            said = "it is not a file that this user may read"
            raise unreachable(self.shown, said, maybe_committed=False, may_pass=False)


def _without_pooler(url: str) -> tuple[str, str]:
    place, _, query = url.partition("?")
    settings = query.split("&") if query else []
    modes = [one.removeprefix("pooler=") for one in settings if one.startswith("pooler=")]
    if not set(modes) <= {"none", "transaction"}:
        raise ConfigurationError(
            f"pooler={modes[-1][:40]}: it is `transaction` or `none`. FORGE_DATABASE_POOLER sets the same."
        )
    kept = "&".join(one for one in settings if not one.startswith("pooler="))
    return f"{place}?{kept}" if kept else place, modes[-1] if modes else "none"


def _require_sqlite(version: tuple[int, ...]) -> None:
    if version < LEAST_SQLITE:
        have, least = (".".join(map(str, numbers)) for numbers in (version, LEAST_SQLITE))
        raise ConfigurationError(
            f"This Python comes with SQLite {have}; forge_tools needs {least} or later. Use another Python, such as one that "
            "`uv python install` brings, or name a PostgreSQL database: FORGE_DATABASE_URL=postgresql://..."
        )


def closed() -> StorageError:
    return StorageError("The Store is closed; open a new one.")


class Owner:
    """The process and the event loop that opened connections."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()

    def guard(self) -> None:
        """Refuse use after a fork, or from another event loop: connections survive neither."""
        if os.getpid() != self._pid:
            raise StorageError(
                f"This Store was opened by process {self._pid} and is used in {os.getpid()}. "
                "Connections do not survive a fork: open a Store in the child."
            )
        if asyncio.get_running_loop() is not self._loop:
            raise StorageError("This Store belongs to another event loop; open one Store per loop.")


def load_asyncpg() -> Any:
    try:
        import asyncpg
    except ImportError as error:
        raise ConfigurationError(
            "A postgresql:// database needs the asyncpg driver: pip install 'forge-tools[postgres]'."
        ) from error
    return asyncpg


async def connect_postgres(
    address: Address,
    *,
    timeout: float,
    settings: dict[str, str] | None = None,
    command_timeout: float | None = CLIENT_SECONDS,
) -> Any:
    """Open one asyncpg connection whose statements time out, even on a frozen server."""
    limits = {"application_name": APPLICATION, "statement_timeout": str(int(STATEMENT_SECONDS * 1000))}
    # A pooler refuses settings of a connection, since it shares the server's among clients.
    way: dict[str, Any] = UNNAMED if address.is_pooled else {"server_settings": limits | (settings or {})}
    with translated(address.shown):
        try:
            # asyncpg's own limit would also count the time that a busy loop spends on other things.
            async with answered_within(timeout):
                return await load_asyncpg().connect(
                    address.target, timeout=None, command_timeout=command_timeout, **way
                )
        except TimeoutError as error:
            raise unreachable(address.shown, f"no answer within {timeout:g} s", maybe_committed=False) from error
        except OSError as error:
            raise unreachable(address.shown, error, maybe_committed=False) from error
        except ValueError as error:
            raise ConfigurationError(
                f"Database URL {address.shown} has a setting that cannot be used: {error}"
            ) from error


def forge_now(seconds: float = 0.0) -> str:
    """Return the time, as the SQL function `forge_now` of SQLite, whose own functions stop at milliseconds."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime(MOMENT_FORMAT)
