"""The example of migrations, run by the product's own code: beside calls that go on, killed at every step, and back."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from alembic import op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, SchemaVersionError, UnstorableRowError
from forge_tools.model import ExecutionStatus
from forge_tools.storage import Store, migrate, open_store
from forge_tools.storage.connection import faults
from forge_tools.storage.migrate import checked_later, concurrent_index, unchecked, validated
from tests.contract.calls import UNKNOWN, call, finished, statuses, submitted
from tests.contract.migrations_example import ADDED, OURS, REMOVED, VALIDATED, known
from tests.e2e.cli_driver import warm_command
from tests.fleet import ROOT
from tests.migrated import look, migrated, postgres_template, sqlite_template
from tests.services import GivenPostgres, PostgresServer
from tests.waiting import reached

HISTORY = 3_000
"""Calls that are there before."""

KILLED = """
import os, signal, sys
from itertools import count
from sqlalchemy import Engine, event
from forge_tools.storage import migrate
from tests.contract.migrations_example import REMOVED, known

url, last = sys.argv[1], int(sys.argv[2])
steps = count(1)

def step(*_):
    if next(steps) == last:
        os.kill(os.getpid(), signal.SIGKILL)

@event.listens_for(Engine, "before_cursor_execute")
def statement(connection, cursor, said, *_):
    if not said.lstrip().startswith(("SELECT", "PRAGMA", "BEGIN")):
        step()

