"""Migrations: bring a database to this code's tables, or back; and the steps of revisions that change large tables."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from alembic import command, op
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, CursorResult, func, inspect, text

from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, SchemaVersionError
from forge_tools.storage.connection.database import create_engine, explained, migration_engine
from forge_tools.storage.connection.drivers import Address
from forge_tools.storage.connection.faults import ConflictError, ForbiddenError, is_usable, unknown_version
from forge_tools.storage.sqlalchemy_engine import AsyncEngine
from forge_tools.storage.sqlalchemy_tables import check_name, domain_name, rollup_figures
from forge_tools.storage.statements import settings

T = TypeVar("T")

DIRECT = (
    "Migrations need a direct connection, but this one leads through a pooler. Name the server itself, as the owner of the tables: "
    "FORGE_DATABASE_MIGRATION_URL=postgresql://..."
)

OWNER = (
    "Migrations run as the role that owns the tables. Name it in FORGE_DATABASE_MIGRATION_URL=postgresql://OWNER@..."
)

CONNECT_SECONDS = 5.0

LOCK_SECONDS = 300.0
"""How long a process tries to become the only one that migrates."""
LOCK_PAUSE = 0.2

TRIES = 75
"""How often to try when other transactions block it: for about five minutes."""
TRY_PAUSE = 2.0
"""As long as one try may have kept calls waiting."""


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database at `url` up to `revision`, creating an SQLite file and its folder if there are none.

    A database that newer code migrated, and that this code can work on, is left as it is.

    Raises:
        ConfigurationError: the URL leads to a pooler, or its role does not own the tables.
        SchemaVersionError: this code does not know the database's version, or has no such revision.
        DatabaseCorruptError: the file is not a database.
        DatabaseUnavailableError: it is unreachable, somebody else migrates it for too long, or others keep blocking it.
    """
    address = Address.parse(url)
    if address.dialect == "sqlite":
        folder = Path(address.target).parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = f"The folder {folder} for the database cannot be created: {error}."
            raise DatabaseUnavailableError(why) from error
    _migrate(url, command.upgrade, revision)


def downgrade(url: str, revision: str) -> None:
    """Bring the database at `url` back to `revision`; `base` removes every table with its contents."""
    Address.parse(url).require_file()
    _migrate(url, command.downgrade, revision)


def current(url: str) -> str | None:
    """Return the revision of the database at `url`; None before the first."""
    address = Address.parse(url)
    if address.dialect == "sqlite" and not Path(address.target).exists():
        return None
    return _run(create_engine, address, _revision)


def head() -> str:
    return _known()[0]


def configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    return config


def alone(url: str, work: Callable[[Connection], None]) -> None:
    """Run `work` as the only process that migrates the database at `url`.

    On PostgreSQL it begins outside a transaction, under a lock that ends with the connection; on SQLite in the only
    transaction that writes, which keeps all that it does, or nothing.
    """
    address = Address.parse(url)
    if address.is_pooled:
        raise ConfigurationError(DIRECT)

    def work_alone(connection: Connection) -> None:
        if address.dialect == "postgresql":
            _lock(connection)
        work(connection)
        connection.commit()

    _run(migration_engine, address, work_alone)


