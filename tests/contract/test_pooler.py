"""A Store behind PgBouncer: `FORGE_TEST_PGBOUNCER=1` asks for it, and then it must be installed.

Modules of this folder that say `POOLED` run behind it as well.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text

from forge_tools.cli.checks import Level
from forge_tools.cli.doctor import check_connections
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Wakeup
from forge_tools.storage import Store, migrate, open_store
from forge_tools.storage.connection.drivers import Address, Owner
from forge_tools.storage.connection.pool import knows_names, role_setting
from forge_tools.storage.queue.postgres import PostgresHotPath
from tests import pooler as poolers
from tests.conftest import started
from tests.contract.calls import SCOPE, beat, call, ended, finish_one, instance, scope, statuses, submit_one, submitted
from tests.pooler import SERVERS, Pooler
from tests.server_process import ServiceMissingError
from tests.services import GivenPostgres, PostgresServer, Services

CLIENTS = 12
TAKES_ANYTHING = "statement_timeout,lock_timeout,enable_seqscan,enable_hashjoin,enable_mergejoin,enable_bitmapscan,jit,plan_cache_mode,work_mem"
WHERE = "SELECT pg_backend_pid() AS server, current_setting('statement_timeout') AS timeout, current_setting('enable_seqscan') AS scans"


@pytest.fixture
def url(migrated_pooled: str) -> str:
    return migrated_pooled


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with await open_store(url) as opened:
        yield opened


@pytest.fixture
def own_pooler(pooler: Pooler, postgres: PostgresServer | GivenPostgres, services: Services) -> Iterator[Any]:
    """Makes a pooler of a test's own, in the mode and with the settings that it names; needs that of the session to be wanted."""
    stack: list[Pooler] = []

    def make(mode: str, **settings: Any) -> Pooler:
        folder = services.folder(f"pooler-{len(stack)}")
        stack.append(started(lambda: Pooler(folder, postgres.url, mode, **settings).start()))
        return stack[-1]

    yield make
    for one in stack:
        one.stop()


def test_a_run_that_asks_for_a_pooler_where_there_is_none_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ServiceMissingError, match=r"apt-get install pgbouncer.*unset FORGE_TEST_PGBOUNCER"):
        poolers.find_pgbouncer()


async def to_its_end(store: Store, name: str) -> list[str]:
    """Submit, claim and finish calls of this client's own, one after another, reading in between."""
    mine = scope(instance=name, tool_keys=(f"{name}@1",))
    ids = []
    for _ in range(10):
        new = call(tool_key=f"{name}@1")
        await submit_one(store, new)
        await beat(store, name)
        assert await store.queue.due(mine, 10) == [Wakeup(new.id, 0)]
        [claim] = await store.queue.claim([Wakeup(new.id, 0)], mine)
        assert (await store.history.get(new.id)).status is ExecutionStatus.RUNNING
        assert await finish_one(store, ended(claim))
        ids.append(new.id)
    return ids


async def test_many_clients_share_two_servers_and_none_meets_what_another_prepared(url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await open_store(url, patience=30)) for _ in range(CLIENTS)]
        for n, one in enumerate(stores):
            await one.workers.register(instance(f"instance-{n}"))
        done = await asyncio.gather(*(to_its_end(one, f"instance-{n}") for n, one in enumerate(stores)))
        ids = [id_ for some in done for id_ in some]
        found = await statuses(stores[0], ids)
    assert Counter(found.values()) == {ExecutionStatus.SUCCEEDED: 10 * CLIENTS}


async def servers_seen(store: Store) -> dict[int, tuple[str, str]]:
    """What transactions at once find set, by the server that each has."""

    async def one(is_long: bool) -> tuple[int, tuple[str, str]]:
        async with store.database.reading(is_long=is_long) as connection:
            row = (await connection.execute(text(WHERE))).one()
            await connection.execute(text("SELECT pg_sleep(0.05)"))  # the next one gets the other server
            return row.server, (row.timeout, row.scans)

    return dict(await asyncio.gather(*(one(is_long=False) for _ in range(2 * SERVERS))))


async def test_pinned_plans_and_long_limits_end_with_their_transaction(
    store: Store, url: str, migrated_postgres: str
) -> None:
    usual = await asyncpg.connect(migrated_postgres)
    before = (await usual.fetchval("SHOW statement_timeout"), "on")
    async with store.database.reading(is_long=True) as connection:
        assert await connection.scalar(text("SHOW statement_timeout")) == "5min"
    path = PostgresHotPath(Address.parse(url), Owner(), connect_timeout=3.0, deadline=None)
    hot = await asyncio.gather(*(path.fetch(f"{WHERE}, pg_sleep(0.05)") for _ in range(2 * SERVERS)))
    await path.close()
    assert {row["scans"] for [row] in hot} == {"off"}

    seen = await servers_seen(store)
    assert seen.keys() == {row["server"] for [row] in hot}
    assert list(seen.values()) == [before] * SERVERS
    await usual.close()


