"""What a SQLite file that is damaged, locked, missing or read-only does to a Store."""

import asyncio
import os
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.errors import DatabaseCorruptError, DatabaseUnavailableError, SchemaVersionError
from forge_tools.model.execution import Wakeup
from forge_tools.storage import migrate, open_store
from forge_tools.storage.connection.faults import explain
from forge_tools.storage.queue import sqlite
from tests.contract.calls import SCOPE, call, submit_one, submitted
from tests.contract.sealed import forge
from tests.full_database import Pages


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


async def test_a_file_that_is_not_a_database_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "forge.db"
    path.write_text("this is a shopping list, not a database\n" * 100)
    with pytest.raises(DatabaseCorruptError, match=r"not a database.*move the file away"):
        await open_store(f"sqlite:///{path}")
    with pytest.raises(DatabaseCorruptError):
        migrate.upgrade(f"sqlite:///{path}")
    assert path.read_text().startswith("this is a shopping list")


async def test_pages_that_are_overwritten_are_said_to_be_damaged(migrated_sqlite: str) -> None:
    path = file_of(migrated_sqlite)
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(DatabaseCorruptError, match="Restore it from a copy"):
        async with await open_store(migrated_sqlite) as store:
            await submitted(store)


async def test_a_missing_file_is_not_made_by_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "forge.db"
    with pytest.raises(SchemaVersionError, match=r"forge-tools up"):
        await open_store(f"sqlite:///{path}")
    assert not path.parent.exists()


async def test_a_path_with_odd_characters_works(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ünï code?&#%20 x.db'}"
    migrate.upgrade(url)
    async with await open_store(url) as store:
        assert await store.queue.claim([Wakeup(await submitted(store), 0)], SCOPE)
    assert (tmp_path / "ünï code?&#%20 x.db").exists()


async def test_a_short_lock_of_another_process_is_waited_for(migrated_sqlite: str) -> None:
    async with await open_store(migrated_sqlite) as store:
        other = sqlite3.connect(file_of(migrated_sqlite), isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(1.5, other.execute, ["COMMIT"])
        release.start()
        await submitted(store)
        release.join()
        other.close()


async def test_a_lock_that_stays_is_given_up_with_the_reason(
    migrated_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.storage.connection.database.BUSY_SECONDS", 0.1)
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    other = sqlite3.connect(file_of(migrated_sqlite), isolation_level=None)
    async with await open_store(migrated_sqlite, patience=0.0) as store:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(DatabaseUnavailableError, match="locked"):
            await submit_one(store, call())
        with pytest.raises(DatabaseUnavailableError, match="locked"):
            await store.transitions.sweep()
        assert time.monotonic() - began < 30
        other.execute("ROLLBACK")
        await submitted(store)
    other.close()


async def test_reading_goes_on_while_another_process_writes(migrated_sqlite: str) -> None:
    other = sqlite3.connect(file_of(migrated_sqlite), isolation_level=None)
    async with await open_store(migrated_sqlite) as store:
        id_ = await submitted(store)
        other.execute("BEGIN IMMEDIATE")
        assert (await store.history.get(id_)).id == id_
        assert await store.queue.results([id_]) == []
        assert len(await store.queue.due(SCOPE, 5)) == 1
        other.execute("ROLLBACK")
    other.close()


async def test_commits_reach_the_disk_before_they_are_acknowledged(
    migrated_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[str, int, int]] = []

    class Noted(sqlite3.Connection):
        def close(self) -> None:
            settings = [self.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
            used.append((*settings, self.total_changes))
            super().close()

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Noted))
    async with await open_store(migrated_sqlite) as store:
        await submitted(store)
    assert [settings for *settings, changes in used if changes] == [["wal", 2]], "only one of them writes"


async def test_a_full_disk_is_an_unusable_database_and_nothing_is_half_written(
    migrated_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(monkeypatch)
    async with await open_store(migrated_sqlite, patience=0.0) as store:
        await submitted(store)
        pages.most = 1
        outcomes = await store.queue.submit_many([call(parameters=f'{{"a":"{"x" * 10_000}"}}') for _ in range(50)])
        assert all(isinstance(outcome, DatabaseUnavailableError) for outcome in outcomes)
        assert "full" in str(outcomes[0])
        assert len(await store.history.list()) == 1


def test_a_disk_without_room_for_the_file_beside_it_is_said_to_be_full() -> None:
    refused = sqlite3.OperationalError("disk I/O error")  # what the first reader gets there, on ext4 and on tmpfs
    refused.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    error = explain(refused, "sqlite:///x.db")
    assert isinstance(error, DatabaseUnavailableError)
    assert "x.db is full: disk I/O error. Nothing was written. Make room on its disk" in str(error)


async def test_what_is_no_file_is_said_to_be_so_and_not_opened(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailableError, match="cannot be used: it is not a file that this user may read"):
        await open_store(f"sqlite:///{tmp_path}")


async def test_a_name_that_leads_nowhere_is_no_database_that_is_not_there_yet(tmp_path: Path) -> None:
    (loop := tmp_path / "loop.db").symlink_to("loop.db")
    with pytest.raises(DatabaseUnavailableError, match="cannot be used: it is not a file that this user may read"):
        await open_store(f"sqlite:///{loop}")


async def test_a_read_only_file_is_said_to_be_so() -> None:
    connection = sqlite3.connect("file:ro?mode=memory", uri=True)
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    error = explain(caught.value, "sqlite:///x.db")
    assert isinstance(error, DatabaseUnavailableError)
    assert "readonly" in str(error)
    assert "to the file and its folder" in str(error)


async def test_a_write_that_is_cancelled_keeps_nobody_else_from_writing(migrated_sqlite: str) -> None:
    async with await open_store(migrated_sqlite) as store:
        await forge(store, "CREATE TABLE filled (text TEXT)")
        rows = [("x" * 20_000,)] * 1000

        async def fill(connection: AsyncConnection) -> None:
            await connection.exec_driver_sql("INSERT INTO filled VALUES (?)", rows)

        held = []  # as whoever logs a failure holds it, and all that it refers to
        for number in range(12):
            writing = asyncio.create_task(store.database.write(fill))
            await asyncio.sleep(number * 0.0007)
            writing.cancel()
            held += await asyncio.gather(writing, return_exceptions=True)
            async with asyncio.timeout(4):
                await forge(store, "DELETE FROM filled")
        assert {type(one) for one in held} == {asyncio.CancelledError}
