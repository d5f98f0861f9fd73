"""The Store: the parts of one database, opened, checked and closed together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forge_tools.deadlines import answered_within
from forge_tools.model.execution import Outcome
from forge_tools.storage.connection.drivers import Address, Owner
from forge_tools.storage.connection.faults import require_usable
from forge_tools.storage.connection.pool import Connections
from forge_tools.storage.directory import Directories
from forge_tools.storage.queue.batcher import Limits
from forge_tools.storage.queue.postgres import PostgresHotPath
from forge_tools.storage.queue.queue import ExecutionQueue, HotPath
from forge_tools.storage.queue.sqlite import SqliteHotPath

if TYPE_CHECKING:
    from forge_tools.storage.artifacts import StoredArtifacts
    from forge_tools.storage.audit import AuditChain
    from forge_tools.storage.catalogue import Catalogue, EncryptionKeys
    from forge_tools.storage.connection.database import Database
    from forge_tools.storage.documents import Documents
    from forge_tools.storage.history.history import History
    from forge_tools.storage.history.overview import Overviews
    from forge_tools.storage.history.rollups import Rollups
    from forge_tools.storage.queue.transitions import Transitions
    from forge_tools.storage.queue.workers import Workers
    from forge_tools.storage.reports import Reports
    from forge_tools.storage.retention import Leftovers, Retention
    from forge_tools.storage.shells import Shells
    from forge_tools.storage.workspaces import Workspaces


async def open_store(
    url: str,
    *,
    connect_timeout: float = 3.0,
    patience: float | None = 3.0,
    deadline: float | None = None,
    artifact_dir: Path | None = None,
) -> "Store":
    """Connect to the database at `url` and check that its tables are this version's.

    `patience` is how many seconds hot statements are retried on an unreachable database (None: for ever). `deadline` is
    how many seconds a caller waits at most, except for reads of all history; None: up to 13. `artifact_dir` is the
    folder that holds the bytes of artifacts; without it they are in rows.

    Raises:
        ConfigurationError: the URL cannot be used.
        DatabaseUnavailableError: it does not answer within `connect_timeout` seconds.
        SchemaVersionError: it is not migrated, or was migrated by newer code.
        DatabaseCorruptError: the file is not a database.
    """
    address = Address.parse(url)
    address.require_file()
    limits = Limits(patience=patience if deadline is None else deadline)
    if address.dialect == "postgresql" and deadline is not None:  # a file answers or fails by itself
        limits = Limits(patience=None, deadline=deadline)
    store = Store(address, connect_timeout=connect_timeout, limits=limits, artifact_dir=artifact_dir)
    try:
        await store.check()
    except BaseException:
        await store.close()
        raise
    return store


def _loaded(name: str) -> Any:
    """Return what needs SQLAlchemy, by module and name, loaded on first use."""
    module, _, kind = name.rpartition(".")
    return getattr(import_module(f"forge_tools.storage.{module}"), kind)


def _part(name: str, *more: str) -> Any:
    """Return a part made on first use, of the database and `more` attributes of the Store."""
    return cached_property(lambda store: _loaded(name)(store.database, *(getattr(store, one) for one in more)))


class Store:
    """The parts of one database. Belongs to the process and the event loop that opened it.

    The parts that calls need, and clients before them, are here at once, and use only the drivers; the other parts load
    SQLAlchemy, with its own connections, on first use.
    """

    artifacts: "StoredArtifacts" = _part("artifacts.StoredArtifacts", "_artifact_dir")
    catalogue: "Catalogue" = _part("catalogue.Catalogue", "directories")
    workers: "Workers" = _part("queue.workers.Workers", "_hot", "_limits")
    history: "History" = _part("history.history.History")
    audit: "AuditChain" = _part("audit.AuditChain")
    overviews: "Overviews" = _part("history.overview.Overviews")
    reports: "Reports" = _part("reports.Reports")
    documents: "Documents" = _part("documents.Documents")
    encryption_keys: "EncryptionKeys" = _part("catalogue.EncryptionKeys")
    leftovers: "Leftovers" = _part("retention.Leftovers")
    retention: "Retention" = _part("retention.Retention")
    rollups: "Rollups" = _part("history.rollups.Rollups")
    shells: "Shells" = _part("shells.Shells")
    transitions: "Transitions" = _part("queue.transitions.Transitions")
    workspaces: "Workspaces" = _part("workspaces.Workspaces")

    def __init__(
        self, address: Address, *, connect_timeout: float, limits: Limits, artifact_dir: Path | None = None
    ) -> None:
        self._address = address
        self._connect_timeout = connect_timeout
        self._limits = limits
        self._artifact_dir = artifact_dir
        self._is_cut_off = False
        self._owner = owner = Owner()
        self._hot: HotPath
        if address.dialect == "sqlite":
            self._hot = SqliteHotPath(address, owner)
        else:
            self._hot = PostgresHotPath(address, owner, connect_timeout=connect_timeout, deadline=limits.deadline)
        self.dialect: str = address.dialect
        self.queue = ExecutionQueue(self._hot, self._settle, limits=limits)
        self.directories = Directories(self._hot.read)

    @cached_property
    def database(self) -> "Database":
        """The connections of all parts that load SQLAlchemy, and of statements that no part has."""
        database: Database = _loaded("connection.database.Database")(
            self._address,
            connect_timeout=self._connect_timeout,
            deadline=self._limits.deadline,
            write_lock=self._hot.write_lock,
            owner=self._owner,
        )
        if self._is_cut_off:
            database.cut_off()
        return database

    def load(self) -> None:
        """Load every part now, as a process must that goes on when it has run out of descriptors: it could load nothing then."""
        for name, part in vars(Store).items():
            if isinstance(part, cached_property):
                getattr(self, name)

    async def check(self) -> None:
        """Check that the database answers, and that this code can work on its tables: its own, or newer that allow it."""
        rows = await self._hot.read("revision")
        require_usable(self._address.shown, rows[0][0] if rows else None)

    async def server(self) -> str:
        """Name the database and its version, such as `PostgreSQL 18.6`."""
        [[name]] = await self._hot.read("server")
        return str(name)

    async def connections(self) -> Connections | None:
        """Return how many connections the server accepts and has; None for a file."""
        return None if self.dialect == "sqlite" else Connections._make(*await self._hot.read("connections"))

    async def violations(self) -> list[str]:
        """List rows that break the schema; a restore, or somebody who disabled its checks, may have introduced them."""
        found: list[str] = await _loaded("integrity.violations")(self.database)
        return found

    @asynccontextmanager
    async def cut_off_after(self, seconds: float) -> AsyncIterator[None]:
        """If the block takes that long, close all connections to the server and make no others."""
        try:
            async with answered_within(seconds):
                yield
        except TimeoutError:
            self._is_cut_off = True
            self._hot.cut_off()
            if "database" in vars(self):
                self.database.cut_off()

    async def close(self) -> None:
        """Wait for current writes, then close every connection."""
        self._owner.guard()
        await self.queue.close()
        for part in (self.reports, self.workers, self.transitions) if "database" in vars(self) else ():
            await part.close()
        await self._hot.close()
        if "database" in vars(self):
            await self.database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _settle(self, outcome: Outcome) -> bool:
        return await self.transitions.settle(outcome)  # looked up only now: they load SQLAlchemy
