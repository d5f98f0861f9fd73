"""What a PostgreSQL that is cut off, frozen, restarted or deadlocked does to a Store: every effect is reported."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from forge_tools.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    SubmitOutcomeUnknownError,
    UnstorableRowError,
)
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Wakeup
from forge_tools.storage import Store, open_store
from forge_tools.storage.connection import database, pool
from forge_tools.storage.connection.drivers import Address, Owner
from forge_tools.storage.heartbeat import scope_values
from forge_tools.storage.queue.postgres import PostgresHotPath
from forge_tools.storage.rows import OUTCOME
from forge_tools.storage.statements import postgres_statement
from tests.contract.calls import (
    SCOPE,
    beat,
    call,
    claimed,
    ended,
    finish_one,
    finished,
    instance,
    running,
    statuses,
    submit_one,
    submitted,
)
from tests.contract.proxy import Proxy
from tests.contract.statements import blocked_statements
from tests.waiting import reached

SLOW_CLAIMS = """
CREATE FUNCTION wait_for_seven() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END$$;
CREATE TRIGGER slow BEFORE UPDATE ON execution_queue FOR EACH ROW EXECUTE FUNCTION wait_for_seven()
"""
"""Lets a test hold a claim between its row lock and its commit."""


@pytest.fixture
async def proxy(migrated_postgres: str) -> AsyncIterator[Proxy]:
    async with Proxy(migrated_postgres) as standing_between:
        yield standing_between


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[Store]:
    """A Store behind the proxy whose statements are all prepared, so that the next reply is that of a commit."""
    async with await open_store(proxy.url, patience=2.0) as opened:
        await opened.workers.register(instance())
        await beat(opened, "instance-1")
        await finished(opened, [await submitted(opened)])
        await opened.queue.results([])
        yield opened


async def test_a_submit_whose_commit_reply_is_lost_is_stored_once(store: Store, proxy: Proxy) -> None:
    proxy.replies_to_lose = 1
    id_ = await submitted(store)
    assert proxy.lost.is_set()
    assert await store.queue.due(SCOPE, 10) == [Wakeup(id_, 0)]


async def test_a_claim_whose_commit_reply_is_lost_is_found_again(store: Store, proxy: Proxy) -> None:
    id_ = await submitted(store)
    proxy.replies_to_lose = 1
    claim = await claimed(store, id_)
    assert proxy.lost.is_set()
    assert claim.attempt == 1
    assert await finish_one(store, ended(claim))


async def test_a_finish_whose_commit_reply_is_lost_took_effect(store: Store, proxy: Proxy) -> None:
    claim = await running(store)
    proxy.replies_to_lose = 1
    assert await finish_one(store, ended(claim))
    assert proxy.lost.is_set()
    assert len(await store.history.attempts(claim.id)) == 1
    assert await store.history.events(claim.id) == []


async def test_a_give_back_whose_commit_reply_is_lost_took_effect(store: Store, proxy: Proxy) -> None:
    claim = await running(store)
    proxy.replies_to_lose = 1
    assert await finish_one(store, ended(claim, ExecutionStatus.QUEUED, give_back=True))
    assert proxy.lost.is_set()
    assert (await claimed(store, claim.id)).attempt == 1


async def test_a_claim_that_is_still_committing_when_it_is_repeated_is_waited_for(
    store: Store, proxy: Proxy, migrated_postgres: str
) -> None:
    id_ = await submitted(store)
    blocker = await asyncpg.connect(migrated_postgres)
    await blocker.execute(SLOW_CLAIMS)
    await blocker.execute("SELECT pg_advisory_lock(7)")
    asking = asyncio.create_task(store.queue.claim([Wakeup(id_, 0)], SCOPE))
    await blocked_statements(blocker, 1)
    await proxy.go_away()
    await proxy.come_back()
    await blocked_statements(blocker, 2)
    await blocker.close()
    [claim] = await asking
    assert (claim.id, claim.attempt) == (id_, 1)
    assert await finish_one(store, ended(claim))


async def test_a_submit_whose_outcome_stays_unknown_says_so_with_its_id(store: Store, proxy: Proxy) -> None:
    proxy.replies_to_lose, proxy.stays_away_after_loss = 1, True
    new = call()
    began = time.monotonic()
    with pytest.raises(SubmitOutcomeUnknownError, match=new.id) as caught:
        await submit_one(store, new)
    assert caught.value.execution_id == new.id
    assert time.monotonic() - began < 30
    await proxy.come_back()
    await submit_one(store, new)
    assert await statuses(store, [new.id]) == {new.id: ExecutionStatus.QUEUED}


async def test_a_database_that_went_away_fails_soon_and_hides_its_password(store: Store, proxy: Proxy) -> None:
    await proxy.go_away()
    began = time.monotonic()
    for attempt in (store.queue.results([call().id]), store.history.list(), beat(store, "instance-1")):
        with pytest.raises(DatabaseUnavailableError, match=r"cannot be used.*FORGE_DATABASE_URL") as caught:
            await attempt
        assert str(proxy.port) in str(caught.value)
        password = proxy.url.partition("@")[0].rpartition(":")[2]
        assert password not in str(caught.value) or password.startswith("//")
    assert time.monotonic() - began < 40
    await proxy.come_back()
    await submitted(store)
    assert len(await store.history.list()) == 2


async def test_a_worker_waits_for_its_database_as_long_as_it_takes(store: Store, proxy: Proxy) -> None:
    async with await open_store(proxy.url, patience=None) as patient:
        claim = await running(patient)
        await proxy.go_away()
        finishing = asyncio.create_task(finish_one(patient, ended(claim)))
        done, _ = await asyncio.wait([finishing], timeout=3)
        assert not done
        await proxy.come_back()
        assert await asyncio.wait_for(finishing, 30)


async def test_a_frozen_database_is_given_up_in_bounded_time(
    store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CLIENT_SECONDS", 0.5)
    proxy.freeze()
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailableError):
        await store.queue.results([call().id])
    assert time.monotonic() - began < 30
    proxy.thaw()
    await submitted(store)


async def test_a_frozen_database_cannot_be_opened_and_says_after_how_long(proxy: Proxy) -> None:
    proxy.freeze()
    with pytest.raises(DatabaseUnavailableError, match=r"no answer within 0.3 s"):
        await open_store(proxy.url, connect_timeout=0.3)


async def test_a_connection_that_fell_silent_in_its_pool_is_an_outage_and_its_store_goes_on(
    monkeypatch: pytest.MonkeyPatch, proxy: Proxy
) -> None:
    monkeypatch.setattr(database, "CLIENT_SECONDS", 1.0)
    async with await open_store(proxy.url) as store:
        await store.workers.list()
        proxy.swallow()
        with pytest.raises(DatabaseUnavailableError, match=r"no answer within 1 s"):
            await store.workers.list()
        proxy.stop_swallowing()

        assert await store.workers.list() == []


async def test_a_read_whose_idle_connection_has_gone_is_asked_again_on_a_new_one(store: Store, proxy: Proxy) -> None:
    proxy.replies_to_lose = 1

    assert (await store.directories.read()).enabled == []
    assert proxy.lost.is_set()


@pytest.mark.parametrize("fault", [{"parameters": "{broken"}, {"max_attempts": 2**40}, {"context": '"\0"'}])
async def test_what_only_postgres_refuses_fails_alone_too(store: Store, fault: dict[str, Any]) -> None:
    fine, error, also_fine = await store.queue.submit_many([call(), call(**fault), call()])
    assert (fine, also_fine) == (None, None)
    assert isinstance(error, UnstorableRowError)


async def test_a_setting_in_the_url_that_cannot_be_used_is_named(migrated_postgres: str) -> None:
    with pytest.raises(ConfigurationError, match="sslmode"):
        await open_store(f"{migrated_postgres}?sslmode=perhaps")


async def test_a_wrong_database_name_says_so_at_once(migrated_postgres: str) -> None:
    with pytest.raises(DatabaseUnavailableError, match="does not exist"):
        await open_store(f"{migrated_postgres}-absent")


async def register(store: Store) -> None:
    await store.workers.register(instance("instance-2"))


async def test_a_connection_to_a_database_that_may_only_be_read_is_not_kept(
    store: Store, proxy: Proxy, watcher: Any
) -> None:
    """It may lead to a standby, or to a server that was out of room: the next one may lead to where writes are taken."""
    name = await watcher.fetchval("SELECT quote_ident(current_database())")
    await watcher.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await proxy.go_away()
    await proxy.come_back()
    for write in (submitted, register):
        with pytest.raises(DatabaseUnavailableError, match="default_transaction_read_only"):
            await write(store)
    await watcher.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await register(store)
    await submitted(store)


async def test_a_deadlock_is_retried_and_nobody_notices(store: Store, migrated_postgres: str) -> None:
    first, second = sorted([await running(store), await running(store)], key=lambda claim: claim.id)
    rival = await asyncpg.connect(migrated_postgres)
    await rival.execute("SET deadlock_timeout = '60s'")
    lock = "SELECT 1 FROM execution_queue WHERE id = $1 FOR UPDATE"
    async with rival.transaction():
        await rival.execute(lock, second.id)
        finishing = asyncio.create_task(store.queue.finish_many([ended(second), ended(first)]))
        await blocked_statements(rival, 1)
        await asyncio.wait_for(rival.execute(lock, first.id), 30)
        assert not finishing.done()
    assert await finishing == [True, True]
    assert await rival.fetchval("SELECT count(*) FROM execution_attempts WHERE final") == 3
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    await reached(lambda: rival.fetchval(query))
    await rival.close()


async def test_hot_statements_use_the_primary_keys_on_empty_and_on_full_tables(
    store: Store, migrated_postgres: str
) -> None:
    path = PostgresHotPath(Address.parse(migrated_postgres), Owner(), connect_timeout=3.0, deadline=None)
    for _ in range(2):
        new = call()
        for statement, arguments in hot_statements(new.id):
            plan = "\n".join(row[0] for row in await path.fetch(f"EXPLAIN {statement}", *arguments))
            assert "Seq Scan" not in plan
            assert "Hash Join" not in plan
        assert await store.queue.submit_many([call() for _ in range(3_000)]) == [None] * 3_000
    await path.close()


async def test_a_claim_updates_no_index(store: Store, migrated_postgres: str) -> None:
    ids = [await submitted(store) for _ in range(20)]
    for id_ in ids:
        await claimed(store, id_)
    watcher = await asyncpg.connect(migrated_postgres)
    await watcher.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'execution_queue'"

    async with asyncio.timeout(60):
        while (await watcher.fetchrow(query))["n_tup_upd"] < 21:
            await store.queue.claim([Wakeup(ids[0], 0)], SCOPE)
            await asyncio.sleep(0.2)
    updated, heap_only = await watcher.fetchrow(query)
    assert heap_only == updated
    await watcher.close()


def hot_statements(id_: str) -> list[tuple[str, tuple[object, ...]]]:
    fence = {"id": [id_], "token": [id_]}
    outcome = {name: [None] for name in OUTCOME} | {"status": ["failed"], "metadata": ["{}"]}
    given: dict[str, dict[str, object]] = {
        "claim": {**fence, "attempt": [0], **scope_values(SCOPE)},
        "finish": {**fence, "attempt": [1], "retry_in": [None], "give_back": [False], **outcome},
        "results": {"ids": [id_]},
    }
    return [
        (postgres_statement(name).text, tuple(postgres_statement(name).arguments(values)))
        for name, values in given.items()
    ]
