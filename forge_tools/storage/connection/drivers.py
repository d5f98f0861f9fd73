"""How the drivers connect, sqlite3 and asyncpg: what a connection is told, and how long its statements may take."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from forge_tools.errors import ConfigurationError, StorageError
from forge_tools.storage.columns import MOMENT_FORMAT
from forge_tools.storage.connection.address import Address
from forge_tools.storage.connection.deadline import answered_within
from forge_tools.storage.connection.faults import translated, unreachable

BUSY_SECONDS = 1.0
"""How long SQLite waits for another process's write transaction before the statement is tried again."""

STATEMENT_SECONDS = 8.0
"""What one statement may take on the server."""

ANSWER_SECONDS = 2.0
CLIENT_SECONDS = STATEMENT_SECONDS + ANSWER_SECONDS
"""When the client gives a statement up, because the server is frozen or the network drops packets."""

APPLICATION = "forge-tools"
"""The name by which the server knows direct connections."""

UNNAMED = {"statement_cache_size": 0}
"""For asyncpg behind a pooler: no statement has a name, and what has none is parsed anew, together with each execution."""

SQLITE_SETUP = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")

READ_TEXT = partial(str, encoding="utf-8", errors="replace")
"""Reads a text of SQLite, which keeps any bytes as text, so that one broken row does not hide others."""


def closed() -> StorageError:
    """The refusal of a Store that was closed."""
    return StorageError("The Store is closed; open another one.")


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
    """Import the PostgreSQL driver, which is an extra."""
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
    """Open one asyncpg connection whose statements end, even on a server that is frozen."""
    limits = {"application_name": APPLICATION, "statement_timeout": str(int(STATEMENT_SECONDS * 1000))}
    way: dict[str, Any] = UNNAMED if address.is_pooled else {"server_settings": limits | (settings or {})}
    with translated(address.shown):
        try:
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
    """The clock that this process lends to SQLite, whose own functions stop at milliseconds."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime(MOMENT_FORMAT)
