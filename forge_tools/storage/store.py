"""The Store: the parts of one database, opened, checked and closed together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import select

from forge_tools.storage.artifacts import StoredArtifacts
from forge_tools.storage.audit import AuditChain
from forge_tools.storage.catalogue import Catalogue
from forge_tools.storage.connection.address import Address
from forge_tools.storage.connection.database import Database
from forge_tools.storage.connection.deadline import answered_within
from forge_tools.storage.connection.pool import Connections, read_connections
from forge_tools.storage.encryption_keys import EncryptionKeys
from forge_tools.storage.functions import server_name
from forge_tools.storage.history.history import History
from forge_tools.storage.history.overview import Overviews
from forge_tools.storage.history.rollups import Rollups
from forge_tools.storage.integrity import violations
from forge_tools.storage.queue.batcher import Limits
from forge_tools.storage.queue.postgres import PostgresHotPath
from forge_tools.storage.queue.queue import ExecutionQueue
from forge_tools.storage.queue.sqlite import SqliteHotPath
from forge_tools.storage.queue.workers import Workers
from forge_tools.storage.reports import Reports
from forge_tools.storage.retention import Leftovers, Retention
from forge_tools.storage.shells import Shells
from forge_tools.storage.workspaces import Workspaces


async def open_store(
    url: str,
    *,
    connect_timeout: float = 3.0,
    check_schema: bool = True,
    patience: float | None = 3.0,
    deadline: float | None = None,
    artifact_dir: Path | None = None,
) -> "Store":
    """Connect to the database at `url` and check that its tables are this version's.

    `patience` is how many seconds hot statements are repeated on a database that is away (None: for ever). `deadline` is how
    many seconds whoever asks it anything is kept waiting, but for reads of all history; None: up to 13. `artifact_dir` is the folder that holds the bytes of artifacts; without it they are in rows.

    Raises:
        ConfigurationError: the URL is none that can be used.
        DatabaseUnavailableError: it does not answer within `connect_timeout` seconds.
        SchemaVersionError: it is not migrated, or was migrated by newer code.
        DatabaseCorruptError: the file is no database.
    """
    address = Address.parse(url)
    hot: SqliteHotPath | PostgresHotPath
    if address.dialect == "sqlite":
        address.require_file()
        hot = SqliteHotPath(address)
        database = Database.open(address, connect_timeout=connect_timeout, write_lock=hot.write_lock)
    else:
        hot = PostgresHotPath(address, connect_timeout=connect_timeout)
        database = Database.open(address, connect_timeout=connect_timeout, deadline=deadline)
    limits = Limits(patience=patience if deadline is None else deadline)
    if address.dialect == "postgresql" and deadline is not None:  # a file answers by itself, one way or the other
        limits = Limits(patience=None, deadline=deadline)
    store = Store(hot, database, limits=limits, artifact_dir=artifact_dir)
    try:
        await database.check(has_tables=check_schema)
    except BaseException:
        await store.close()
        raise
    return store


class Store:
    """One database as its parts. Belongs to the process and the event loop that opened it."""

    def __init__(
        self,
        hot: SqliteHotPath | PostgresHotPath,
        database: Database,
        *,
        limits: Limits,
        artifact_dir: Path | None = None,
    ) -> None:
        self._hot = hot
        self._database = database
        self.dialect: str = database.dialect
        self.queue = ExecutionQueue(hot, database, limits=limits)
        self.history = History(database)
        self.artifacts = StoredArtifacts(database, artifact_dir)
        self.audit = AuditChain(database)
        self.catalogue = Catalogue(database)
        self.overviews = Overviews(database)
        self.reports = Reports(database)
        self.encryption_keys = EncryptionKeys(database)
        self.leftovers = Leftovers(database)
        self.retention = Retention(database)
        self.rollups = Rollups(database)
        self.shells = Shells(database)
        self.workers = Workers(hot, database, limits=limits)
        self.workspaces = Workspaces(database)

    async def server(self) -> str:
        """Name the database and its version, such as `PostgreSQL 18.6`."""
        return str(await self._database.scalar(select(server_name())))

    async def connections(self) -> Connections | None:
        """Say how many connections the server takes and has; None for a file."""
        return None if self.dialect == "sqlite" else await read_connections(self._database)

    async def violations(self) -> list[str]:
        """Say which rows break the schema; a restore, or somebody who switched its checks off, may have brought them."""
        return await violations(self._database)

    @asynccontextmanager
    async def cut_off_after(self, seconds: float) -> AsyncIterator[None]:
        """If what is done inside takes that long, close all connections to the server and make no others."""
        try:
            async with answered_within(seconds):
                yield
        except TimeoutError:
            self._hot.cut_off()
            self._database.cut_off()

    async def close(self) -> None:
        """Wait for what is being written, then let go of every connection."""
        self._database.guard()
        await self.queue.close()
        await self.reports.close()
        await self.workers.close()
        await self._hot.close()
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
