"""The contract of the load of the queue, on every database: counted as if row by row, however it is read."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model import new_id
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.history.overview import Load, _grouped, _load, read_load
from forge_tools.storage.statements import sqlite_statement
from forge_tools.storage.tables import Moment, execution_queue

PATIENCE = 10.0


async def fill(store: Store, chance: random.Random, count: int) -> None:
    """Put calls of all kinds into the queue: most wait, and some of these in vain."""
    rows = [_row(chance) for _ in range(count)]

    async def work(connection: AsyncConnection) -> None:
        for row in rows:
            await connection.execute(insert(execution_queue).values(**row))

    await store.database.write(work)


def _row(chance: random.Random) -> dict[str, Any]:
    status = chance.choice(["queued"] * 6 + ["running", "awaiting_approval"])
    return {
        "id": new_id(),
        "tool_key": chance.choice(["Grep@1", "Bash@2"]),
        "queue": chance.choice(["default", "background"]),
        "lane": chance.choice(["async", "process"]),
        "status": status,
        "attempt": chance.choice([0, 0, 0, 3]),
        "max_attempts": 3,
        "idempotent": True,
        "owner": chance.choice(["instance-1", "instance-2"]) if status == "running" else None,
        "not_before": from_now(chance.choice([-100.0, -50.0, -5.0, 60.0]) + chance.random()),
        "expires_at": from_now(chance.choice([-1.0, 600.0, 600.0, 600.0])),
        "expires_in": 600.0,
        "cancel_requested_at": chance.choice([None, None, None, from_now(0.0)]),
    }


def comparable(load: Sequence[Load]) -> list[Load]:
    """In one order, to the millisecond, and without which of the stale ones is the example."""
    rounded = [
        replace(
            one,
            due_seconds=None if one.due_seconds is None else round(one.due_seconds, 3),
            stale_seconds=None if one.stale_seconds is None else round(one.stale_seconds, 3),
            example=one.example and "",
        )
        for one in load
    ]
    return sorted(rounded, key=lambda one: (one.queue, one.lane, one.tool_key, one.status, one.owner or ""))


@pytest.mark.parametrize("seed", range(6))
async def test_a_queue_is_counted_as_if_row_by_row(store: Store, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(store, random.Random(seed), count=[1, 5, 20, 60, 120, 240][seed])
    async with store.database.reading() as connection:
        now = (await connection.execute(select(from_now(0.0)))).scalar_one()
        simply = await connection.execute(_grouped(now, now - timedelta(seconds=PATIENCE)))
        monkeypatch.setattr("forge_tools.storage.history.overview.from_now", lambda _: literal(now, Moment))

        found = await read_load(connection, patience=PATIENCE)
        expected = [_load(now, *row) for row in simply]

        assert comparable(found) == comparable(expected)
        stale = {one.example for one in found if one.stale}
        claimable = select(execution_queue.c.id).where(
            execution_queue.c.status == "queued", execution_queue.c.not_before <= now - timedelta(seconds=PATIENCE)
        )
        assert stale <= set((await connection.scalars(claimable)).all())
        assert {one.example for one in found if not one.stale} <= {None}


async def test_sqlite_counts_what_waits_from_the_index_alone_and_sorts_nothing(store: Store) -> None:
    if store.dialect != "sqlite":
        return
    async with store.database.reading() as connection:
        moments = {"now": "2026-01-01", "since": "2026-01-01"}
        rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sqlite_statement('load_of_places')}", moments)
        plan = [row[-1] for row in rows]

    assert "SCAN execution_queue USING COVERING INDEX execution_queue_due" in plan
    assert not any("TEMP B-TREE" in step for step in plan)
