"""Where a database is, and connections that are always closed."""

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from forge_tools.errors import ConfigurationError, SchemaVersionError
from forge_tools.storage.connection.database import Database, forge_now
from forge_tools.storage.connection.drivers import Address
from tests.migrated import migrated


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_a_sqlite_url_names_an_absolute_or_a_relative_file(scheme: str, tmp_path: Path) -> None:
    absolute = Address.parse(f"{scheme}:///{tmp_path}/forge.db")
    assert (absolute.dialect, absolute.target) == ("sqlite", f"{tmp_path}/forge.db")
    assert Address.parse(f"{scheme}:///forge.db").target == str(Path("forge.db").absolute())


def test_an_sqlite_without_strict_tables_is_refused_with_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(
        ConfigurationError, match=r"SQLite 3\.36\.0; .* 3\.37 or later\. .*another Python.*postgresql://"
    ):
        Address.parse("sqlite:///forge.db")
    assert Address.parse("postgresql://u@h/x").dialect == "postgresql"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
def test_a_postgres_url_may_name_its_driver(scheme: str) -> None:
    address = Address.parse(f"{scheme}://forge:s3cret@db:5432/tools?sslmode=require")
    assert address.dialect == "postgresql"
    assert address.target == "postgresql://forge:s3cret@db:5432/tools?sslmode=require"


def test_people_never_see_the_password() -> None:
    shown = Address.parse("postgresql://forge:s3cret@db/tools?password=s3cret").shown
    assert shown == "postgresql://forge:***@db/tools"


@pytest.mark.parametrize("url", ["", "forge.db", "redis://x", "sqlite:forge.db", "sqlite:///", "postgresql://h:x/y"])
def test_any_other_url_is_refused_with_the_form_that_is_expected(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///|postgresql://"):
        Address.parse(url)


def test_a_long_unknown_scheme_is_cut() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Address.parse("x" * 500 + "://")
    assert len(str(caught.value)) < 200


def test_a_file_that_is_not_there_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(SchemaVersionError, match=r"forge-tools up.*forge-tools db upgrade"):
        Address.parse(f"sqlite:///{tmp_path}/forge.db").require_file()


def test_times_have_one_width_and_sort_as_text() -> None:
    times = [forge_now(seconds) for seconds in (-100_000.0, -0.5, 0.0, 0.25, 100_000.0)]
    assert times == sorted(times)
    assert {len(time) for time in times} == {len("2026-01-01 00:00:00.000000")}


@pytest.fixture
def address(tmp_path: Path) -> Address:
    sqlite3.connect(tmp_path / "forge.db").close()
    return Address.parse(f"sqlite:///{tmp_path / 'forge.db'}")


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fail if a connection is collected that nobody closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def read(database: Database) -> None:
    async with database.reading() as connection:
        await connection.execute(text("SELECT 1"))


@pytest.mark.parametrize("steps", [*range(0, 40, 2), 60, 100])
async def test_a_read_that_is_cancelled_at_any_moment_leaves_no_connection_open(address: Address, steps: int) -> None:
    with nothing_left_open():
        database = Database(address, connect_timeout=3)
        reading = asyncio.create_task(read(database))
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        reading.cancel()
        await asyncio.wait([reading])
        await read(database)
        await database.close()


async def test_a_close_closes_what_is_in_use_when_it_comes_back(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.storage.connection.database.PARTING_SECONDS", 0.05)
    with nothing_left_open():
        database = Database(address, connect_timeout=3)
        async with database.reading() as connection:
            await database.close()
            assert await connection.scalar(text("SELECT 1")) == 1


async def test_a_close_waits_for_a_read_under_way(address: Address) -> None:
    database = Database(address, connect_timeout=3)
    reading = asyncio.create_task(read(database))
    await asyncio.sleep(0)
    await database.close()

    assert reading.done()
    assert reading.exception() is None


PUBLISH = """
import asyncio, sys
from forge_tools.model.overview import WorkerRecord
from forge_tools.storage import open_store
from forge_tools.tool import load_tools

async def publish(url):
    specs = [tool.spec for tool in load_tools()]
    worker = WorkerRecord(id="one", hostname="here", pid=1, lane="async", queues=(), concurrency=1, version="1")
    async with await open_store(url) as store:
        await store.workers.register(worker)
        for _ in range(2):
            await store.catalogue.publish(specs, "one")

asyncio.run(publish(sys.argv[1]))
"""


def test_a_temporary_folder_without_room_keeps_no_row_out_of_sqlite(tmp_path: Path) -> None:
    url = migrated(f"sqlite:///{tmp_path}/forge.db")
    nowhere = {**os.environ, "SQLITE_TMPDIR": "/proc"}  # which root is told only once it makes a file there
    done = subprocess.run(
        [sys.executable, "-c", PUBLISH, url], env=nowhere, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-500:]