event.listen(Engine, "commit", step)
migrate.configuration = known
migrate.upgrade(url, REMOVED)
"""

WAITS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE"
)
LONG_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM executions"
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('executions_by_tenant')"
READS = "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {0}"


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer | GivenPostgres) -> None:
    """The templates, which other tests copy as well, are made without it."""
    sqlite_template()
    postgres_template(postgres)
    monkeypatch.setattr(migrate, "configuration", known)


def tables(url: str) -> Any:
    """What a database has of columns, checks, indexes and views, and which are valid."""

    def found(connection: Connection) -> list[str]:
        if connection.dialect.name == "sqlite":
            rows = connection.execute(text("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"))
        else:
            columns = "SELECT table_name || column_name || data_type || is_nullable FROM information_schema.columns WHERE table_schema = 'public'"
            checks = "SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint"
            indexes = "SELECT pg_get_indexdef(indexrelid) || indisvalid FROM pg_index JOIN pg_class ON oid = indexrelid AND relnamespace = 'public'::regnamespace"
            rows = connection.execute(text(f"{columns} UNION ALL {checks} UNION ALL {indexes}"))
        return sorted(" ".join(row[0].split()) for row in rows)

    return look(url, found)


@asynccontextmanager
async def calls_going_on(store: Store) -> AsyncIterator[list[str]]:
    """Calls are submitted, claimed and finished meanwhile and a little longer, and each gets through; gives the ids of those that have."""
    ids: list[str] = []

    async def work() -> None:
        while True:  # no deadline: it ends with the task
            id_ = await submitted(store, reply_to="channel")
            await finished(store, [id_])
            ids.append(id_)

    working = asyncio.create_task(work())
    try:
        yield ids
        await more(ids, working)
    finally:
        working.cancel()
        await asyncio.wait([working])
    assert working.cancelled(), working.exception()
    assert set((await statuses(store, ids)).values()) == {ExecutionStatus.SUCCEEDED}


async def more(ids: list[str], working: "asyncio.Task[None] | None" = None) -> None:
    before = len(ids)
    await reached(lambda: len(ids) > before + 5 or (working and working.done()))


async def test_older_code_goes_on_while_all_is_added_beside_it(migrated_url: str) -> None:
    async with await open_store(migrated_url) as store:
        await store.queue.submit_many([call() for _ in range(HISTORY)])
        async with calls_going_on(store) as ids:
            await more(ids)
            await asyncio.to_thread(migrate.upgrade, migrated_url, VALIDATED)
        async with await open_store(migrated_url) as opened, calls_going_on(opened) as ids:
            await more(ids)
            assert (await opened.history.get(ids[0])).tool == "Grep"


async def test_what_is_removed_ends_older_code_and_no_other(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await asyncio.to_thread(migrate.upgrade, migrated_url)
    assert await asyncio.to_thread(migrate.current, migrated_url) == REMOVED
    with pytest.raises(SchemaVersionError, match=f"is at version {REMOVED}, .*newer forge-tools"):
        await open_store(migrated_url)
    monkeypatch.setattr(faults, "SCHEMA_REVISION", VALIDATED)
    await (await open_store(migrated_url)).close()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_what_was_killed_at_any_step_is_done_by_the_next_one(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    copies = {"sqlite": sqlite_copies, "postgres": postgres_copies}[database](request, tmp_path)
    for step, url in zip(range(1, 100), copies, strict=False):
        done = warm_command().run(["-c", KILLED, url, str(step)], cwd=ROOT, env=os.environ)
        if not done.returncode:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert database == "postgres" or migrate.current(url) == OURS  # of a file all is changed, or nothing
        migrate.upgrade(url, REMOVED)
        assert migrate.current(url) == REMOVED
        if step == 1:
            whole = tables(url)
        assert tables(url) == whole
    assert step > 12


def sqlite_copies(_: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    for number in count():
        yield migrated(f"sqlite:///{tmp_path / f'{number}.db'}")


def postgres_copies(request: pytest.FixtureRequest, _: Path) -> Iterator[str]:
    postgres = request.getfixturevalue("postgres")
    for _number in count():
        url = postgres.create_database(postgres_template(postgres))
        try:
            yield url
        finally:
            postgres.drop_database(url)


def test_of_several_upgrades_at_once_each_finds_it_done(migrated_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(migrate.upgrade, migrated_url) for _ in range(4)]:
            done.result()
    assert migrate.current(migrated_url) == REMOVED


def test_the_way_back_leads_to_the_same_tables(migrated_url: str) -> None:
    def columns(connection: Connection) -> list[str]:
        return sorted(column["name"] for column in inspect(connection).get_columns("executions"))

    before, names = tables(migrated_url), look(migrated_url, columns)
    migrate.upgrade(migrated_url, VALIDATED)
    assert tables(migrated_url) != before
    migrate.downgrade(migrated_url, OURS)
    assert tables(migrated_url) == before
    migrate.upgrade(migrated_url)
    migrate.downgrade(migrated_url, OURS)
    assert look(migrated_url, columns) == names


async def test_a_rule_holds_of_new_rows_at_once(migrated_url: str) -> None:
    async with await open_store(migrated_url) as store:
        await submitted(store)
        await asyncio.to_thread(migrate.upgrade, migrated_url, ADDED)
        with pytest.raises(UnstorableRowError, match="executions_tenant_check"):
            await store.database.write(lambda each: each.exec_driver_sql("UPDATE executions SET tenant = ''"))


async def test_a_rule_that_changes_leaves_its_domain_for_a_check_of_the_table(migrated_postgres: str) -> None:
    def attempts(number: int) -> Callable[[Connection], None]:
        return lambda each: each.exec_driver_sql(f"UPDATE execution_queue SET attempt = {number}")

    def steps(connection: Connection) -> None:
        checked_later("execution_queue", "attempt", "attempt >= -2")
        attempts(-2)(connection)
        validated("execution_queue", "attempt")
        unchecked("execution_queue", "pid")

    async with await open_store(migrated_postgres) as store:
        await submitted(store)
        await asyncio.to_thread(change, migrated_postgres, steps)
        with pytest.raises(UnstorableRowError, match="execution_queue_attempt_check"):
            await store.database.write(attempts(-3))
        assert await store.violations() == ["a missing check of execution_queue.pid"]


@pytest.fixture
async def reader(migrated_postgres: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that reads calls in one long transaction, for the end of which migrations wait."""
    connection = await asyncpg.connect(migrated_postgres)
    await connection.execute(LONG_READ)
    yield connection
    await connection.close()


async def test_a_column_whose_table_is_read_for_long_keeps_no_call_waiting(
    migrated_postgres: str, reader: asyncpg.Connection, watcher: asyncpg.Connection
) -> None:
    async with await open_store(migrated_postgres) as store, calls_going_on(store) as ids:
        upgrading = asyncio.create_task(asyncio.to_thread(migrate.upgrade, migrated_postgres, ADDED))
        await reached(lambda: watcher.fetchval(f"{WAITS} 'ALTER TABLE%'"))
        await more(ids)
        assert not upgrading.done()
        await reader.execute("COMMIT")
        await upgrading


async def test_steps_that_are_tried_again_lead_no_further(
    migrated_postgres: str, reader: asyncpg.Connection, watcher: asyncpg.Connection
) -> None:
    await reader.execute("COMMIT")
    await asyncio.to_thread(migrate.upgrade, migrated_postgres, VALIDATED)
    await reader.execute(LONG_READ)
    going_back = asyncio.create_task(asyncio.to_thread(migrate.downgrade, migrated_postgres, "-2"))
    first = await reached(lambda: watcher.fetchval(f"{WAITS} '%DROP INDEX%'"))
    await reached(lambda: watcher.fetchval(f"{WAITS} '%DROP INDEX%' AND pid != {first}"))
    await reader.execute("COMMIT")
    await going_back
    assert await asyncio.to_thread(migrate.current, migrated_postgres) == ADDED


