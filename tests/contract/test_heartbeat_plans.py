"""A heartbeat, and the search for due rows, cost the same however much waits elsewhere and however long the history is."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from forge_tools.storage import open_store
from forge_tools.storage.connection.pool import PINNED
from forge_tools.storage.heartbeat import DUE, OVERLAP, Heartbeat, Reach, heartbeat_values, misplaced, unchained
from forge_tools.storage.statements import postgres_statement, sqlite_statement
from tests.contract.calls import instance, scope
from tests.contract.sealed import sealed_past

ROWS = 30_000
KEYS = tuple(f"Tool{number}@1" for number in range(40))
QUEUES = ("default", "background", "host.one")
QUESTIONS = (DUE, misplaced(["Slow@1"]), unchained(Reach(datetime.now(UTC), 0)))
HEARTBEAT = heartbeat_values(Heartbeat(scope(tool_keys=KEYS, queues=QUEUES), QUESTIONS))
PAGES = 300
"""The table has over a thousand, and each index a hundred or more."""

# A third each: delayed calls of a tool that is hosted, calls of one that is not, and what runs, long past its time to wait.
_FILL = f"""
INSERT INTO execution_queue (id, tool_key, queue, lane, status, attempt, max_attempts, idempotent, owner,
                             not_before, expires_at, expires_in)
SELECT gen_random_uuid(), CASE WHEN n % 3 = 0 THEN 'Tool1@1' ELSE 'Unhosted@1' END, 'default', 'async',
       CASE WHEN n % 30 = 2 THEN 'running' ELSE 'queued' END, 0, 3, true, CASE WHEN n % 30 = 2 THEN 'instance-2' END,
       now() + CASE WHEN n % 3 = 0 THEN interval '1 hour' ELSE interval '-1 minute' END,
       now() + CASE WHEN n % 30 = 2 THEN interval '-1 minute' ELSE interval '2 hours' END, 600
FROM generate_series(1, {ROWS}) AS n
"""


_SHOW_PLANS = (
    "LOAD 'auto_explain'",
    *(f"SET auto_explain.log_{name}" for name in ("min_duration = 0", "analyze = on", "buffers = on", "format = json")),
    "SET client_min_messages = log",
)


@pytest.fixture
async def pinned(migrated_postgres: str) -> AsyncIterator[Any]:
    """A connection as the hot path has them, of an instance that is registered; the queue is empty."""
    async with await open_store(migrated_postgres) as store:
        await store.workers.register(instance())
    connection = await asyncpg.connect(migrated_postgres, server_settings=PINNED)
    yield connection
    await connection.close()


@pytest.fixture
async def filled(pinned: Any) -> Any:
    """The same, to a queue that filled up since it was looked at last."""
    await pinned.execute(_FILL)
    return pinned


async def pages(connection: Any, name: str, **values: object) -> int:
    """How many pages one run reads by the plan that is made once for all values; nothing of it may scan a table."""
    statement = postgres_statement(name)
    shown: list[str] = []

    def note(_connection: Any, message: Any) -> None:
        shown.append(message.message)

    connection.add_log_listener(note)
    for setting in _SHOW_PLANS:
        await connection.execute(setting)
    await connection.fetch(statement.text, *statement.arguments(values))
    await connection.execute("RESET client_min_messages")
    connection.remove_log_listener(note)
    [plan] = [one for one in shown if "Query Text" in one]
    assert "Seq Scan" not in plan
    root = json.loads(plan[plan.index("{") :])["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_who_has_nothing_to_do_reads_next_to_nothing(filled: Any, is_analysed: bool) -> None:
    await filled.execute("UPDATE execution_queue SET expires_at = now() + interval '1 hour' WHERE status = 'running'")
    await filled.execute("VACUUM ANALYZE" if is_analysed else "VACUUM")  # else it reads once what that update left
    assert await pages(filled, "heartbeat", **HEARTBEAT, overlap=OVERLAP) < PAGES
    assert await pages(filled, "due", lane="async", queues=QUEUES, keys=KEYS, limit=200) < PAGES


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_due_rows_are_found_among_many_without_reading_them_all(filled: Any, is_analysed: bool) -> None:
    if is_analysed:
        await filled.execute("VACUUM ANALYZE")
    assert await pages(filled, "due", lane="async", queues=("default",), keys=("Unhosted@1",), limit=20) < PAGES


@pytest.mark.parametrize("few", [0, 200, 1000])
async def test_calls_of_others_that_wait_cost_nothing_however_few_there_were_when_the_plan_was_made(
    pinned: Any, few: int
) -> None:
    """All of one tool in one queue: any row seems as good as any other to who plans."""
    wait = """INSERT INTO execution_queue (id, tool_key, queue, lane, status, attempt, max_attempts, idempotent, not_before, expires_at, expires_in)
    SELECT gen_random_uuid(), 'Unhosted@1', 'background', 'async', 'queued', 0, 3, true, now(), now() + interval '2 hours', 600
    FROM generate_series(1, {}) AS n"""
    ours = heartbeat_values(Heartbeat(scope(tool_keys=KEYS, lane="process"), QUESTIONS))
    await pinned.execute(wait.format(few))
    await pinned.execute("VACUUM ANALYZE")
    await pages(pinned, "heartbeat", **ours, overlap=OVERLAP)
    for statement in (wait.format(ROWS), "VACUUM ANALYZE"):
        await pinned.execute(statement)
        assert await pages(pinned, "heartbeat", **ours, overlap=OVERLAP) < PAGES
        assert await pages(pinned, "due", lane="process", queues=("default",), keys=KEYS, limit=200) < PAGES


async def test_a_claim_changes_no_index(filled: Any) -> None:
    """Heap-only updates end where an indexed column changes, and then every index pays for every claim."""
    claim = "status = 'running', attempt = 1, token = gen_random_uuid(), owner = 'b', hostname = 'h', pid = 1, started_at = now()"
    ids = "SELECT id FROM execution_queue WHERE status = 'queued' ORDER BY id LIMIT 100"
    await filled.execute("VACUUM ANALYZE")
    changed = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'execution_queue'"
    async with filled.transaction():
        await filled.execute(f"UPDATE execution_queue SET {claim} WHERE id IN ({ids})")
        updated, heap_only = await filled.fetchrow(changed)
    assert (updated, heap_only) == (100, 100)


async def test_who_does_not_ask_about_the_audit_chain_reads_nothing_of_history(migrated_sqlite: str) -> None:
    async with await open_store(migrated_sqlite) as store:
        await store.workers.register(instance())
        before = instructions_of_a_heartbeat(migrated_sqlite)
        await sealed_past(store, count=200)
        assert instructions_of_a_heartbeat(migrated_sqlite) == before


def instructions_of_a_heartbeat(url: str) -> int:
    """How many of SQLite's instructions one takes that asks only for due rows."""
    ran = 0

    def count() -> None:
        nonlocal ran
        ran += 1

    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.set_progress_handler(count, 1)
        values = heartbeat_values(Heartbeat(scope(), (DUE,)))
        arguments = {name: json.dumps(value) if isinstance(value, tuple) else value for name, value in values.items()}
        times = {"now": "2026-01-01 00:00:00.000000", "chained_since": "0001-01-01 00:00:00.000000", "unix": 0.0}
        assert connection.execute(sqlite_statement("heartbeat"), {**arguments, **times}).fetchall()
    return ran
