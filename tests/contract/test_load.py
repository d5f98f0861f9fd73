"""The contract of the load of the queue, on every database: counted as if row by row."""

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Row, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model import new_id
from forge_tools.storage import Store
from forge_tools.storage.functions import database_now, from_now
from forge_tools.storage.history.overview import read_load
from forge_tools.storage.sqlalchemy_tables import Moment, execution_queue

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


def counted(rows: Sequence[Row[Any]], now: datetime) -> dict[tuple[Any, ...], list[int]]:
    """Calls, due ones and stale ones, row by row."""
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        is_queued = row.status == "queued"
        may_run = row.expires_at > now and row.cancel_requested_at is None and row.attempt < row.max_attempts
        is_stale = is_queued and may_run and row.not_before <= now - timedelta(seconds=PATIENCE)
        counts = found[row.queue, row.lane, row.tool_key, row.status, row.owner]
        for place, counts_here in enumerate((True, is_queued and row.not_before <= now, is_stale)):
            counts[place] += counts_here
    return found


@pytest.mark.parametrize("count", [1, 20, 240])
async def test_a_queue_is_counted_by_place_tool_status_and_owner(
    store: Store, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, random.Random(count), count)
    async with store.database.reading() as connection:
        now = await database_now(connection)
        monkeypatch.setattr("forge_tools.storage.functions.from_now", lambda _: literal(now, Moment))
        rows = (await connection.execute(select(execution_queue))).all()

        found = await read_load(connection, patience=PATIENCE)

    expected = counted(rows, now)
    assert {
        (one.queue, one.lane, one.tool_key, one.status, one.owner): [one.calls, one.due, one.stale] for one in found
    } == expected
    stale = {row.id for row in rows if row.status == "queued" and row.not_before <= now - timedelta(seconds=PATIENCE)}
    assert {one.example for one in found if one.stale} <= stale
    assert {one.example for one in found if not one.stale} <= {None}