async def test_an_index_waits_as_long_as_it_has_to_and_keeps_no_call_waiting(
    migrated_postgres: str, reader: asyncpg.Connection, watcher: asyncpg.Connection
) -> None:
    await reader.execute("COMMIT")
    await asyncio.to_thread(migrate.upgrade, migrated_postgres, ADDED)
    await watcher.execute(f"ALTER DATABASE {urlsplit(migrated_postgres).path[1:]} SET statement_timeout = '100ms'")
    await reader.execute(LONG_READ)
    upgrading = asyncio.create_task(asyncio.to_thread(migrate.upgrade, migrated_postgres))
    await reached(lambda: watcher.fetchval(f"{WAITS} 'CREATE INDEX%' AND clock_timestamp() - query_start > '1.5 s'"))
    async with await open_store(migrated_postgres) as store, calls_going_on(store) as ids:
        await more(ids)
        assert not upgrading.done()
    await reader.execute("COMMIT")
    await upgrading
    assert await watcher.fetchval(IS_VALID)


async def test_an_index_that_a_crash_left_half_made_is_made_again(
    migrated_postgres: str, reader: asyncpg.Connection, watcher: asyncpg.Connection
) -> None:
    await reader.execute("COMMIT")
    await asyncio.to_thread(migrate.upgrade, migrated_postgres, ADDED)
    await reader.execute(LONG_READ)
    upgrading = asyncio.create_task(asyncio.to_thread(migrate.upgrade, migrated_postgres))
    pid = await reached(lambda: watcher.fetchval(f"{WAITS} 'CREATE INDEX%'"))
    await watcher.execute(f"SELECT pg_terminate_backend({pid})")
    with pytest.raises(DatabaseUnavailableError):
        await upgrading
    await reader.execute("COMMIT")
    assert await watcher.fetchval(IS_VALID) is False
    assert await asyncio.to_thread(migrate.current, migrated_postgres) == ADDED

    await asyncio.to_thread(migrate.upgrade, migrated_postgres)
    assert await watcher.fetchval(IS_VALID)
    assert await asyncio.to_thread(migrate.current, migrated_postgres) == REMOVED


@pytest.mark.parametrize(
    ("granted", "refused"), [("", "permission denied"), (READS, "must be owner of table executions")]
)
async def test_a_role_that_does_not_own_the_tables_hears_who_migrates(
    migrated_postgres: str, watcher: asyncpg.Connection, granted: str, refused: str
) -> None:
    parts, role = urlsplit(migrated_postgres), f"guest_{secrets.token_hex(4)}"
    await watcher.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'guest'; {granted.format(role)}")
    theirs = urlunsplit(parts._replace(netloc=f"{role}:guest@{parts.hostname}:{parts.port}"))
    with pytest.raises(ConfigurationError, match=f"{refused}.*role that owns the tables.*FORGE_DATABASE_MIGRATION_URL"):
        await asyncio.to_thread(migrate.upgrade, theirs)
    await watcher.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def change(url: str, steps: Callable[[Connection], None]) -> None:
    """Run what stands in a migration."""

    def run(connection: Connection) -> None:
        with Operations.context(MigrationContext.configure(connection)):
            steps(connection)

    migrate.alone(url, run)


def test_what_stands_before_an_index_in_its_revision_is_refused(migrated_postgres: str) -> None:
    def steps(_: Connection) -> None:
        op.execute("ALTER TABLE executions ADD COLUMN tenant text")
        concurrent_index("executions_by_tenant", "executions", ["tenant"])

    with pytest.raises(RuntimeError, match="executions_by_tenant in its own revision"):
        change(migrated_postgres, steps)


def test_a_table_of_sqlite_that_is_made_again_gives_no_number_twice(migrated_sqlite: str) -> None:
    event = f"INSERT INTO execution_events (execution_id, at, kind, actor, detail) VALUES ('{UNKNOWN}', forge_now(0), 'lost', 'me', '{{}}')"

    def steps(connection: Connection) -> None:
        connection.exec_driver_sql(event)
        connection.exec_driver_sql("DELETE FROM execution_events")
        checked_later("execution_events", "kind", "length(kind) < 10")
        unchecked("execution_events", "detail")
        connection.exec_driver_sql(event.replace("'{}'", "'no JSON'"))
        assert connection.exec_driver_sql("SELECT id FROM execution_events").scalar_one() == 2

    change(migrated_sqlite, steps)
    [text_of] = [one for one in tables(migrated_sqlite) if one.startswith("CREATE TABLE execution_events")]
    assert text_of.endswith("CONSTRAINT execution_events_kind_check CHECK (length(kind) < 10) ) STRICT")
