"""Idempotency keys on a PostgreSQL that is cut off, or in which several claim one at the same moment."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from forge_tools.errors import SubmitOutcomeUnknownError
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Holder, KeyClaim, NewExecution, Replay
from forge_tools.storage import Store, open_store
from forge_tools.storage.connection.pool import PINNED
from forge_tools.storage.statements import postgres_statement
from tests.contract.calls import call, statuses, submitted
from tests.contract.proxy import Proxy
from tests.contract.statements import blocked_statements

SLOW_KEYS = """
CREATE FUNCTION wait_for_seven() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END$$;
CREATE TRIGGER slow AFTER INSERT ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION wait_for_seven()
"""
"""Lets a test hold a key between its insert and its commit."""


def keyed() -> NewExecution:
    return call(claim=KeyClaim("shared", "k", "{}", 60.0))


@pytest.fixture
async def proxy(migrated_postgres: str) -> AsyncIterator[Proxy]:
    async with Proxy(migrated_postgres) as standing_between:
        yield standing_between


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[Store]:
    """A Store behind the proxy whose statement is prepared, so that the next reply is that of a commit."""
    async with await open_store(proxy.url, patience=2.0) as opened:
        await opened.queue.submit_many([call(claim=KeyClaim("shared", "another", "{}", 60.0))])
        yield opened


@pytest.fixture
async def blocker(migrated_postgres: str) -> AsyncIterator[asyncpg.Connection]:
    """Holds every new key before its commit until it is closed."""
    connection = await asyncpg.connect(migrated_postgres)
    await connection.execute(SLOW_KEYS)
    await connection.execute("SELECT pg_advisory_lock(7)")
    yield connection
    await connection.close()


async def test_a_keyed_submit_whose_commit_reply_is_lost_is_stored_once_and_is_no_repeat(
    store: Store, proxy: Proxy
) -> None:
    original = await submitted(store)
    row = replace(keyed(), replay=Replay(original, "ann"))
    proxy.replies_to_lose = 1
    assert await store.queue.submit_many([row]) == [None]
    assert proxy.lost.is_set()
    assert await statuses(store, [row.id]) == {row.id: ExecutionStatus.QUEUED}
    assert [event.kind for event in await store.history.events(original)] == ["replayed"]


async def test_after_an_unknown_outcome_the_key_knows(store: Store, proxy: Proxy) -> None:
    proxy.replies_to_lose, proxy.stays_away_after_loss = 1, True
    first, second = keyed(), keyed()
    [error] = await store.queue.submit_many([first])
    assert isinstance(error, SubmitOutcomeUnknownError)
    assert error.execution_id == first.id
    await proxy.come_back()
    assert await store.queue.submit_many([second]) == [Holder(first.id, "{}")]


async def test_a_submit_that_is_still_committing_when_it_is_repeated_is_waited_for(
    store: Store, proxy: Proxy, blocker: asyncpg.Connection
) -> None:
    row = keyed()
    submitting = asyncio.create_task(store.queue.submit_many([row]))
    await blocked_statements(blocker, 1)
    await proxy.go_away()
    await proxy.come_back()
    await blocked_statements(blocker, 2)
    await blocker.close()
    assert await submitting == [None]
    assert await statuses(store, [row.id]) == {row.id: ExecutionStatus.QUEUED}


async def test_a_rival_waits_for_the_first_to_commit_and_is_told_of_it(
    store: Store, migrated_postgres: str, blocker: asyncpg.Connection
) -> None:
    first, second = keyed(), keyed()
    async with await open_store(migrated_postgres) as other:
        submitting = asyncio.create_task(store.queue.submit_many([first]))
        await blocked_statements(blocker, 1)
        rivalling = asyncio.create_task(other.queue.submit_many([second]))
        await blocked_statements(blocker, 2)
        await blocker.close()
        assert await submitting == [None]
        assert await rivalling == [Holder(first.id, "{}")]


async def test_a_rival_takes_the_key_of_a_submitter_that_was_killed_before_its_commit(
    store: Store, proxy: Proxy, migrated_postgres: str, blocker: asyncpg.Connection
) -> None:
    first, second = keyed(), keyed()
    async with await open_store(migrated_postgres) as other:
        submitting = asyncio.create_task(store.queue.submit_many([first]))
        await blocked_statements(blocker, 1)
        rivalling = asyncio.create_task(other.queue.submit_many([second]))
        await blocked_statements(blocker, 2)
        await proxy.go_away()
        await blocker.execute(
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks l WHERE l.locktype = 'advisory' AND NOT l.granted"
        )
        await submitting
        await blocker.close()
        assert await rivalling == [None]
        assert await statuses(other, [first.id, second.id]) == {second.id: ExecutionStatus.QUEUED}
    await proxy.come_back()


@pytest.mark.parametrize("name", ["holders", "free"])
async def test_each_key_is_looked_up_in_its_index_however_many_there_are(migrated_postgres: str, name: str) -> None:
    connection: Any = await asyncpg.connect(migrated_postgres, server_settings=PINNED)
    try:
        await connection.execute(f"PREPARE hot AS {postgres_statement(name).text}")
        plan = "\n".join(line for (line,) in await connection.fetch("EXPLAIN EXECUTE hot(NULL, NULL)"))
    finally:
        await connection.close()
    assert "Seq Scan" not in plan, plan
    scans = re.findall(r"Scan using \w+ on \w+.*\n\s+(\w+ \w+|\w+):", plan)
    assert set(scans) == {"Index Cond"}, plan
