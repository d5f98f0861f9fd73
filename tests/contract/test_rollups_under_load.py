"""What roll-ups go through: several who count and prune at once, clocks that step, zones, a database that goes away."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from math import isclose
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import func, select

from forge_tools.errors import ForgeError
from forge_tools.model import Grouping, Selection, new_id
from forge_tools.model.audit import Pruning
from forge_tools.model.overview import CallFigures, Times
from forge_tools.storage import Store, open_store
from forge_tools.storage.history import figures, rollups
from forge_tools.storage.history.figures import read_figures, rolled_up
from forge_tools.storage.retention import PruneRun
from forge_tools.storage.sqlalchemy_tables import in_form, rollup_figures, rollup_hours
from tests.clocks import SetClock, postgres_clock, sqlite_clock
from tests.contract.calls import submitted
from tests.contract.proxy import Proxy
from tests.contract.sealed import forge
from tests.contract.test_retention import everything, pruned
from tests.contract.test_rollups import HOUR, OLD, THIS_HOUR, calls_at, count, rolled_hours, some_history
from tests.services import admin
from workers.services.upkeep import RollUps

BOUNDS = (timedelta(0), timedelta(microseconds=1), timedelta(microseconds=-1), timedelta(minutes=13))


async def test_figures_are_the_same_at_every_moment_while_three_count_and_two_prune(migrated_url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await open_store(migrated_url)) for _ in range(5)]
        for _ in range(6):
            moments = [OLD + number * HOUR + random.choice(BOUNDS) for number in range(4) for _ in range(8)]
            await calls_at(stores[0], *moments, agent_id=random.choice(("a", None)))
        ends = asyncio.get_running_loop().time() + 2
        async with asyncio.TaskGroup() as group:
            for number, store in enumerate(stores):
                group.create_task((counted if number < 3 else thinned)(store, ends))
            group.create_task(compared(await stack.enter_async_context(await open_store(migrated_url)), ends))


async def counted(store: Store, ends: float) -> None:
    while asyncio.get_running_loop().time() < ends:
        await rolled_hours(store)


async def thinned(store: Store, ends: float) -> None:
    """Prune a few calls at a time, now of these, now of those."""
    while asyncio.get_running_loop().time() < ends:
        what = random.choice((everything(), everything(tool="Grep"), everything(keep=("failed",))))
        await store.retention.prune(what, PruneRun(new_id(), "root"), most=random.randint(1, 3))
        await asyncio.sleep(0)


async def compared(store: Store, ends: float) -> None:
    """Both ways to read figures, in one snapshot each time."""
    while asyncio.get_running_loop().time() < ends:
        window = {"since": OLD + random.choice(BOUNDS), "until": OLD + 3 * HOUR + random.choice(BOUNDS)}
        selection = Selection(**random.choice(({}, window, window | {"agent_id": "a"})))
        for by in (Grouping.TOOL, Grouping.HOUR):
            async with store.database.reading(is_long=True) as connection:
                known = await read_figures(connection, selection, by)
                assert same(known, await read_figures(connection, selection, by, from_rows=True)), selection


def same(some: list[CallFigures], others: list[CallFigures]) -> bool:
    """Means but for their last digits, which depend on the order of a sum."""

    def bare(one: CallFigures) -> CallFigures:
        return replace(one, duration_ms=replace(one.duration_ms, mean=None), wait_ms=replace(one.wait_ms, mean=None))

    def close(one: Times, other: Times) -> bool:
        return one.mean == other.mean or isclose(one.mean or 0.0, other.mean or 0.0, rel_tol=1e-11)

    pairs = list(zip(some, others, strict=False))
    are_close = all(close(a.duration_ms, b.duration_ms) and close(a.wait_ms, b.wait_ms) for a, b in pairs)
    return are_close and [bare(one) for one in some] == [bare(one) for one in others]


async def test_figures_are_of_one_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await calls_at(store, OLD, OLD, OLD + HOUR, OLD + HOUR)
    await store.rollups.roll(OLD)

    async def pruned_meanwhile(*asked: Any) -> Any:
        known = await rolled_up(*asked)
        assert await pruned(store, everything()) == 4
        return known

    monkeypatch.setattr(figures, "rolled_up", pruned_meanwhile)
    assert await count(store) == 4
    monkeypatch.undo()
    assert await count(store) == 0


async def test_an_hour_that_is_not_over_is_not_rolled_up(store: Store) -> None:
    await calls_at(store, datetime.now(UTC))
    assert not await store.rollups.roll(THIS_HOUR + HOUR)
    assert await count(store, since=THIS_HOUR) == 1
    async with store.database.reading() as connection:
        assert await connection.scalar(select(func.count()).select_from(rollup_figures)) == 0


@pytest.fixture
def set_clock(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return sqlite_clock(monkeypatch) if migrated_url.startswith("sqlite") else postgres_clock(migrated_url)


@pytest.fixture
async def clocked(migrated_url: str, set_clock: SetClock) -> AsyncIterator[Store]:
    async with await open_store(migrated_url) as opened:
        yield opened


async def test_hours_that_were_rolled_up_by_a_clock_that_was_ahead_are_counted_again(
    clocked: Store, set_clock: SetClock
) -> None:
    await calls_at(clocked, OLD)
    set_clock(3 * 3600)
    assert max(await rolled_hours(clocked)) > datetime.now(UTC)
    set_clock(0)
    await submitted(clocked)
    assert await count(clocked) == 2
    assert OLD in await rolled_hours(clocked)
    set_clock(3 * 3600)  # as if they had passed
    assert await count(clocked) == 2


ZONES = ("Asia/Kolkata", "America/St_Johns", "Pacific/Chatham")


def set_zone(url: str, zone: str) -> None:
    admin(url, f"ALTER DATABASE \"{urlsplit(url).path[1:]}\" SET timezone = '{zone}'")


async def fill(url: str) -> None:
    set_zone(url, ZONES[0])
    async with await open_store(url) as store:
        await some_history(store)


@pytest.mark.parametrize("filled_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("zone", ZONES)
async def test_hours_are_those_of_utc_in_every_zone_of_a_server(copied_url: str, zone: str) -> None:
    set_zone(copied_url, zone)
    async with await open_store(copied_url) as store:
        assert await rolled_hours(store) >= {OLD + number * HOUR for number in range(5)}
        for by in Grouping:
            for start in (None, OLD + 0.5 * HOUR, OLD + HOUR):
                since = start and start.astimezone(timezone(timedelta(hours=5, minutes=45)))
                known = await store.history.figures(by, since=since)
                assert same(known, await store.history.figures(by, since=since, from_rows=True))
        assert await pruned(store, Pruning(ended_before=datetime.now(UTC) + HOUR)) == await count(store) + 60


async def test_a_worker_that_stops_while_it_writes_an_hour_does_not_wait(
    migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(migrated_postgres)
    for number in range(24):
        await calls_at(store, OLD, session_id=f"s-{number}")
    many = [float(number) for number in range(30_000)]
    monkeypatch.setattr(rollups, "in_form", lambda _, dialect: in_form(many, dialect))
    execute = store.database.write
    is_writing = asyncio.Event()

    async def write(work: Any) -> Any:
        if not isinstance(work, partial):  # the mark is one
            is_writing.set()
        return await execute(work)

    monkeypatch.setattr(store.database, "write", write)
    for delay in range(0, 80, 20):
        is_writing.clear()
        rolling = asyncio.create_task(store.rollups.roll(OLD))
        await asyncio.wait_for(is_writing.wait(), 8)
        await asyncio.sleep(delay / 1000)
        rolling.cancel()
        async with asyncio.timeout(8):
            await asyncio.wait([rolling])
    await store.close()


async def test_rolling_up_outlives_a_database_that_goes_away(migrated_postgres: str) -> None:
    async with Proxy(migrated_postgres) as proxy, await open_store(proxy.url, patience=0.1) as store:
        await calls_at(store, *[OLD + number * HOUR for number in range(4)])
        rolling = RollUps(store)
        for _ in range(8):
            await forge(store, "DELETE FROM rollup_hours")
            sweeping = asyncio.create_task(rolling.step())
            await asyncio.sleep(random.uniform(0, 0.1))
            await proxy.go_away()
            [end] = await asyncio.gather(sweeping, return_exceptions=True)
            assert isinstance(end, ForgeError | None), end
            await proxy.come_back()
        await rolling.step()
        async with store.database.reading() as connection:
            assert await connection.scalar(select(func.sum(rollup_hours.c.calls))) == 4
        assert await count(store) == 4
