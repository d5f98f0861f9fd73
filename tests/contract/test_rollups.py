"""The contract of roll-ups, on every database: figures are the same with and without them, whatever happens in between."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from forge_tools.model import ExecutionStatus, Grouping
from forge_tools.model.audit import Pruning
from forge_tools.model.execution import Wakeup, id_floor
from forge_tools.model.overview import CallFigures, Times
from forge_tools.storage import Store
from forge_tools.storage.history import figures
from forge_tools.storage.history.rollups import hour_at
from forge_tools.storage.sqlalchemy_tables import (
    execution_attempts,
    execution_queue,
    executions,
    rollup_figures,
    rollup_hours,
)
from tests.contract.calls import SCOPE, call, ended, submitted
from tests.contract.sealed import forge
from tests.contract.statements import noted, plan
from tests.contract.test_overview_plans import CALLS
from tests.contract.test_rare_rows import with_coarse_statistics
from tests.contract.test_retention import everything, pruned
from workers.services.upkeep import RollUps

POOLED = True

PAGE = (Path(__file__).parents[2] / "docs" / "stats.md").read_text()
HOUR = timedelta(hours=1)
THIS_HOUR = hour_at(datetime.now(UTC))
OLD = THIS_HOUR - 6 * HOUR
"""An hour that is over for long, also if the next one begins while tests run."""


async def calls_at(store: Store, *moments: datetime, **changes: Any) -> list[str]:
    """Calls that were queued then, and succeeded."""
    calls = [call(**changes) for _ in moments]
    await store.queue.submit_many(calls)
    claims = await store.queue.claim([Wakeup(one.id, 0) for one in calls], replace(SCOPE, queues=(calls[0].queue,)))
    assert all(await store.queue.finish_many([ended(claim, duration_ms=random.uniform(0, 900)) for claim in claims]))
    return [await put_back(store, one.id, moment) for one, moment in zip(calls, moments, strict=True)]


async def put_back(store: Store, id_: str, moment: datetime) -> str:
    """Let it have been queued then; returns its id, which is of that time, too."""
    old = id_floor(moment.timestamp())[:13] + id_[13:]
    started = moment + timedelta(milliseconds=random.randint(1, 5000))

    async def work(connection: Any) -> None:
        asked, queued, last = executions.c, execution_queue.c, execution_attempts.c
        await connection.execute(update(executions).where(asked.id == id_).values(id=old, queued_at=moment))
        await connection.execute(update(execution_queue).where(queued.id == id_).values(id=old))
        ends = update(execution_attempts).where(last.execution_id == id_)
        await connection.execute(ends.values(execution_id=old))
        await connection.execute(ends.where(last.execution_id == old).values(started_at=started))

    await store.database.write(work)
    return old


async def rolled_hours(store: Store) -> set[datetime]:
    """Roll up what there is; all hours that are rolled up then."""
    [one async for one in store.rollups.sweep()]
    query = select(rollup_hours.c.hour).where(rollup_hours.c.rolled_at.is_not(None))
    async with store.database.reading() as connection:
        return set((await connection.scalars(query)).all())


async def without_rows(store: Store) -> None:
    """Take the calls away behind its back: what is still told comes from roll-ups."""
    await forge(store, "DELETE FROM execution_attempts", "DELETE FROM executions")


class Mean(float):
    """Equal to one with the same first digits: the last ones depend on the order of a sum."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, rel_tol=1e-9)

    __hash__ = float.__hash__


def rounded(figures: Sequence[CallFigures]) -> list[CallFigures]:
    def shown(times: Times) -> Times:
        return replace(times, mean=None if times.mean is None else Mean(times.mean))

    return [replace(one, duration_ms=shown(one.duration_ms), wait_ms=shown(one.wait_ms)) for one in figures]


async def count(store: Store, **filters: Any) -> int:
    return sum(one.calls for one in await store.history.figures(**filters))


async def some_history(store: Store) -> None:
    """Calls of five hours, of several tools, agents, sessions and queues, that ended in every way."""
    for number in range(60):
        moment = OLD + random.Random(number).uniform(0, 5 * 3600) * timedelta(seconds=1)
        of = {"agent_id": ("a", "B", "ä", None)[number % 4], "session_id": f"s-{number % 7}" if number % 3 else None}
        kind = {"tool": "Bash", "category": "execution"} if number % 5 == 0 else {}
        if number % 10 == 9:
            await put_back(store, await submitted(store, **of, **kind), moment)
        else:
            queue = "background" if number % 6 == 0 else "default"
            [id_] = await calls_at(store, moment, queue=queue, **of, **(kind | {"tool_key": "Grep@1"}))
            status = list(ExecutionStatus)[number % len(ExecutionStatus)]
            if number % 4 == 3 and status not in ("queued", "running", "awaiting_approval"):
                await forge(
                    store,
                    f"UPDATE execution_attempts SET status = '{status}', started_at = NULL, duration_ms = NULL"
                    f" WHERE execution_id = '{id_}'",
                )
    for record in await store.history.list(status="queued", limit=100):
        await store.transitions.cancel(record.id, actor="root", reason="")


