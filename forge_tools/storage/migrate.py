"""Migrations: bring a database to this code's tables, or back."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, func, inspect

from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, SchemaVersionError
from forge_tools.storage.address import Address
from forge_tools.storage.batching import ConflictError
from forge_tools.storage.engine import create_engine
from forge_tools.storage.faults import translated, unknown_version
from forge_tools.storage.models import rollup_figures
from forge_tools.storage.statements import settings

T = TypeVar("T")

DIRECT = (
    "Migrations run on a direct connection, and this one leads through a pooler. Name the server itself, as the owner of the tables: "
    "FORGE_DATABASE_MIGRATION_URL=postgresql://..."
)

CONNECT_SECONDS = 5.0

LOCK_SECONDS = 300.0
"""How long a process tries to be the only one that migrates."""
LOCK_PAUSE = 0.2


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database at `url` up to `revision`; an SQLite file, and its folder, are made where there are none.

    Raises:
        ConfigurationError: the URL leads to a pooler.
        SchemaVersionError: this code does not know the database's version, or has no such revision.
        DatabaseCorruptError: the file is no database.
        DatabaseUnavailableError: it cannot be reached, or somebody else migrates it for too long.
    """
    _require_direct(url)
    _run(url, lambda connection: _command(connection, command.upgrade, revision), create=True)


def downgrade(url: str, revision: str) -> None:
    """Bring the database at `url` back to `revision`; `base` removes every table and what is in it."""
    _require_direct(url)
    _run(url, lambda connection: _command(connection, command.downgrade, revision))


def current(url: str) -> str | None:
    """The revision that the database at `url` is at; None before the first."""
    address = Address.parse(url)
    if address.dialect == "sqlite" and not Path(address.target).exists():
        return None
    return _run(url, _revision)


def head() -> str:
    """The newest revision that this code knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None  # noqa: S101 the package ships at least one migration
    return revision


def _require_direct(url: str) -> None:
    if Address.parse(url).is_pooled:
        raise ConfigurationError(DIRECT)


def _run(url: str, work: Callable[[Connection], T], *, create: bool = False) -> T:
    """Run `work` in one transaction, on a thread of its own: the caller may be inside an event loop."""
    address = Address.parse(url)
    if create and address.dialect == "sqlite":
        _make_folder(Path(address.target).parent)
    with ThreadPoolExecutor(1, thread_name_prefix="forge-migrate") as thread:
        return thread.submit(lambda: asyncio.run(_transact(address, work, create=create))).result()


async def _transact(address: Address, work: Callable[[Connection], T], *, create: bool) -> T:
    engine = create_engine(address, connect_timeout=CONNECT_SECONDS, create=create)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                with translated(address.shown):
                    async with engine.execution_options(forge_write=create).begin() as connection:
                        return await connection.run_sync(work)
            except ConflictError:  # of SQLite, whose lock for writing is the one under which migrations run
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(LOCK_PAUSE)
    finally:
        await engine.dispose()


def hold(connection: Connection) -> None:
    """Have this transaction be the only one that migrates, for as long as it takes.

    The lock is tried and never waited for: a statement that waits keeps old rows, and what others build, from being finished.

    Raises:
        ConfigurationError: a pooler is between.
        DatabaseUnavailableError: another process keeps the lock.
    """
    if connection.dialect.name != "postgresql":
        return
    driver: Any = connection.connection.driver_connection
    if driver.get_server_pid() != connection.scalar(func.pg_backend_pid()):
        raise ConfigurationError(DIRECT)
    prepare, try_to = settings("postgresql", "migrate")
    connection.exec_driver_sql(prepare)
    deadline = time.monotonic() + LOCK_SECONDS
    while not connection.exec_driver_sql(try_to).scalar():
        if time.monotonic() > deadline:
            raise DatabaseUnavailableError(f"{_holder(connection)} Wait until it is done, and try again.")
        time.sleep(LOCK_PAUSE)


def _holder(connection: Connection) -> str:
    [holder] = settings("postgresql", "who_migrates")
    held = connection.exec_driver_sql(holder).first()
    if held is None:
        return f"Others migrated this database in turns for {LOCK_SECONDS:g} s."
    pid, user, host, seconds = held
    since = "" if seconds is None else f", for {seconds:.0f} s"  # other roles do not see it
    return (
        f"Another process migrates this database{since}: it is connected as {user} from {host or 'a place that only that role sees'}, and "
        f"`SELECT pg_terminate_backend({pid})` would end it."
    )


def _command(connection: Connection, change: Callable[[Config, str], None], revision: str) -> None:
    hold(connection)
    _refuse_unknown(connection)
    config = _config()
    config.attributes["connection"] = connection
    try:
        change(config, revision)
    except CommandError as error:
        raise SchemaVersionError(f"Cannot migrate to '{revision}': {error}. This code knows up to {head()}.") from error


def _refuse_unknown(connection: Connection) -> None:
    revision = _revision(connection)
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    # The number alone does not tell: before the first release there were others of the same.
    if revision is not None and (revision not in known or not inspect(connection).has_table(rollup_figures.name)):
        raise unknown_version("The database", revision)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise DatabaseUnavailableError(f"The folder {folder} for the database cannot be made: {error}.") from error


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    return config


def _scripts() -> Path:
    """The migrations: beside this file in an installed package, at the root of the repository in a checkout."""
    beside = Path(__file__).with_name("migrations")
    for place in (beside, Path(__file__).parents[2] / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise ConfigurationError(f"The migrations are missing from {beside}; install forge-tools again.")
