"""The contract of the audit chain, on every database: every change of ended executions is found."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from forge_tools.model import new_id
from forge_tools.model.audit import Fault, Pruning
from forge_tools.model.execution import Kept
from forge_tools.storage import Store, open_store
from forge_tools.storage.audit import Signer, Trust, batches
from forge_tools.storage.audit.batches import OvertakenError
from forge_tools.storage.audit.chain import ALL
from forge_tools.storage.retention import PruneRun
from forge_tools.storage.sqlalchemy_tables import (
    audit_batches,
    audit_executions,
    execution_attempts,
    execution_events,
    executions,
)
from tests.contract.calls import call, claimed, ended, finish_one, finished, running, submitted
from tests.contract.sealed import (
    changing,
    forge,
    lift_the_checks,
    migrated_postgres,
    migrated_sqlite,
    past,
    put_back,
    said,
    seal_all,
    sealed_past,
    verified,
)
from tests.waiting import within

SIGNER = Signer(Ed25519PrivateKey.generate())
SEALED = [executions, execution_attempts, execution_events]

__all__ = ["migrated_postgres", "migrated_sqlite"]  # the fixtures: whoever owns the tables can have them refuse nothing


async def fill(url: str) -> None:
    """Two batches, each of three calls and signed, in tables that refuse nothing."""
    lift_the_checks(url)
    async with await open_store(url) as store:
        for _ in range(2):
            await sealed_past(store, SIGNER)


@pytest.fixture
async def ids(copied: Store) -> list[str]:
    """The calls of the last batch of what was copied, in their order."""
    return [one.id for one in await copied.history.list(limit=3)][::-1]


@pytest.fixture
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate())


async def test_what_was_sealed_and_left_alone_is_intact(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    report = await verified(store, signer)
    assert (report.is_intact, report.executions, report.events, report.signatures) == (True, 3, 2, 1)
    assert report.ended_from is not None
    assert report.ended_until is not None
    assert report.ended_from <= report.ended_until
    assert report.key_ids == [signer.key_id]


async def test_a_database_without_a_past_is_intact(store: Store) -> None:
    await submitted(store)
    assert await store.audit.seal(None, sealer="me") is None
    report = await verified(store)
    assert (report.is_intact, report.head, report.executions) == (True, None, 0)


async def test_what_waits_and_runs_is_not_sealed_before_it_is_over(store: Store) -> None:
    queued, claim = await submitted(store), await running(store)
    assert await seal_all(store) == 0
    await finish_one(store, ended(claim))
    assert await seal_all(store) == 1
    await finished(store, [queued])
    report = await verified(store)
    assert (report.is_intact, report.executions, report.unsealed) == (True, 1, 1)
    assert report.oldest_unsealed is not None


async def test_ends_are_sealed_in_their_own_order_not_in_that_of_submission(store: Store) -> None:
    first, second = await running(store), await running(store)
    await finish_one(store, ended(second))
    assert await seal_all(store) == 1
    await finish_one(store, ended(first))
    assert await seal_all(store) == 1
    assert (await verified(store)).is_intact


async def test_an_end_that_came_to_light_late_is_sealed_all_the_same(store: Store) -> None:
    hidden, shown = await submitted(store), await submitted(store)
    await finished(store, [hidden])
    await finished(store, [shown])
    head_before_commit = f"UPDATE execution_attempts SET final = {'false' if store.dialect == 'postgresql' else 0}"
    await forge(store, f"{head_before_commit} WHERE execution_id = '{hidden}'")
    assert await seal_all(store) == 1
    await forge(store, head_before_commit.replace("= false", "= true").replace("= 0", "= 1"))
    assert await seal_all(store) == 1
    assert (await verified(store)).is_intact


async def test_batches_are_bounded_and_each_follows_the_one_before(store: Store, signer: Signer) -> None:
    await sealed_past(store, count=1)
    for _ in range(7):
        await finished(store, [await submitted(store)])
    assert await seal_all(store, signer, most=3) == 7
    async with store.database.reading() as connection:
        found = await batches.following(connection, 0, 10)
    assert [one.sequence for one in found] == [1, 2, 3, 4]
    assert [one.executions for one in found] == [1, 3, 3, 1]
    assert [one.previous for one in found[1:]] == [one.hash for one in found[:-1]]


async def test_an_event_that_is_added_after_the_end_is_sealed_by_itself(store: Store) -> None:
    claim = await running(store, idempotent=True, max_attempts=2)
    await store.transitions.recover(claim_instance := "instance-1", "dead")
    assert claim_instance
    again = await claimed(store, claim.id, 1)
    await finish_one(store, ended(again))
    await seal_all(store)
    assert await finish_one(store, ended(claim)) is Kept.LATE
    report = await verified(store)
    assert (report.is_intact, report.events) == (True, 1)
    assert await seal_all(store) == 0
    report = await verified(store)
    assert (report.is_intact, report.events, report.batches) == (True, 2, 2)


@pytest.mark.parametrize("table", SEALED, ids=str)
async def test_a_change_of_any_column_is_found_and_its_row_is_named(copied: Store, ids: list[str], table: Any) -> None:
    where = f"{'id' if table is executions else 'execution_id'} = '{ids[0]}'"
    for column in table.c:
        async with put_back(copied, table):
            await forge(copied, changing(table, column, copied.dialect, f"{where} AND {pick(table, column)}"))
            report = await verified(copied)
        assert not report.is_intact, column
        named = {finding.table for finding in report.findings}
        assert table.name in named, (column, report.findings)
        assert any(ids[0] in finding.key for finding in report.findings) or table is execution_events, column
    assert (await verified(copied)).is_intact


def pick(table: Any, column: Any) -> str:
    """One row, so that a changed key collides with no other."""
    if table is execution_attempts:
        return "attempt = 2"
    return "kind = 'late'" if table is execution_events else "1 = 1"


@pytest.mark.parametrize("table", SEALED, ids=str)
async def test_emptying_a_column_is_found(copied: Store, ids: list[str], table: Any) -> None:
    where = f"{'id' if table is executions else 'execution_id'} = '{ids[0]}' AND {pick(table, None)}"
    before = (await verified(copied)).found
    for column in (one for one in table.c if one.nullable):
        async with copied.database.reading() as connection:
            values = (await connection.exec_driver_sql(f"SELECT {column.name} FROM {table.name} WHERE {where}")).all()
        if values[0][0] is None:
            continue
        await forge(copied, f"UPDATE {table.name} SET {column.name} = NULL WHERE {where}")
        report = await verified(copied)
        assert report.found >= max(1, before)
        before = report.found
        assert (Fault.CHANGED.value, table.name) in said(report)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM executions WHERE id = '{0}'", ("removed", "executions")),
        (
            "DELETE FROM execution_attempts WHERE execution_id = '{0}' AND attempt = 1",
            ("removed", "execution_attempts"),
        ),
        ("DELETE FROM execution_events WHERE kind = 'late'", ("removed", "execution_events")),
        ("DELETE FROM audit_executions WHERE execution_id = '{0}'", ("broken batch", "audit_executions")),
        ("DELETE FROM audit_executions", ("broken batch", "audit_executions")),
        ("DELETE FROM audit_events", ("broken batch", "audit_executions")),
        (
            "UPDATE audit_executions SET pruned_by = 1 WHERE execution_id = '{0}'",
            ("broken batch", "audit_executions"),
        ),
        ("UPDATE audit_executions SET batch = 3 WHERE execution_id = '{0}'", ("inserted", "audit_executions")),
        ("UPDATE execution_attempts SET attempt = attempt + 5", ("inserted", "execution_attempts")),
    ],
)
async def test_what_is_removed_is_named(copied: Store, ids: list[str], statement: str, found: tuple[str, str]) -> None:
    await forge(copied, statement.format(*ids))
    report = await verified(copied)
    assert found in said(report), report.findings


async def test_rows_that_are_inserted_into_the_past_are_named(store: Store) -> None:
    ids = await sealed_past(store)
    [new] = await past(store, 1)
    days_ago = datetime.now(UTC) - timedelta(days=3)
    moment = days_ago.isoformat(" ") if store.dialect == "postgresql" else days_ago.strftime("%Y-%m-%d %H:%M:%S.%f")
    await forge(store, f"UPDATE execution_attempts SET completed_at = '{moment}' WHERE execution_id = '{new}'")
    report = await verified(store)
    assert [(one.fault, one.table, one.key) for one in report.findings] == [(Fault.INSERTED, "executions", new)]
    copied = "INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, metadata) "
    await forge(store, f"{copied} SELECT execution_id, 9, final, status, completed_at, metadata FROM execution_attempts "
                f"WHERE execution_id = '{ids[1]}'")  # fmt: skip
    report = await verified(store)
    assert (Fault.INSERTED, f"{ids[1]} attempt 9") in {(one.fault, one.key) for one in report.findings}


async def test_what_was_inserted_into_the_past_is_sealed_only_when_somebody_says_so(store: Store) -> None:
    await sealed_past(store)
    [new] = await past(store, 1)
    long_ago = "2026-01-01 00:00:00.000000" + ("+00" if store.dialect == "postgresql" else "")
    await forge(store, f"UPDATE execution_attempts SET completed_at = '{long_ago}' WHERE execution_id = '{new}'")
    assert await seal_all(store) == 0
    sealed = await store.audit.seal(None, sealer="me", behind=ALL)
    assert sealed is not None
    assert sealed.executions == 1
    report = await verified(store)
    assert report.is_intact
    assert report.longest_wait > 86_400


async def test_a_call_that_vanished_from_the_queue_is_named(store: Store) -> None:
    id_ = await submitted(store)
    earlier = datetime.now(UTC) - timedelta(hours=1)
    moment = earlier.isoformat(" ") if store.dialect == "postgresql" else earlier.strftime("%Y-%m-%d %H:%M:%S.%f")
    await forge(store, "DELETE FROM execution_queue", f"UPDATE executions SET queued_at = '{moment}'")
    report = await verified(store)
    assert [(one.fault, one.key) for one in report.findings] == [(Fault.UNFINISHED, id_)]


async def test_two_rows_that_change_places_are_both_named(store: Store) -> None:
    ids = await sealed_past(store)
    swap = "UPDATE execution_attempts SET execution_id = CASE execution_id WHEN '{1}' THEN '{2}' ELSE '{1}' END "
    if store.dialect == "postgresql":
        swap = swap.replace("'{1}' THEN '{2}' ELSE '{1}' END", "'{1}'::uuid THEN '{2}'::uuid ELSE '{1}'::uuid END")
    spare = "UPDATE execution_attempts SET attempt = 7 WHERE execution_id = '{1}'"
    await forge(store, *(one.format(*ids) for one in (spare, f"{swap} WHERE execution_id IN ('{{1}}', '{{2}}')")))
    report = await verified(store)
    assert {ids[1], ids[2]} <= {finding.key.split()[0] for finding in report.findings}


async def test_a_change_of_the_chain_itself_is_found(copied: Store) -> None:
    for column in audit_batches.c:
        where = "sequence = 2" if column.name == "sequence" else "sequence = 1"
        async with put_back(copied, audit_batches):
            await forge(copied, changing(audit_batches, column, copied.dialect, where))
            assert not (await verified(copied, SIGNER)).is_intact, column
    assert (await verified(copied, SIGNER)).is_intact


async def test_a_batch_that_is_deleted_leaves_a_gap(store: Store) -> None:
    for _ in range(3):
        await sealed_past(store)
    await forge(store, "DELETE FROM audit_batches WHERE sequence = 2")
    report = await verified(store)
    assert (Fault.MISSING_BATCH.value, "audit_batches") in said(report)
    assert (Fault.INSERTED.value, "audit_executions") in said(report)


async def test_a_tail_that_is_cut_off_is_found_by_a_head_that_was_kept_elsewhere(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    await sealed_past(store, signer)
    head = await store.audit.head()
    assert head is not None
    kept = [(head.sequence, head.hash)]
    report = await verified(store, signer, heads=kept)
    assert (report.is_intact, report.kept_heads) == (True, 1)
    cut = ("audit_batches WHERE sequence = 2", "audit_executions WHERE batch = 2", "audit_events WHERE batch = 2")
    await forge(store, *(f"DELETE FROM {one}" for one in cut))
    assert said(await verified(store, signer, heads=kept)) == {(Fault.OTHER_HEAD.value, "audit_batches")}
    await seal_all(store, signer)  # a sealer that goes on from there does not mend it
    assert said(await verified(store, signer, heads=kept)) == {(Fault.OTHER_HEAD.value, "audit_batches")}


async def test_heads_of_another_chain_are_one_finding_that_says_so(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    head = await store.audit.head()
    assert head is not None
    ours, others = (head.sequence, head.hash), [(number, "0" * 64) for number in (1, 2, 3)]
    [finding] = (await verified(store, signer, heads=[ours, *others])).findings
    assert finding.said.startswith("3 of 4 heads that were kept elsewhere are not in the chain; the first is 1:0000")
    [finding] = (await verified(store, signer, heads=others)).findings
    assert "3 of 3 heads that were kept elsewhere are not in the chain: they are of another database" in finding.said


async def test_pruning_leaves_every_head_where_it_was(store: Store, signer: Signer) -> None:
    kept = []
    for _ in range(2):
        await sealed_past(store, signer)
        head = await store.audit.head()
        assert head is not None
        kept.append((head.sequence, head.hash))
    what = Pruning(ended_before=datetime.now(UTC) + timedelta(hours=1))
    gone = await store.retention.prune(what, PruneRun(new_id(), "tester", signer))
    assert gone.executions == 6
    assert (await verified(store, signer, heads=kept)).is_intact


async def rebuilt(store: Store, by: Signer | None) -> None:
    """Make the whole chain anew over what is stored now, as somebody who knows how it is made."""
    await forge(store, *(f"DELETE FROM {table}" for table in ("audit_batches", "audit_executions", "audit_events")))
    await store.audit.seal(by, sealer="tester", behind=ALL)


@pytest.mark.parametrize(("by", "fault"), [("nobody", Fault.UNSIGNED), ("a stranger", Fault.UNKNOWN_KEY)])
async def test_a_chain_made_again_is_not_signed_by_the_key(store: Store, signer: Signer, by: str, fault: Fault) -> None:
    await sealed_past(store, signer)
    await forge(store, "UPDATE execution_attempts SET error = 'forged'")
    await rebuilt(store, None if by == "nobody" else Signer(Ed25519PrivateKey.generate()))
    assert (await verified(store)).is_intact  # all that can be said without a key
    assert {finding.fault for finding in (await verified(store, signer)).findings} == {fault}


async def test_a_stranger_cannot_sign_in_the_name_of_the_key(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    stranger = Signer(Ed25519PrivateKey.generate())
    stranger.key_id = signer.key_id
    await rebuilt(store, stranger)
    assert {finding.fault for finding in (await verified(store, signer)).findings} == {Fault.BAD_SIGNATURE}


async def test_batches_from_before_there_was_a_key_are_accepted_on_request(store: Store, signer: Signer) -> None:
    await sealed_past(store)
    await sealed_past(store, signer)
    assert {finding.fault for finding in (await verified(store, signer)).findings} == {Fault.UNSIGNED}
    assert (await verified(store, signer, signed_from=2)).is_intact


async def test_keys_may_follow_each_other(store: Store, signer: Signer) -> None:
    next_one = Signer(Ed25519PrivateKey.generate())
    await sealed_past(store, signer)
    await sealed_past(store, next_one)
    assert {finding.fault for finding in (await verified(store, signer)).findings} == {Fault.UNKNOWN_KEY}
    assert (await store.audit.verify(Trust([signer.public, next_one.public]))).signatures == 2


async def test_two_sealers_at_once_seal_everything_once(migrated_url: str, store: Store) -> None:
    calls = [call() for _ in range(60)]
    await store.queue.submit_many(calls)
    await finished(store, [one.id for one in calls])

    async def sealer(own: Store, name: str) -> int:
        count = 0
        for _ in within(60, "there is always more to seal"):
            try:
                sealed = await own.audit.seal(None, sealer=name, most=7)
            except OvertakenError:
                continue
            if sealed is None:
                break
            count += sealed.executions
        return count

    async with await open_store(migrated_url) as other:
        counts = await asyncio.gather(sealer(store, "a"), sealer(other, "b"))
    report = await verified(store)
    assert (sum(counts), report.executions, report.is_intact) == (60, 60, True)


async def test_large_outputs_are_read_a_few_at_a_time_and_compared_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.storage.audit.hashes.READ_AT_ONCE", 2)
    for _ in range(5):
        await finish_one(store, ended(await running(store), output=f'"{"x" * 20_000}"'))
    assert await seal_all(store) == 5
    assert (await verified(store)).is_intact
    await forge(store, "UPDATE execution_attempts SET output = '\"y\"'")
    assert (await verified(store)).found == 5


async def test_findings_are_all_counted_and_the_first_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.audit.verification.MOST_FINDINGS", 2)
    await sealed_past(store, count=6)
    await forge(store, "UPDATE executions SET tool = 'Forged'")
    report = await verified(store)
    assert (report.found, len(report.findings)) == (6, 2)


async def test_progress_tells_how_much_was_compared(store: Store) -> None:
    await sealed_past(store)
    heard: list[int] = []
    await verified(store, told=heard.append)
    assert heard == [3]
    assert await store.audit.count() == 3


async def test_entries_hold_what_the_page_of_the_documentation_says(store: Store) -> None:
    ids = await sealed_past(store)
    async with store.database.reading() as connection:
        hashes = await connection.scalar(
            select(audit_executions.c.hashes).where(audit_executions.c.execution_id == ids[0])
        )
        [batch] = await batches.following(connection, 0, 5)
    assert len(bytes(hashes)) == 32 + 2 * (4 + 32)
    assert replace(batch, executions=9).computed_hash() != batch.hash == batch.computed_hash()


async def test_garbage_where_a_time_should_be_stops_neither_sealer_nor_verifier(store: Store) -> None:
    if store.dialect == "postgresql":
        return  # which takes no garbage
    [first, second, third] = await past(store)
    await forge(store, f"UPDATE execution_attempts SET completed_at = X'FF00' WHERE final AND execution_id = '{first}'")
    await forge(store, f"UPDATE execution_attempts SET error = CAST(X'FF' AS TEXT) WHERE execution_id = '{second}'")
    assert await seal_all(store) == 3
    assert (await verified(store)).is_intact
    await forge(store, f"UPDATE execution_attempts SET error = CAST(X'41FE' AS TEXT) WHERE execution_id = '{second}'")
    await forge(store, f"UPDATE executions SET queued_at = 'now' WHERE id = '{third}'")
    assert (await verified(store)).found == 2