WINDOWS: list[dict[str, Any]] = [
    {},
    {"since": OLD + 0.5 * HOUR},
    {"until": OLD + 2.25 * HOUR},
    {"since": OLD + HOUR, "until": OLD + 3 * HOUR},
    {"since": OLD + 1.2 * HOUR, "until": OLD + 1.9 * HOUR},
    {"since": OLD + 0.9 * HOUR, "until": OLD + 4.1 * HOUR},
    {"since": OLD - 50 * HOUR, "until": OLD - 40 * HOUR},
    {"since": datetime.min.replace(tzinfo=UTC), "until": datetime.max.replace(tzinfo=UTC)},
    {"until": datetime.min.replace(tzinfo=UTC)},
]
FILTERS: list[dict[str, Any]] = [
    {"tool": "Bash"},
    {"category": "file", "queue": "background"},
    {"agent_id": "ä"},
    {"session_id": "s-4"},
    {"status": "succeeded"},
    {"tool": "Grep", "agent_id": "a"},
    {"min_ms": 300.0},
    {"tool": "Nope\0"},
]


async def test_figures_are_the_same_with_roll_ups_as_without(store: Store) -> None:
    await some_history(store)
    assert await rolled_hours(store) >= {OLD + number * HOUR for number in range(5)}
    asked = [(by, window) for by in (Grouping.TOOL, Grouping.HOUR) for window in WINDOWS]
    asked += [(by, window) for by in Grouping for window in WINDOWS[:4]]
    asked += [(by, WINDOWS[n % 2] | filters) for n, (by, filters) in enumerate(product(Grouping, [*FILTERS, {}]))]
    for by, chosen in asked:
        known = await store.history.figures(by, **chosen)
        assert rounded(known) == rounded(await store.history.figures(by, from_rows=True, **chosen)), (by, chosen)
    assert await count(store) == 60


async def test_what_is_rolled_up_is_not_read_again(store: Store) -> None:
    await calls_at(store, *[OLD + number * timedelta(minutes=7) for number in range(20)], agent_id="a", session_id="s")
    await rolled_hours(store)
    expected = {by: await store.history.figures(by) for by in Grouping}
    await without_rows(store)
    assert {by: await store.history.figures(by) for by in Grouping} == expected
    assert await count(store, tool="Grep", queue="default") == 20
    assert await count(store, by=Grouping.AGENT, agent_id="a") == 20
    assert await count(store, by=Grouping.HOUR, session_id="s") == 20
    # Of what they do not tell, nothing is guessed.
    assert await count(store, status="succeeded") == await count(store, tool="Grep", agent_id="a") == 0
    assert await store.history.figures(from_rows=True) == []


async def test_an_hour_is_rolled_up_once_it_is_over_for_a_while_and_so_are_its_calls(store: Store) -> None:
    await calls_at(store, OLD)
    waiting = await put_back(store, await submitted(store), OLD + 1.5 * HOUR)
    await submitted(store)
    hours = await rolled_hours(store)
    assert OLD in hours
    assert OLD + HOUR not in hours
    assert max(hours) <= datetime.now(UTC) - HOUR - timedelta(minutes=5)
    assert await count(store) == 3
    await store.transitions.cancel(waiting, actor="root", reason="")
    assert OLD + HOUR in await rolled_hours(store)
    assert await store.rollups.roll(OLD)  # again is harmless
    assert await count(store) == 3


async def test_pruned_calls_are_in_no_figures(store: Store) -> None:
    await calls_at(store, OLD, OLD + HOUR)
    await calls_at(store, OLD, tool="Bash")
    await rolled_hours(store)
    assert await pruned(store, everything(tool="Bash")) == 1
    for _ in range(2):
        assert [(one.key, one.calls) for one in await store.history.figures()] == [("Grep", 2)]
        assert await rolled_hours(store) >= {OLD, OLD + HOUR}
    assert await pruned(store, everything()) == 2
    assert await store.history.figures() == []