@pytest.mark.parametrize(("mode", "servers"), [("transaction", SERVERS), ("session", 20)])
async def test_what_happens_while_the_pooler_restarts_happens_once(
    own_pooler: Any, migrated_postgres: str, mode: str, servers: int
) -> None:
    pooler = own_pooler(mode, default_pool_size=servers)
    async with await open_store(pooler.url(migrated_postgres), patience=None) as store:
        calls = [call() for _ in range(60)]

        async def carry(new: Any) -> None:
            await submit_one(store, new)
            [claim] = await store.queue.claim([Wakeup(new.id, 0)], SCOPE)
            assert claim.attempt == 1
            assert await finish_one(store, ended(claim))

        async with asyncio.TaskGroup() as group:
            for n, new in enumerate(calls):
                group.create_task(carry(new))
                await asyncio.sleep(0.01)
                if n in (15, 35):
                    pooler.restart()
        ids = [new.id for new in calls]
        assert Counter((await statuses(store, ids)).values()) == {ExecutionStatus.SUCCEEDED: len(calls)}
        attempts = [attempt for id_ in ids for attempt in await store.history.attempts(id_)]
        assert len(attempts) == len(calls)


async def test_a_pooler_in_session_mode_is_used_the_same_way(own_pooler: Any, migrated_postgres: str) -> None:
    pooler = own_pooler("session", default_pool_size=10)
    async with await open_store(pooler.url(migrated_postgres)) as store:
        await store.workers.register(instance())
        assert len(await to_its_end(store, "instance-1")) == 10
        assert {scans for _, scans in (await servers_seen(store)).values()} == {"on"}


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_pooler_that_nobody_mentioned_is_named_with_the_way_out(
    own_pooler: Any, migrated_postgres: str, mode: str
) -> None:
    pooler = own_pooler(mode)
    with pytest.raises(ConfigurationError, match=r"unsupported startup parameter.*FORGE_DATABASE_POOLER=transaction"):
        await open_store(pooler.url(migrated_postgres, says_so=False))


async def test_a_pooler_that_drops_settings_is_named_as_soon_as_a_statement_meets_another_server(
    own_pooler: Any, migrated_postgres: str
) -> None:
    pooler = own_pooler("transaction", follows=False, ignore_startup_parameters=TAKES_ANYTHING)
    url = pooler.url(migrated_postgres, says_so=False)

    async def meet() -> None:
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(await open_store(url)) for _ in range(CLIENTS)]
            await asyncio.gather(*(submitted(one) for one in stores for _ in range(5)))

    with pytest.raises(ConfigurationError, match=r"prepared statement.*FORGE_DATABASE_POOLER=transaction"):
        await meet()


def test_migrations_are_refused_by_a_pooler_that_passes_for_a_server(own_pooler: Any, fresh_postgres: str) -> None:
    pooler = own_pooler("transaction", ignore_startup_parameters=TAKES_ANYTHING)
    with pytest.raises(ConfigurationError, match=r"direct connection.*FORGE_DATABASE_MIGRATION_URL"):
        migrate.upgrade(pooler.url(fresh_postgres, says_so=False))
    assert migrate.current(fresh_postgres) is None


async def test_a_pooler_that_follows_prepared_statements_is_told_from_one_that_does_not(
    pooler: Pooler, url: str
) -> None:
    connection: Any = await asyncpg.connect(pooler.url(url, says_so=False), statement_cache_size=0)
    for _ in range(2):
        assert await knows_names(connection) == pooler.follows_statements
    assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'forge%'") == 0
    await connection.close()


async def test_what_the_upgrade_prints_for_the_role_is_what_the_doctor_asks_for(
    pooler: Pooler, url: str, migrated_postgres: str
) -> None:
    settings = Settings.load(database_url=pooler.url(migrated_postgres, says_so=False), database_pooler="transaction")
    levels = []
    for setting in ("SELECT 1", role_setting(settings.database)):
        owner = await asyncpg.connect(migrated_postgres)
        await owner.execute(setting)
        await owner.close()
        pooler.restart()  # its connections to the server are new
        async with await open_store(settings.database) as store:
            found = await store.connections()
            assert found is not None
            levels.append(check_connections(found, 1, settings).level)
    assert levels == [Level.PROBLEM, Level.OK]


async def test_what_is_refused_is_rolled_back_and_the_connection_goes_on(store: Store) -> None:
    fine, error, also_fine = await store.queue.submit_many([call(), call(parameters="{broken"), call()])
    assert (fine, also_fine) == (None, None)
    assert error is not None
    assert len(await store.queue.due(SCOPE, 10)) == 2