def _run(make: Callable[..., AsyncEngine], address: Address, work: Callable[[Connection], T]) -> T:
    """Run `work` on its own thread: the caller may be inside an event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="forge-migrate") as thread:
        return thread.submit(lambda: asyncio.run(_connected(make, address, work))).result()


async def _connected(make: Callable[..., AsyncEngine], address: Address, work: Callable[[Connection], T]) -> T:
    engine = make(address, connect_timeout=CONNECT_SECONDS)
    try:
        for remaining in reversed(range(TRIES)):
            try:
                with explained(address.shown):
                    async with engine.connect() as connection:
                        return await connection.run_sync(work)
            except ForbiddenError as error:
                raise ConfigurationError(f"{error.refused}. {OWNER}") from error
            except ConflictError as conflict:
                if not remaining:
                    said = f"other transactions kept conflicting with the migration. Try again when there are fewer of them: {conflict}"
                    raise DatabaseUnavailableError(f"{address.shown}: {said}") from conflict
                await asyncio.sleep(TRY_PAUSE)
    finally:
        await engine.dispose()
    raise AssertionError("unreachable")


def _lock(connection: Connection) -> None:
    """Make this connection the only one that migrates, for as long as it lasts.

    The lock is tried, never waited for: a waiting statement would hold back the removal of old rows, and index builds.
    """
    driver: Any = connection.connection.driver_connection
    if driver.get_server_pid() != connection.scalar(func.pg_backend_pid()):
        raise ConfigurationError(DIRECT)
    [try_to] = settings("postgresql", "migrate")
    deadline = time.monotonic() + LOCK_SECONDS
    while not connection.exec_driver_sql(try_to).scalar():
        if time.monotonic() > deadline:
            raise DatabaseUnavailableError(f"{_holder(connection)} Wait until it is done, and try again.")
        connection.rollback()
        time.sleep(LOCK_PAUSE)
    connection.rollback()


def _holder(connection: Connection) -> str:
    [holder] = settings("postgresql", "who_migrates")
    held = connection.exec_driver_sql(holder).first()
    if held is None:
        return f"Other processes migrated this database in turn for {LOCK_SECONDS:g} s."
    pid, user, host, seconds = held
    since = "" if seconds is None else f", for {seconds:.0f} s"  # other roles do not see it
    return (
        f"Another process is migrating this database{since}: it is connected as {user} from {host or 'a host that only that role can see'}, and "
        f"`SELECT pg_terminate_backend({pid})` would end it."
    )


def _migrate(url: str, change: Callable[[Config, str], None], revision: str) -> None:
    target = _absolute(url, revision)
    alone(url, lambda connection: _change(connection, change, target))


def _absolute(url: str, revision: str) -> str:
    """Return the revision that relative steps such as `-2` lead to: steps that are retried would go too far."""
    if not re.fullmatch(r"[+-]\d+", revision):
        return revision
    chain = [*_known(), "base"]
    at = current(url) or "base"
    place = chain.index(at) - int(revision) if at in chain else -1
    return chain[place] if 0 <= place < len(chain) else revision


def _change(connection: Connection, change: Callable[[Config, str], None], revision: str) -> None:
    """Migrate; on PostgreSQL each revision is its own transaction, which Alembic begins only outside another one."""
    is_newer = _is_newer(connection)
    if connection.dialect.name == "postgresql":
        _require_utf8(connection)
        connection.rollback()
    if is_newer and revision == "head":
        return
    config = configuration()
    config.attributes["connection"] = connection
    try:
        change(config, revision)
    except CommandError as error:
        raise SchemaVersionError(f"Cannot migrate to '{revision}': {error}. This code knows up to {head()}.") from error


def _require_utf8(connection: Connection) -> None:
    """Refuse an empty database in another encoding: some texts of calls could not be stored there, or would be cut."""
    name, encoding = connection.execute(text("SELECT current_database(), current_setting('server_encoding')")).one()
    if encoding != "UTF8" and _revision(connection) is None:
        way_out = f"CREATE DATABASE {connection.dialect.identifier_preparer.quote(name)} ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
        raise ConfigurationError(
            f"The database has the encoding {encoding}; calls hold any text. Make it anew: {way_out}"
        )


def _is_newer(connection: Connection) -> bool:
    """Return whether newer code migrated it, and this code can still work on it."""
    revision = _revision(connection)
    known = _known()
    # The number alone is not enough: before the first release there were others with the same number.
    if revision is None or (revision in known and inspect(connection).has_table(rollup_figures.name)):
        return False
    if revision in known or not is_usable(revision):
        raise unknown_version("The database", revision)
    return True


def _known() -> list[str]:
    """List the revisions that this code knows, the newest first."""
    return [script.revision for script in ScriptDirectory.from_config(configuration()).walk_revisions()]


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _scripts() -> Path:
    """Return the folder of migrations: beside this file when installed, at the repository's root in a checkout."""
    beside = Path(__file__).with_name("migrations")
    for place in (beside, Path(__file__).parents[2] / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise ConfigurationError(f"The migrations are missing from {beside}; install forge-tools again.")


# What a revision does to a large table while calls are written to it; CONTRIBUTING.md says how to combine the steps.


def concurrent_index(
    name: str, table: str, columns: Sequence[str], *, where: str | None = None, unique: bool = False
) -> None:
    """Create an index without blocking writers. It leaves the transaction, so its revision changes nothing before it.

    It may be repeated: what a killed attempt left is dropped and created again.
    """
    condition = None if where is None else text(where)
    options: dict[str, Any] = {"unique": unique, "sqlite_where": condition, "postgresql_where": condition}
    if not _is_postgres():
        op.create_index(name, table, columns, **options)
        return
    if _ask("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").scalar():
        raise RuntimeError(f"Create {name} in its own revision: everything before it would be repeated after a crash.")
    with op.get_context().autocommit_block():
        _ask("SET lock_timeout = 0")  # it waits for older transactions, but blocks nobody meanwhile
        if _ask(f"SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{name}')").scalar():
            _ask(f"DROP INDEX CONCURRENTLY {name}")
        op.create_index(name, table, columns, postgresql_concurrently=True, if_not_exists=True, **options)
        _ask("RESET lock_timeout")


def checked_later(table: str, column: str, rule: str, *, sqlite: str | None = None) -> None:
    """Set the rule of a column; on PostgreSQL only for new rows, until a later revision calls `validated`.

    SQLite checks every row now. `sqlite` is the rule in its dialect, if that differs. On PostgreSQL this is a CHECK of the
    table: a new column with a domain would rewrite the table, and validating a domain would block writers.
    """
    name = check_name(table, column)
    if _is_postgres():
        unchecked(table, column)
        _ask(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({rule}) NOT VALID")
    else:
        _remake(table, name, f"CONSTRAINT {name} CHECK ({sqlite or rule})")


def validated(table: str, column: str) -> None:
    """Check that earlier rows also satisfy the CHECK of a column; this blocks nobody."""
    if _is_postgres():
        _ask(f"ALTER TABLE {table} VALIDATE CONSTRAINT {check_name(table, column)}")


def unchecked(table: str, column: str) -> None:
    """Drop the rule of a column; SQLite cannot drop a column that has one."""
    name = check_name(table, column)
    if _is_postgres():
        _ask(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}")
        domain = domain_name(table, column)
        if _ask(f"SELECT to_regtype('{domain}')").scalar() is not None:
            _ask(f"ALTER DOMAIN {domain} DROP CONSTRAINT IF EXISTS {name}")
    else:
        _remake(table, name)


def _is_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _ask(statement: str) -> CursorResult[Any]:
    return op.get_bind().exec_driver_sql(statement)


def _remake(table: str, without: str, *added: str) -> None:
    """Recreate a table on SQLite, which cannot alter constraints, with its rows, indexes, next number; views stay."""
    of_table = f"FROM sqlite_schema WHERE tbl_name = '{table}' AND sql IS NOT NULL"
    definition = _ask(f"SELECT sql {of_table} AND type = 'table'").scalar_one()
    indexes = _ask(f"SELECT sql {of_table} AND type = 'index'").scalars().all()
    parts, _, options = definition.rpartition(")")
    kept = "\n".join(line for line in parts.splitlines() if f"CONSTRAINT {without} " not in line)
    parts = ", \n\t".join((kept.rstrip(", \n"), *added))
    for statement in (
        "PRAGMA legacy_alter_table = ON",  # otherwise views would follow the old table
        f"ALTER TABLE {table} RENAME TO old_{table}",
        f"{parts}\n){options}",
        f"INSERT INTO {table} SELECT * FROM old_{table}",
        # The copy would number on from its last row, but a deleted row's number is never used again.
        f"DELETE FROM sqlite_sequence WHERE name = '{table}'",
        f"UPDATE sqlite_sequence SET name = '{table}' WHERE name = 'old_{table}'",
        f"DROP TABLE old_{table}",
        *indexes,
        "PRAGMA legacy_alter_table = OFF",
    ):
        _ask(statement)
