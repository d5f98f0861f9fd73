"""A migrated database of each kind for every test, copied from one that was migrated once."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from forge_tools.storage import Store, open_store
from tests.migrated import migrated, postgres_template
from tests.pooler import Pooler, is_wanted
from tests.services import GivenPostgres, PostgresServer


@pytest.fixture
def migrated_sqlite(tmp_path: Path) -> str:
    return migrated(f"sqlite:///{tmp_path / 'forge.db'}")


@pytest.fixture
def migrated_postgres(postgres: PostgresServer | GivenPostgres) -> Iterator[str]:
    url = postgres.create_database(postgres_template(postgres))
    yield url
    postgres.drop_database(url)


@pytest.fixture
def migrated_pooled(pooler: Pooler, migrated_postgres: str) -> str:
    return pooler.url(migrated_postgres)


@pytest.fixture
def migrated_url(request: pytest.FixtureRequest) -> str:
    """A database with this version's tables, of each kind in turn."""
    return str(request.getfixturevalue(f"migrated_{request.param}"))


@pytest.hookimpl(tryfirst=True)  # else it depends on the command line whose parameters come first in the ids
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """SQLite and PostgreSQL, and PostgreSQL behind a pooler where a module says `POOLED`: there are promises that one could break."""
    says_itself = any("migrated_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "migrated_url" in metafunc.fixturenames and not says_itself:
        is_pooled = getattr(metafunc.module, "POOLED", False) and is_wanted()
        metafunc.parametrize("migrated_url", ["sqlite", "postgres", *(["pooled"] if is_pooled else [])], indirect=True)


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[Store]:
    """One on each kind of database in turn; on one alone where a test parametrizes `migrated_url`."""
    async with await open_store(migrated_url) as opened:
        yield opened


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def filled_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of each kind in turn that the module's `fill` was run on once; whoever changes anything takes a copy."""
    path = tmp_path_factory.mktemp("filled") / "forge.db"
    postgres = request.getfixturevalue("postgres") if request.param == "postgres" else None
    url = postgres.create_database(postgres_template(postgres)) if postgres else migrated(f"sqlite:///{path}")
    asyncio.run(request.module.fill(url))
    yield url
    if postgres:
        postgres.drop_database(url)


@pytest.fixture
async def filled(filled_url: str) -> AsyncIterator[Store]:
    async with await open_store(filled_url) as opened:
        yield opened


@pytest.fixture
def copied_url(request: pytest.FixtureRequest, filled_url: str, tmp_path: Path) -> Iterator[str]:
    if filled_url.startswith("sqlite"):
        shutil.copyfile(filled_url.removeprefix("sqlite:///"), tmp_path / "copied.db")
        yield f"sqlite:///{tmp_path / 'copied.db'}"
        return
    postgres = request.getfixturevalue("postgres")
    url = postgres.create_database(urlsplit(filled_url).path[1:])
    yield url
    postgres.drop_database(url)


@pytest.fixture
async def copied(copied_url: str) -> AsyncIterator[Store]:
    async with await open_store(copied_url) as opened:
        yield opened


@pytest.fixture
async def watcher(migrated_postgres: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to look in with."""
    connection = await asyncpg.connect(migrated_postgres)
    yield connection
    await connection.close()