async def test_what_is_pruned_while_an_hour_is_counted_is_not_in_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await calls_at(store, OLD, OLD)
    counted = rolled_up_after(store, monkeypatch, pruned(store, everything(), most=1))
    assert not await store.rollups.roll(OLD)
    assert await counted() == 2
    assert await count(store) == 0
    assert OLD not in await rolled_hours(store)  # nothing is left that is as old
    assert await count(store) == 0


def rolled_up_after(store: Store, monkeypatch: pytest.MonkeyPatch, what: Any) -> Any:
    """Have `what` happen between the reading of an hour and its writing."""
    write, writes, result = store.database.write, [0], []

    async def late(work: Any) -> Any:
        writes[0] += 1
        if writes[0] == 2:
            monkeypatch.setattr(store.database, "write", write)
            result.append(await what)
        return await write(work)

    monkeypatch.setattr(store.database, "write", late)

    async def told() -> Any:
        [one] = result
        return one

    return told


async def test_of_two_that_count_an_hour_the_one_that_began_last_writes_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await calls_at(store, OLD, OLD)
    second = rolled_up_after(store, monkeypatch, store.rollups.roll(OLD))
    assert not await store.rollups.roll(OLD)
    assert await second()
    assert await count(store) == 2


async def test_an_hour_whose_row_is_deleted_is_counted_again(store: Store) -> None:
    await calls_at(store, OLD)
    await rolled_hours(store)
    await forge(store, "DELETE FROM executions", "DELETE FROM rollup_hours")
    assert await store.history.figures() == []


async def test_hours_from_before_the_oldest_call_are_dropped(store: Store) -> None:
    await calls_at(store, OLD - 100 * HOUR, OLD)
    await rolled_hours(store)
    old = Pruning(ended_before=datetime.now(UTC) + HOUR)
    [first, _] = reversed(await store.history.list())
    await pruned(store, old, most=1)
    await calls_at(store, OLD)
    assert first.queued_at == OLD - 100 * HOUR
    assert min(await rolled_hours(store)) >= OLD - 2 * HOUR
    async with store.database.reading() as connection:
        assert await connection.scalar(select(func.min(rollup_figures.c.hour))) == OLD


async def test_more_calls_than_may_be_held_are_ranked_by_the_database(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await calls_at(store, OLD, OLD, OLD + HOUR)
    await rolled_hours(store)
    monkeypatch.setattr(figures, "MOST_HELD", 2)
    await forge(store, "DELETE FROM rollup_figures")
    assert await count(store) == 3
    assert await count(store, until=OLD + HOUR) == 0  # these are few enough


async def test_a_clock_that_was_wrong_makes_no_work_for_ever(store: Store) -> None:
    await calls_at(store, datetime(1971, 5, 1, tzinfo=UTC), OLD)
    hours = await rolled_hours(store)
    assert 2 < len(hours) <= 400 * 24 + 1
    assert await count(store) == 2


async def test_a_worker_rolls_up_all_that_is_ready(store: Store) -> None:
    await calls_at(store, OLD)
    await RollUps(store).step()
    await without_rows(store)
    assert await count(store) == 1


async def test_figures_of_an_hour_amid_many_look_at_each_call_once(store: Store) -> None:
    await with_coarse_statistics(store)
    middle = datetime.now(UTC) - timedelta(seconds=CALLS / 2)
    filters: dict[str, Any]
    for filters in ({}, {"tool": "Grep"}, {"status": "failed"}, {"error_text": "x"}, {"agent_id": "a"}):
        async with noted(store) as statements:
            found = await store.history.figures(since=middle - HOUR / 2, until=middle + HOUR / 2, **filters)
        finds_none = bool(filters.keys() & {"error_text", "agent_id"})
        assert [one.calls > 1000 for one in found] == ([] if finds_none else [True]), filters
        async with store.database.reading() as connection:
            for statement, arguments in statements:
                if statement.startswith("SET LOCAL"):
                    await connection.exec_driver_sql(statement)
                elif "executions" in statement:
                    how, pages = await plan(connection, statement, arguments)
                    # three hours of ids, since they and the clock may differ by one
                    assert pages < 10 * 3 * HOUR.total_seconds(), (filters, how)
                    assert "SCAN" not in how, filters


async def test_the_sql_of_the_page_runs_as_it_stands(store: Store) -> None:
    await calls_at(store, OLD, OLD + HOUR)
    await rolled_hours(store)
    again, hours, on_postgresql, on_sqlite = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    for statement in (hours, on_sqlite if store.dialect == "sqlite" else on_postgresql):
        async with store.database.reading() as connection:
            assert len((await connection.exec_driver_sql(statement)).all()) == 2
    await forge(store, again)
