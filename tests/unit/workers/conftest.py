"""Lanes and children for the tests of both halves of the process lane; a host with shells to watch."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from forge_tools.config import Settings
from forge_tools.storage import Store, open_store
from tests.migrated import migrated
from tests.unit.workers.child_bench import Bench, Speaker, a_process
from tests.unit.workers.watched_host import Host
from workers.services import shells


@pytest.fixture
def pid() -> Iterator[int]:
    with a_process() as pid:
        yield pid


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.lane.start(bench)
    yield bench
    await bench.lane.stop()


@pytest.fixture
async def child(bench: Bench, pid: int) -> AsyncIterator[Speaker]:
    child = await bench.connect(pid)
    yield child
    child.die()


@pytest.fixture
async def other(bench: Bench) -> AsyncIterator[Speaker]:
    with a_process() as pid:
        other = await bench.connect(pid)
        yield other
        other.die()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(migrated(f"sqlite:///{tmp_path / 'forge.db'}")) as opened:
        yield opened


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    settings = Settings.load(home=tmp_path, hostname="here", database_url=f"sqlite:///{tmp_path / 'forge.db'}")
    migrated(settings.database)
    settings.shells_folder.mkdir()
    async with await open_store(settings.database) as store:
        host = Host(settings, store)
        for name in ("survey", "renew", "forget"):
            monkeypatch.setattr(shells, name, getattr(host, name))
        yield host
