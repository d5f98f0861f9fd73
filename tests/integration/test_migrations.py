"""Migrations: from nothing, forward, backward, and equal to the models, on every database."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, SchemaVersionError
from forge_tools.storage import migrate, open_store
from forge_tools.storage.connection.drivers import Address
from forge_tools.storage.sqlalchemy_tables import metadata
from forge_tools.storage.statements import settings
from forge_tools.storage.tables import SCHEMA_REVISION
from tests.contract.calls import SCOPE, submitted
from tests.migrated import look
from tests.services import GivenPostgres, PostgresServer, admin
from tests.waiting import reached, within

ROOT = Path(__file__).parents[2]


def test_from_nothing_to_the_newest_version(database_url: str) -> None:
    assert migrate.current(database_url) is None
    migrate.upgrade(database_url)
    assert migrate.current(database_url) == migrate.head() == SCHEMA_REVISION


def test_the_newest_migration_is_the_one_the_store_asks_for() -> None:
    assert migrate.head() == SCHEMA_REVISION


def test_the_first_revision_moves_with_the_models_only_while_it_is_alone() -> None:
    revisions = list(ScriptDirectory.from_config(migrate.configuration()).walk_revisions())
    first = Path(str(revisions[-1].path)).read_text()
    assert len(revisions) == 1 or "storage.models" not in first, (
        "write down the statements of 0001 before you add another"
    )


def test_migrated_tables_equal_the_models(database_url: str) -> None:
    migrate.upgrade(database_url)

    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))

    assert look(database_url, differences) == []


def test_no_table_of_calls_has_checks_for_postgres_to_plan_again_in_each_statement(fresh_postgres: str) -> None:
    migrate.upgrade(fresh_postgres)
    query = "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid != 0 AND connamespace = 'public'::regnamespace"
    assert look(fresh_postgres, lambda connection: [*connection.scalars(text(query))]) == ["execution_events_id_check"]


def test_storage_options_are_those_of_the_models(fresh_postgres: str) -> None:
    migrate.upgrade(fresh_postgres)
    query = "SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL AND relkind = 'r' AND relname IN "
    query += "('execution_queue', 'workers') ORDER BY 1"
    rows = look(fresh_postgres, lambda connection: [tuple(row) for row in connection.execute(text(query))])
    assert rows == [
        ("execution_queue", ["fillfactor=70", "autovacuum_vacuum_scale_factor=0.05"]),
        ("workers", ["fillfactor=50"]),
    ]


def test_backward_removes_everything_and_forward_works_again(database_url: str) -> None:
    migrate.upgrade(database_url)
    migrate.downgrade(database_url, "base")
    assert migrate.current(database_url) is None
    assert look(database_url, lambda connection: inspect(connection).get_table_names()) == ["alembic_version"]
    assert look(database_url, lambda connection: inspect(connection).get_view_names()) == []
    migrate.upgrade(database_url)
    assert migrate.current(database_url) == SCHEMA_REVISION


def test_every_step_can_be_gone_one_by_one(database_url: str) -> None:
    steps: list[list[str]] = []
    migrate.upgrade(database_url, "+1")
    time_left = within(60, "the steps do not lead to the newest")
    while migrate.current(database_url) != SCHEMA_REVISION and next(time_left):
        steps.append(look(database_url, definitions_of_indexes))
        migrate.upgrade(database_url, "+1")
    for before in reversed(steps):
        migrate.downgrade(database_url, "-1")
        assert look(database_url, definitions_of_indexes) == before
    migrate.downgrade(database_url, "-1")
    assert migrate.current(database_url) is None


async def test_upgrading_again_keeps_the_data_and_works_inside_a_loop(database_url: str) -> None:
    migrate.upgrade(database_url)
    async with await open_store(database_url) as store:
        await submitted(store)
    migrate.upgrade(database_url)
    async with await open_store(database_url) as store:
        assert len(await store.queue.due(SCOPE, 5)) == 1


def test_several_processes_that_upgrade_at_once_all_succeed(database_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(migrate.upgrade, database_url) for _ in range(4)]:
            done.result()
    assert migrate.current(database_url) == SCHEMA_REVISION


LOCK = settings("postgresql", "migrate")[0]
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory%' AND pid != pg_backend_pid()"
BLOCKED = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def test_an_upgrade_tries_for_its_turn_and_never_waits_in_a_statement(fresh_postgres: str) -> None:
    other = await asyncpg.connect(fresh_postgres)
    assert await other.fetchval(LOCK)
    upgrading = asyncio.create_task(asyncio.to_thread(migrate.upgrade, fresh_postgres))
    await reached(lambda: other.fetchval(WAITING))
    assert await other.fetchval(BLOCKED) == 0
    assert not upgrading.done()

    await other.close()
    await upgrading
    assert await asyncio.to_thread(migrate.current, fresh_postgres) == SCHEMA_REVISION


async def test_an_upgrade_whose_turn_does_not_come_says_who_has_it(
    fresh_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.3)
    other = await asyncpg.connect(fresh_postgres)
    assert await other.fetchval(LOCK)
    who = rf"connected as forge from 127.0.0.1, and `SELECT pg_terminate_backend\({other.get_server_pid()}\)`"
    with pytest.raises(
        DatabaseUnavailableError, match=f"Another process is migrating this database.*{who} would end it"
    ):
        await asyncio.to_thread(migrate.upgrade, fresh_postgres)
    await other.close()
    assert await asyncio.to_thread(migrate.current, fresh_postgres) is None


KILLED = """
import os, signal, sys
from alembic import op
from forge_tools.storage import migrate
op.execute = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # once the tables are made, and before the view
migrate.upgrade(sys.argv[1])
"""


def test_an_upgrade_that_is_killed_midway_leaves_nothing(database_url: str) -> None:
    argv = [sys.executable, "-c", KILLED, database_url]
    assert subprocess.run(argv, cwd=ROOT, timeout=60, check=False).returncode == -signal.SIGKILL
    assert migrate.current(database_url) is None
    assert look(database_url, lambda connection: inspect(connection).get_table_names()) == []
    migrate.upgrade(database_url)
    assert migrate.current(database_url) == SCHEMA_REVISION


def test_migrations_take_the_url_of_their_own(
    fresh_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(fresh_postgres)
    (tmp_path / "password").write_text(f"{parts.password}\n")
    monkeypatch.setenv("FORGE_DATABASE_URL", "postgresql://client:secret@127.0.0.1:9/forge")
    monkeypatch.setenv("FORGE_DATABASE_POOLER", "transaction")
    monkeypatch.setenv("FORGE_DATABASE_MIGRATION_URL", fresh_postgres.replace(f":{parts.password}@", "@"))
    monkeypatch.setenv("FORGE_DATABASE_MIGRATION_PASSWORD_FILE", str(tmp_path / "password"))
    migrate.upgrade(Settings.load().migration_database)
    assert migrate.current(fresh_postgres) == SCHEMA_REVISION


@pytest.mark.parametrize("change", [migrate.upgrade, lambda url: migrate.downgrade(url, "base")])
def test_migrations_through_a_transaction_pooler_are_refused_with_the_way_out(change: Callable[[str], None]) -> None:
    behind = Settings.load(database_url="postgresql://forge@127.0.0.1:9/forge", database_pooler="transaction")
    with pytest.raises(ConfigurationError, match=r"direct connection.*FORGE_DATABASE_MIGRATION_URL"):
        change(behind.migration_database)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_in_utf_8_is_refused_before_it_has_tables(
    fresh_postgres: str, postgres: PostgresServer | GivenPostgres, encoding: str
) -> None:
    name = urlsplit(fresh_postgres).path[1:]
    admin(postgres.url, f'DROP DATABASE "{name}"')
    admin(postgres.url, f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")

    with pytest.raises(ConfigurationError, match=f"encoding {encoding}.*CREATE DATABASE {name} ENCODING 'UTF8'"):
        migrate.upgrade(fresh_postgres)
    assert migrate.current(fresh_postgres) is None


def test_an_unknown_revision_is_named(database_url: str) -> None:
    with pytest.raises(SchemaVersionError, match=r"'0815'.*knows up to"):
        migrate.upgrade(database_url, "0815")


def test_a_migration_that_fails_leaves_nothing_behind(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr("alembic.op.execute", broken)
    with pytest.raises(RuntimeError, match="power cut"):
        migrate.upgrade(database_url)
    assert migrate.current(database_url) is None
    monkeypatch.undo()
    migrate.upgrade(database_url)


def test_a_folder_that_is_missing_is_made_private(tmp_path: Path) -> None:
    migrate.upgrade(f"sqlite:///{tmp_path / 'state' / 'home' / 'forge.db'}")
    assert (tmp_path / "state" / "home").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnavailableError, match="file/deeper"):
        migrate.upgrade(f"sqlite:///{tmp_path / 'file' / 'deeper' / 'forge.db'}")


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(DatabaseUnavailableError) as caught:
        migrate.upgrade("postgresql://forge:s3cret@127.0.0.1:9/forge")
    assert "127.0.0.1:9" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_the_alembic_command_finds_its_configuration(tmp_path: Path) -> None:
    environment = os.environ | {"FORGE_DATABASE_URL": f"sqlite:///{tmp_path / 'forge.db'}", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "alembic", "upgrade", "head"]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert migrate.current(f"sqlite:///{tmp_path / 'forge.db'}") == SCHEMA_REVISION


def definitions_of_indexes(connection: Connection) -> list[str]:
    """The indexes that migrations make by name, with the rows that they hold."""
    query = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    if connection.dialect.name == "postgresql":
        query = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename != 'alembic_version'"
    return sorted(" ".join(str(sql).split()) for sql in connection.scalars(text(query)))


def test_an_sqlite_file_that_somebody_writes_to_is_waited_for(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.connection.database.BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(Address.parse(sqlite_url).target, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as thread:
            upgrading = thread.submit(migrate.upgrade, sqlite_url)
            with pytest.raises(TimeoutError):
                upgrading.result(1)
            other.execute("COMMIT")
            upgrading.result(60)
    assert migrate.current(sqlite_url) == SCHEMA_REVISION
