"""The partitions of deploy/postgres/: everything works on them as before, and a month goes by dropping it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from forge_tools.model.execution import id_floor
from forge_tools.storage import Store, open_store
from forge_tools.storage.connection.pool import PINNED
from forge_tools.storage.statements import postgres_statement
from tests.contract.calls import call, finished, submit_one, submitted
from tests.contract.sealed import seal_all, sealed_past, verified
from tests.contract.test_retention import everything, pruned
from tests.services import admin

DEPLOY = Path(__file__).parents[2] / "deploy" / "postgres"
NEXT_MONTH = (datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=40)).replace(
    day=1
)


@pytest.fixture
async def partitioned(migrated_postgres: str) -> AsyncIterator[Store]:
    """A database with a past that was then partitioned."""
    async with await open_store(migrated_postgres) as store:
        await sealed_past(store)
    for _ in range(2):  # again is harmless
        admin(migrated_postgres, (DEPLOY / "partitions.sql").read_text())
    async with await open_store(migrated_postgres) as store:
        yield store


async def test_calls_go_on_and_the_past_is_what_it_was(partitioned: Store) -> None:
    id_ = await submitted(partitioned)
    await submit_one(partitioned, again := call())
    await submit_one(partitioned, again)
    await finished(partitioned, [id_, again.id])
    assert len(await partitioned.history.list()) == 5
    assert len(await partitioned.queue.results([id_, again.id])) == 2
    assert await seal_all(partitioned) == 2
    report = await verified(partitioned)
    assert (report.is_intact, report.executions) == (True, 5)
    assert await pruned(partitioned, everything()) == 5
    assert (await verified(partitioned)).is_intact


async def test_next_month_has_a_partition_of_its_own_that_can_be_dropped(
    partitioned: Store, migrated_postgres: str
) -> None:
    connection = await asyncpg.connect(migrated_postgres)
    id_ = id_floor(NEXT_MONTH.timestamp() + 3600)
    await connection.execute(
        "INSERT INTO executions SELECT (jsonb_populate_record(e, jsonb_build_object('id', $1::text))).* FROM executions e LIMIT 1",
        id_,
    )
    name = f"executions_{NEXT_MONTH:%Y_%m}"
    assert await connection.fetchval(f"SELECT count(*) FROM {name}") == 1
    await connection.execute(f"ALTER TABLE executions DETACH PARTITION {name}; DROP TABLE {name}")
    assert await connection.fetchval("SELECT count(*) FROM executions") == 3
    assert await connection.fetchval("SELECT forge_add_partitions(3)") == 1
    await connection.close()


async def test_hot_statements_read_by_index_and_only_where_the_id_can_be(
    partitioned: Store, migrated_postgres: str
) -> None:
    connection = await asyncpg.connect(migrated_postgres, server_settings=PINNED)
    await connection.execute(f"PREPARE hot AS {postgres_statement('results').text}")
    [record] = await partitioned.history.list(limit=1)
    plan = await connection.fetch(f"EXPLAIN (ANALYZE, COSTS off) EXECUTE hot(ARRAY['{record.id}']::uuid[])")
    text = "\n".join(line for (line,) in plan)
    assert "Seq Scan" not in text
    scans = [line for line in text.splitlines() if "Index Scan" in line]
    assert len(scans) > 1
    assert len([line for line in scans if "never executed" not in line]) == 1, text
    await connection.close()


async def test_roles_work_on_partitions(partitioned: Store, migrated_postgres: str) -> None:
    for _ in range(2):
        admin(migrated_postgres, (DEPLOY / "roles.sql").read_text())
    connection = await asyncpg.connect(migrated_postgres)
    secured = await connection.fetchval("SELECT relrowsecurity FROM pg_class WHERE oid = 'executions'::regclass")
    await connection.close()
    assert secured is True
