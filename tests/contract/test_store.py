"""Opening, checking and closing a Store, on every database."""

import asyncio
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ForgeError, SchemaVersionError, StorageError
from forge_tools.storage import Store, migrate, open_store
from forge_tools.storage.directory import Directory
from forge_tools.storage.sqlalchemy_tables import metadata
from tests.contract.calls import SCOPE, beat, call, submit_one, submitted

ROOT = Path(__file__).parents[2]

FORKED = """
import asyncio, os, sys
from forge_tools.storage import open_store

async def main():
    async with await open_store(sys.argv[1]) as store:
        child = os.fork()
        if child == 0:
            try:
                await store.history.list()
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        print(len(await store.history.list()))

asyncio.run(main())
"""


async def test_a_store_knows_its_dialect(store: Store, migrated_url: str) -> None:
    assert store.dialect == ("sqlite" if migrated_url.startswith("sqlite") else "postgresql")
    assert (await store.server()).lower().startswith(store.dialect)


async def test_a_database_that_was_never_migrated_says_what_to_run(database_url: str) -> None:
    with pytest.raises(SchemaVersionError, match="forge-tools db upgrade"):
        await open_store(database_url)


@pytest.mark.parametrize("revision", ["0004", "0004_rollups", "9999", "0003_from_0002"])
async def test_a_database_of_another_version_is_refused_with_the_ways_out(migrated_url: str, revision: str) -> None:
    await set_revision(migrated_url, revision)
    ways_out = f"is at version {revision}, .* newer forge-tools here; .*forge-tools export.* new database"
    with pytest.raises(SchemaVersionError, match=ways_out):
        await open_store(migrated_url)
    with pytest.raises(SchemaVersionError, match=ways_out):
        migrate.upgrade(migrated_url)


async def test_code_goes_on_where_newer_tables_say_that_it_can(migrated_url: str) -> None:
    await set_revision(migrated_url, "0003_from_0001")
    migrate.upgrade(migrated_url)  # as `forge-tools up` does
    assert migrate.current(migrated_url) == "0003_from_0001"
    async with await open_store(migrated_url) as store:
        await submitted(store)
        assert len(await store.queue.due(SCOPE, 5)) == 1
    with pytest.raises(SchemaVersionError, match="Cannot migrate to 'base'"):
        migrate.downgrade(migrated_url, "base")


async def test_a_database_of_the_same_number_without_todays_tables_is_refused(migrated_url: str) -> None:
    async with await open_store(migrated_url) as store:
        await store.database.write(lambda connection: connection.exec_driver_sql("DROP TABLE rollup_figures"))
    with pytest.raises(SchemaVersionError, match=r"never released.*forge-tools export"):
        migrate.upgrade(migrated_url)


async def test_a_database_older_than_the_code_says_what_to_run(migrated_url: str) -> None:
    await set_revision(migrated_url, "0000")
    with pytest.raises(SchemaVersionError, match="forge-tools db upgrade"):
        await open_store(migrated_url)


async def test_tables_that_go_meanwhile_are_said_clearly(migrated_url: str) -> None:
    async with await open_store(migrated_url) as store:
        await asyncio.to_thread(migrate.downgrade, migrated_url, "base")
        for attempt in (submitted(store), store.history.list(), beat(store, "b"), store.transitions.sweep()):
            with pytest.raises(SchemaVersionError, match="forge-tools db upgrade"):
                await attempt


async def test_a_closed_store_refuses_work(migrated_url: str) -> None:
    store = await open_store(migrated_url)
    await store.close()
    with pytest.raises(StorageError, match="closed"):
        await submit_one(store, call())


async def test_closing_waits_for_what_is_being_written(migrated_url: str) -> None:
    store = await open_store(migrated_url)
    new = call()
    submitting = asyncio.create_task(submit_one(store, new))
    await asyncio.sleep(0)
    await store.close()
    await submitting
    async with await open_store(migrated_url) as again:
        assert [wakeup.id for wakeup in await again.queue.due(SCOPE, 5)] == [new.id]


async def test_a_store_of_another_event_loop_is_refused(migrated_url: str) -> None:
    store = await open_store(migrated_url)
    with pytest.raises(StorageError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, submitted(store))
    await store.close()


def test_a_store_that_was_inherited_over_a_fork_is_refused(migrated_url: str) -> None:
    argv = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, migrated_url]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("StorageError This Store was opened by process")
    assert second == "0"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://localhost/x",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:relative.db",
        "postgresql://u:s3cret@h:port/x",
    ],
)
async def test_a_url_that_cannot_be_used_says_which_form_can(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///|postgresql://") as caught:
        await open_store(url)
    assert "s3cret" not in str(caught.value)


async def test_every_table_of_the_models_is_there(store: Store) -> None:
    async with store.database.reading() as connection:
        for table in metadata.sorted_tables:
            assert (await connection.execute(table.select())).all() == []


async def test_sql_from_outside_reads_the_view(store: Store) -> None:
    await submitted(store)
    async with store.database.reading() as connection:
        query = "SELECT tool, status, attempt FROM tool_executions"
        [row] = await connection.exec_driver_sql(query)
    assert tuple(row) == ("Grep", "queued", 0)


async def set_revision(url: str, revision: str) -> None:
    async with await open_store(url) as store:
        statement = f"UPDATE alembic_version SET version_num = '{revision}'"
        await store.database.write(lambda connection: connection.exec_driver_sql(statement))


async def test_the_password_may_come_from_a_file_of_its_own(
    fresh_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, _, place = urlsplit(fresh_postgres).netloc.rpartition("@")
    name, _, password = user.partition(":")
    monkeypatch.setenv("FORGE_DATABASE_URL", f"postgresql://{name}@{place}{urlsplit(fresh_postgres).path}")
    with pytest.raises(ForgeError, match="password"):
        migrate.upgrade(Settings.load().database)
    (tmp_path / "password").write_text(f"{unquote(password)}\n")
    monkeypatch.setenv("FORGE_DATABASE_PASSWORD_FILE", str(tmp_path / "password"))

    migrate.upgrade(Settings.load().database)

    async with await open_store(Settings.load().database) as store:
        assert await store.history.list() == []


async def test_a_closed_store_reads_nothing(migrated_url: str) -> None:
    store = await open_store(migrated_url)
    await store.close()

    with pytest.raises(StorageError, match="The Store is closed"):
        await store.directories.read()


async def test_reads_that_wait_for_their_turn_while_the_store_closes_end_with_it(migrated_url: str) -> None:
    store = await open_store(migrated_url)
    reads = [asyncio.create_task(store.directories.read()) for _ in range(3)]
    await asyncio.sleep(0)
    await store.close()

    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {Directory, StorageError}
