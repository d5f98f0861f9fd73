"""Sealers, pruners and slow transactions in each other's way: nothing is left out, and nobody is accused."""

import asyncio
from typing import Any

import asyncpg
import pytest

from forge_tools.artifacts.parts import PackedPart, pack
from forge_tools.model.artifacts import Artifact
from forge_tools.storage import Store, open_store
from forge_tools.storage.artifacts import Keeping
from forge_tools.storage.audit import OvertakenError, chain, hashes
from tests.contract.calls import finished, submitted
from tests.contract.sealed import forge, past, seal_all, sealed_past, verified
from tests.contract.statements import noted
from tests.contract.test_retention import by, everything, pruned
from tests.waiting import reached


async def open_ended(url: str, store: Store) -> tuple[asyncpg.Connection, str]:
    """A transaction that has ended a call and is not committed yet."""
    slow = await submitted(store)
    connection = await asyncpg.connect(url)
    await connection.execute("BEGIN")
    await connection.execute(
        "INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, metadata) "
        "VALUES ($1, 1, true, 'succeeded', now(), '{}')",
        slow,
    )
    await connection.execute("DELETE FROM execution_queue WHERE id = $1", slow)
    return connection, slow


async def test_an_end_that_is_committed_after_a_later_one_was_sealed_is_sealed_too(migrated_postgres: str) -> None:
    async with await open_store(migrated_postgres) as store:
        slow, _ = await open_ended(migrated_postgres, store)
        await finished(store, [await submitted(store)])
        assert await seal_all(store) == 1
        await slow.execute("COMMIT")
        await slow.close()
        assert await seal_all(store) == 1
        assert (await verified(store)).is_intact


async def test_a_sweep_that_never_ends_looks_back_for_such_an_end(
    migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "LOOK_BACK_SECONDS", 0.0)
    async with await open_store(migrated_postgres) as store:
        slow, _ = await open_ended(migrated_postgres, store)
        counts = []
        await finished(store, [await submitted(store)])
        async for sealed in store.audit.sweep(None, sealer="me", most=1):
            counts.append(sealed.executions)
            if len(counts) == 1:
                await slow.execute("COMMIT")
                await slow.close()
        assert counts == [1, 1]


async def test_a_sweep_ends_with_the_first_batch_that_is_not_full(store: Store) -> None:
    await finished(store, [await submitted(store) for _ in range(5)])
    counts = []
    async for sealed in store.audit.sweep(None, sealer="me", most=2):
        counts.append(sealed.executions)
        if counts == [2, 2]:
            await finished(store, [await submitted(store)])
        elif len(counts) > 2:
            await finished(store, [await submitted(store)])  # on a busy system something always has
    assert counts == [2, 2, 2, 1]


async def test_what_is_pruned_while_the_first_batch_is_made_is_not_in_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await past(store)
    hashed = hashes.hashes_of_events

    async def hashed_and_then_pruned(*arguments: Any) -> Any:
        found = await hashed(*arguments)
        monkeypatch.undo()
        assert await pruned(store, everything()) == 3
        return found

    monkeypatch.setattr(chain, "hashes_of_events", hashed_and_then_pruned)
    with pytest.raises(OvertakenError):
        await store.audit.seal(None, sealer="me")
    await seal_all(store)
    assert (await verified(store)).is_intact


async def test_a_chain_that_begins_while_something_is_pruned_has_a_checkpoint_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await past(store)
    delete = store.database.write

    async def first_sealed(work: Any) -> Any:
        monkeypatch.undo()
        assert await seal_all(store) == 3
        return await delete(work)

    monkeypatch.setattr(store.database, "write", first_sealed)
    assert await pruned(store, everything()) == 3
    report = await verified(store)
    assert (report.is_intact, report.pruned, report.checkpoints) == (True, 3, 1)


async def test_an_artifact_that_is_kept_again_while_its_first_call_is_pruned_stays(migrated_postgres: str) -> None:
    async with await open_store(migrated_postgres) as store:
        [old] = await past(store, 1)
        kept = Keeping(ttl=3600.0, quota=10**9)
        artifact = Artifact(id="a" * 32, size=3, session_id="s-1", execution_id=old)
        await store.artifacts.begin(artifact, kept)
        await store.artifacts.add(artifact.id, PackedPart(0, pack(b"abc")))
        await store.artifacts.finish(artifact, kept)
        other = await asyncpg.connect(migrated_postgres)
        await other.execute("BEGIN")
        await other.execute("SELECT FROM artifacts FOR UPDATE")
        pruning = asyncio.create_task(pruned(store, everything()))
        watch = await asyncpg.connect(migrated_postgres)
        await reached(lambda: watch.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        await other.execute("UPDATE artifact_owners SET execution_id = '01a00000-0000-7000-8000-00000000abcd'")
        await other.execute("COMMIT")
        assert await pruning == 1
        await other.close()
        await watch.close()
        assert await store.artifacts.purge() == 0
        assert await store.artifacts.find("a" * 32, "s-1") is not None


async def test_a_call_with_more_events_than_a_statement_has_room_for_can_be_pruned(store: Store) -> None:
    [id_] = await sealed_past(store, count=1)
    uuid = f"'{id_}'::uuid" if store.dialect == "postgresql" else f"'{id_}'"
    numbers = "WITH RECURSIVE n(x) AS (SELECT 100 UNION ALL SELECT x + 1 FROM n WHERE x < 33000)"
    moment = "now()" if store.dialect == "postgresql" else "'2026-01-01 00:00:00.000000'"
    none = "'\\x00'::bytea" if store.dialect == "postgresql" else "X'00'"
    await forge(
        store,
        f"INSERT INTO execution_events (id, execution_id, at, kind, actor, detail) {numbers} "
        f"SELECT x, {uuid}, {moment}, 'replayed', 'x', '{{}}' FROM n",
        f"INSERT INTO audit_events (event_id, batch, hashes) {numbers} SELECT x, 1, {none} FROM n",
    )
    assert (await store.retention.prune(everything(), by())).events > 32_767


async def test_whether_a_login_may_cancel_by_itself_is_asked_once(migrated_postgres: str) -> None:
    async with await open_store(migrated_postgres) as store, noted(store) as sent:
        for _ in range(3):
            await store.transitions.cancel(await submitted(store), actor="me", reason="")
    assert sum("has_table_privilege" in statement for statement, _ in sent) == 1
