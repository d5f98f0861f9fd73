"""The contract of pruning, on every database: old executions go with everything that belongs to them, and nothing else does."""

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forge_tools.artifacts.parts import PackedPart, pack
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.artifacts import Artifact
from forge_tools.model.audit import Fault, Pruned, Pruning
from forge_tools.model.execution import Outcome
from forge_tools.setting_types import RetentionRule
from forge_tools.storage import Store, open_store
from forge_tools.storage.artifacts import Keeping
from forge_tools.storage.audit import OvertakenError, Signer
from forge_tools.storage.retention import PruneRun, rest_after
from tests.contract.calls import call, ended, finish_one, finished, running, submitted
from tests.contract.sealed import forge, past, said, seal_all, sealed_past, verified
from tests.waiting import within
from workers.services.upkeep import Retention


def by(signer: Signer | None = None) -> PruneRun:
    return PruneRun(new_id(), "root", signer)


def everything(**more: Any) -> Pruning:
    return Pruning(ended_before=datetime.now(UTC) + timedelta(minutes=1), **more)


async def pruned(store: Store, what: Pruning, run: PruneRun | None = None, most: int = 1000) -> int:
    return sum([gone.executions async for gone in store.retention.sweep(what, run or by(), most=most)])


async def rows(store: Store, table: str) -> int:
    async with store.database.reading() as connection:
        return int((await connection.exec_driver_sql(f"SELECT count(*) FROM {table}")).scalar_one())


async def left(store: Store) -> set[str]:
    return {record.id for record in await store.history.list(limit=1000)}


async def test_what_is_over_goes_with_its_attempts_and_events(store: Store) -> None:
    await past(store)
    assert await pruned(store, everything()) == 3
    assert (await left(store), await rows(store, "execution_attempts")) == (set(), 0)
    async with store.database.reading() as connection:
        [(kind, actor)] = await connection.exec_driver_sql("SELECT kind, actor FROM execution_events")
    assert (kind, actor) == ("prune", "root")


async def test_what_waits_or_runs_is_never_touched(store: Store) -> None:
    queued, claim = await submitted(store), await running(store)
    retried = await running(store, idempotent=True, max_attempts=3)
    await finish_one(store, ended(retried, ExecutionStatus.FAILED, retry_in=60.0))
    assert await pruned(store, everything()) == 0
    assert await left(store) == {queued, claim.id, retried.id}
    assert await rows(store, "execution_attempts") == 1


async def test_age_counts_from_the_end_and_not_from_the_beginning(store: Store) -> None:
    slow = await running(store)
    [old] = await past(store, 1)
    what = Pruning(ended_before=(await store.history.get(old)).completed_at + timedelta(microseconds=1))
    await finish_one(store, ended(slow))
    assert await store.retention.count(what) == 1
    assert await pruned(store, what) == 1
    assert await left(store) == {slow.id}


@pytest.mark.parametrize(
    ("filters", "goes"),
    [
        ({"tool": "Bash"}, {"bash"}),
        ({"category": "execution"}, {"bash"}),
        ({"status": "failed"}, {"failed"}),
        ({"status": "rejected"}, {"rejected"}),
        ({"keep": ("failed", "rejected")}, {"bash", "plain"}),
        ({"tool": "Grep", "status": "succeeded"}, {"plain"}),
        ({"tool": "Bash", "status": "failed"}, set()),
    ],
)
async def test_only_what_is_asked_for_goes(store: Store, filters: dict[str, Any], goes: set[str]) -> None:
    claims = {"bash": await running(store, tool="Bash", category="execution"), "plain": await running(store)}
    await store.queue.finish_many([ended(claim) for claim in claims.values()])
    failed, new = await running(store), call()
    await finish_one(store, ended(failed, ExecutionStatus.FAILED))
    await store.queue.record(new, Outcome(id=new.id, attempt=0, token="", status=ExecutionStatus.REJECTED))
    ids = {name: claim.id for name, claim in claims.items()} | {"failed": failed.id, "rejected": new.id}
    assert await pruned(store, everything(**filters)) == len(goes)
    assert await left(store) == set(ids.values()) - {ids[name] for name in goes}


async def test_small_transactions_follow_each_other_until_nothing_is_left(store: Store) -> None:
    await finished(store, [await submitted(store) for _ in range(11)])
    counts = [gone.executions async for gone in store.retention.sweep(everything(), by(), most=4)]
    assert (sum(counts), max(counts)) == (11, 4)
    assert await rows(store, "execution_events") == sum(count > 0 for count in counts) >= 3  # more on a slow machine


async def test_a_run_that_was_stopped_goes_on_where_it_was(store: Store) -> None:
    await finished(store, [await submitted(store) for _ in range(6)])
    async for _ in store.retention.sweep(everything(), by(), most=2):
        break
    assert await pruned(store, everything()) == 4


async def test_where_few_match_the_rest_is_looked_through_in_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.storage.retention.LOOKED_AT", 3)
    await finished(store, [await submitted(store) for _ in range(10)])
    failed = await running(store)
    await finish_one(store, ended(failed, ExecutionStatus.FAILED))
    assert await pruned(store, everything(status="failed")) == 1
    assert failed.id not in await left(store)
    assert len(await left(store)) == 10


async def test_artifacts_that_nobody_else_holds_expire(store: Store) -> None:
    [mine, other] = await past(store, 2)
    kept = Keeping(ttl=3600.0, quota=10**9)
    for digit, owners in (("a", [(mine, "s-1")]), ("b", [(mine, "s-1"), (other, "s-2")])):
        for execution_id, session in owners:
            new = Artifact(id=digit * 32, size=3, session_id=session, execution_id=execution_id)
            await store.artifacts.begin(new, kept)
            await store.artifacts.add(new.id, PackedPart(0, pack(b"abc")))
            await store.artifacts.finish(new, kept)
    await forge(store, f"DELETE FROM execution_attempts WHERE execution_id = '{other}'")  # so that it stays
    assert await pruned(store, everything()) == 1
    assert await store.artifacts.purge() == 1
    assert await store.artifacts.find("b" * 32, "s-2") is not None
    assert await store.artifacts.find("b" * 32, "s-1") is None


@pytest.fixture
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate())


async def test_a_checkpoint_in_the_chain_says_what_went(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    kept = await sealed_past(store, signer, count=1)
    assert await pruned(store, everything(keep=("failed",)), by(signer), most=2) == 4
    await seal_all(store, signer)  # the events of the run
    report = await verified(store, signer)
    assert (report.is_intact, report.executions, report.pruned, report.checkpoints) == (True, 0, 4, report.checkpoints)
    assert report.checkpoints >= 2
    assert kept
    assert await rows(store, "audit_executions") == 0  # nothing is left of their batches


async def test_what_is_left_of_a_batch_is_still_proven(store: Store, signer: Signer) -> None:
    ids = await sealed_past(store, signer, count=4)
    new = await running(store)
    await finish_one(store, ended(new, ExecutionStatus.FAILED))
    await seal_all(store, signer)
    assert await pruned(store, everything(status="failed"), by(signer)) == 1
    await forge(store, f"UPDATE executions SET session_id = 'prune me' WHERE id = '{ids[1]}'")
    assert [one.key for one in (await verified(store, signer)).findings] == [ids[1]]


@pytest.mark.parametrize("with_mark", [False, True])
async def test_who_deletes_without_a_checkpoint_is_found_out(store: Store, signer: Signer, *, with_mark: bool) -> None:
    ids = await sealed_past(store, signer, count=5)
    first = Pruning(ended_before=everything().ended_before)
    run = by(signer)
    gone = await store.retention.prune(first, run, most=2)
    assert gone.executions == 2
    assert (await verified(store, signer)).is_intact
    victim = ids[3]
    await forge(store, *(f"DELETE FROM {table} WHERE {key} = '{victim}'" for table, key in
                         (("executions", "id"), ("execution_attempts", "execution_id"))))  # fmt: skip
    if with_mark:
        await forge(store, f"UPDATE audit_executions SET pruned_by = 2 WHERE execution_id = '{victim}'")
    assert said(await verified(store, signer)) == (
        {("broken batch", "audit_executions")}
        if with_mark
        else {("removed", "executions"), ("removed", "execution_attempts")}
    )


async def test_what_was_pruned_cannot_come_back(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    await forge(
        store, *(f"CREATE TABLE kept_{one} AS SELECT * FROM {one}" for one in ("executions", "execution_attempts"))
    )
    assert (await store.retention.prune(everything(), by(signer), most=2)).executions == 2
    await forge(
        store,
        "INSERT INTO executions SELECT * FROM kept_executions WHERE id NOT IN (SELECT id FROM executions)",
        "INSERT INTO execution_attempts SELECT * FROM kept_execution_attempts k WHERE NOT EXISTS "
        "(SELECT 1 FROM execution_attempts a WHERE a.execution_id = k.execution_id)",
    )
    report = await verified(store, signer)
    assert {(one.fault, one.said) for one in report.findings} == {(Fault.INSERTED, "it was pruned, and is there again")}


async def test_a_forged_checkpoint_is_not_signed(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    stranger = Signer(Ed25519PrivateKey.generate())
    assert await pruned(store, everything(), by(stranger)) == 3
    assert {one.fault for one in (await verified(store, signer)).findings} == {Fault.UNKNOWN_KEY}


async def test_a_signed_chain_is_not_pruned_without_the_key(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    with pytest.raises(ConfigurationError, match="FORGE_AUDIT_KEY"):
        await pruned(store, everything())
    assert len(await left(store)) == 3


async def test_a_sealer_and_a_pruner_at_once_leave_a_whole_chain(
    migrated_url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.storage.retention.BUSY_REST", 0.0)
    await sealed_past(store)
    stop = asyncio.Event()

    async def traffic() -> None:
        async with await open_store(migrated_url) as other:
            time_left = within(60, "nobody stops the traffic")
            while not stop.is_set() and next(time_left):
                began = time.monotonic()
                await finished(other, [await submitted(other) for _ in range(3)])
                with suppress(OvertakenError):
                    await other.audit.seal(None, sealer="sealer", most=10)
                await asyncio.sleep(
                    time.monotonic() - began
                )  # without a rest it overtakes every pruner of a slow machine

    going = asyncio.create_task(traffic())
    before, count = everything(), 0
    time_left = within(60, "too little is pruned")
    while count < 20 and next(time_left):
        count += await pruned(store, before, most=7)
    stop.set()
    await going
    await seal_all(store)
    report = await verified(store)
    assert report.is_intact, report.findings
    assert report.pruned > 0


async def test_a_worker_prunes_by_the_rules_of_the_settings(store: Store) -> None:
    await past(store)
    rules = (RetentionRule(days=1e-9, status="failed"), RetentionRule(days=1e-9, tool="Grep"))
    settings = Settings(retention=rules)
    assert await Retention(store, "instance-1", settings, None).prune() == 3


def test_a_rest_is_longer_beside_live_calls_and_bounded() -> None:
    assert rest_after(Pruned(seconds=0.2)) == pytest.approx(0.1)
    assert rest_after(Pruned(seconds=0.2, is_busy=True)) == pytest.approx(2.4)
    assert rest_after(Pruned(seconds=9.0, is_busy=True)) == 10.0
