"""Rows that somebody else wrote: whoever reads them says which they are, and goes on with the others."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import ErrorCode, ForeignRowError, ForgeError
from forge_tools.records import ExecutionStatus, Ring
from forge_tools.records.audit import Pruning
from forge_tools.storage import Store, open_store
from forge_tools.storage.foreign import MOST_TOLD, is_sound, misfit
from forge_tools.storage.looks import Question
from forge_tools.storage.retention import PruneRun
from tests.contract.calls import SCOPE, boot, ended, finished, overdue, running, scope, submitted
from tests.contract.sealed import forge, past, seal_all, sealed_past, verified
from tests.contract.test_catalogue import GREP

NO_TEXT = "CAST(x'ff41fe' AS TEXT)"
"""SQL of a text that is no UTF-8."""

BLOB = "x'ff00'"


@pytest.fixture
async def lenient(migrated_sqlite: str) -> AsyncIterator[Store]:
    """A store on SQLite, which keeps anything in any column; a careless restore has left out NOT NULL, too."""
    with closing(sqlite3.connect(Path(migrated_sqlite.removeprefix("sqlite:///")))) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') "
            "WHERE name IN ('executions', 'execution_attempts', 'execution_events', 'workers', 'tools')"
        )
    async with await open_store(migrated_sqlite, patience=None) as opened:
        yield opened


async def spoil(store: Store, table: str, column: str, value: str, where: str = "1") -> None:
    await forge(store, f"UPDATE {table} SET {column} = {value} WHERE {where}")


async def pages(pages: Any) -> list[Any]:
    return [one async for stretch in pages for one in stretch]


# Lists show the rest.


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("queued_at", "'2026-13-45 nonsense'"),
        ("tool", NO_TEXT),
        ("tool", BLOB),
        ("parameters", "'{'"),
        ("context", "'[1]'"),
        ("parameters", "7"),
        ("timeout", "'long'"),
        ("category", "NULL"),
    ],
)
async def test_a_list_leaves_a_foreign_row_out_and_the_log_names_it(
    lenient: Store, caplog: pytest.LogCaptureFixture, column: str, value: str
) -> None:
    first, second, third = [await submitted(lenient) for _ in range(3)]
    await spoil(lenient, "executions", column, value, f"id = '{second}'")

    assert [one.id for one in await lenient.history.list()] == [third, first]
    assert [one.id for one in await pages(lenient.history.pages(size=2))][:1] == [first]
    told = [str(vars(record)["error"]) for record in caplog.records]
    assert any(second in one and f"its {column} is" in one for one in told)
    with pytest.raises(ForeignRowError, match=rf"Row {second} of table executions cannot be read: its {column} is .*"):
        await lenient.history.get(second)
    assert (await lenient.history.get(third)).id == third


async def test_pages_full_of_foreign_rows_are_passed_over_and_told_by_their_number(
    lenient: Store, caplog: pytest.LogCaptureFixture
) -> None:
    first = await submitted(lenient)
    for _ in range(12):
        await submitted(lenient)
    await spoil(lenient, "executions", "parameters", "'none'", f"id > '{first}'")
    assert [one.id for one in await lenient.history.list(limit=4)] == [first]
    assert [one.id for one in await pages(lenient.history.pages(size=4))] == [first]
    caplog.clear()
    assert [one.id for one in await lenient.history.list()] == [first]
    assert len(caplog.records) == MOST_TOLD + 1
    assert vars(caplog.records[-1])["count"] == 12 - MOST_TOLD


@pytest.mark.parametrize(
    ("column", "value"), [("at", "'soon'"), ("at", BLOB), ("kind", BLOB), ("detail", "'{'"), ("actor", NO_TEXT)]
)
async def test_events_are_listed_beside_a_foreign_one(lenient: Store, column: str, value: str) -> None:
    await past(lenient)
    numbers = [one.id for one in await lenient.history.list_events()]
    await spoil(lenient, "execution_events", column, value, f"id = {numbers[0]}")
    assert [one.id for one in await lenient.history.list_events(limit=1)] == numbers[1:]


@pytest.mark.parametrize(
    ("column", "value"), [("status", "'done'"), ("completed_at", "7"), ("final", "NULL"), ("pid", "'x'")]
)
async def test_attempts_are_listed_beside_a_foreign_one(lenient: Store, column: str, value: str) -> None:
    ids = await past(lenient)
    await spoil(lenient, "execution_attempts", column, value, f"execution_id = '{ids[1]}'")
    listed = await lenient.history.list_attempts()
    assert [one.execution_id for one in listed] == [ids[2], ids[0], ids[0]]
    assert len(await lenient.history.attempts(ids[0])) == 2


# Workers live on, and others are served.


@pytest.mark.parametrize(
    ("table", "column", "value", "where"),
    [
        ("workers", "id", BLOB, "id = 'boot-2'"),
        ("workers", "id", NO_TEXT, "id = 'boot-2'"),
        ("workers", "beat", BLOB, "id = 'boot-2'"),
        ("tools", "digest", BLOB, "1"),
        ("tools", "name", NO_TEXT, "1"),
        ("execution_queue", "attempt", BLOB, "1"),
        ("execution_queue", "id", BLOB, "1"),
        ("execution_queue", "owner", NO_TEXT, "1"),
    ],
)
async def test_a_heartbeat_is_taken_whatever_else_there_is(
    lenient: Store, table: str, column: str, value: str, where: str
) -> None:
    for name in ("boot-1", "boot-2"):
        await lenient.workers.register(boot(name))
    await lenient.catalogue.publish([GREP], "boot-1")
    await lenient.catalogue.demote(GREP, "it blocks")
    claim = await running(lenient)
    await lenient.queue.cancel(claim.id, actor="root")
    await spoil(lenient, table, column, value, where)
    look = await lenient.workers.look(Question(scope(boot="boot-1")))
    assert look.beats["boot-1"]
    assert all(map(is_sound, [*await lenient.workers.beats(), *look.beats]))


@pytest.mark.parametrize("column", ["parameters", "context", "tool", "options", "max_attempts", "timeout", "reply_to"])
@pytest.mark.parametrize("value", [NO_TEXT, BLOB])
async def test_a_claimed_call_that_nobody_wrote_so_is_known_by_its_column(
    lenient: Store, column: str, value: str
) -> None:
    bad, good = await submitted(lenient), await submitted(lenient)
    await spoil(lenient, "executions", column, value, f"id = '{bad}'")
    claims = {claim.id: claim for claim in await lenient.queue.claim([Ring(bad, 0), Ring(good, 0)], SCOPE)}
    assert misfit(claims[good]) is None
    assert f"its {column} is" in str(misfit(claims[bad]))


async def test_a_row_in_the_queue_that_nobody_asked_for_goes_when_it_is_claimed(lenient: Store) -> None:
    bad, good = await submitted(lenient), await submitted(lenient)
    await forge(lenient, f"DELETE FROM executions WHERE id = '{bad}'")
    [claim] = await lenient.queue.claim([Ring(bad, 0), Ring(good, 0)], SCOPE)
    assert claim.id == good
    assert await lenient.queue.due(SCOPE, 10) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("attempt", "'one'"),
        ("max_attempts", BLOB),
        ("not_before", "'soon'"),
        ("queue", BLOB),
        ("hostname", NO_TEXT),
        ("expires_in", "'long'"),
        ("attempt", "9223372036854775807"),
        ("owner", NO_TEXT),
        ("sealed", NO_TEXT),
    ],
)
async def test_expired_calls_end_beside_a_foreign_row_which_ends_too(lenient: Store, column: str, value: str) -> None:
    bad, good = await submitted(lenient), await submitted(lenient)
    for id_ in (bad, good):
        await overdue(lenient, id_)
    await spoil(lenient, "execution_queue", column, value, f"id = '{bad}'")

    assert await lenient.queue.sweep() == [good]
    assert await lenient.queue.sweep() == []

    [result] = await lenient.queue.results([bad])
    assert result.status == ExecutionStatus.LOST
    assert f"Row {bad} of table execution_queue cannot be read: its {column} is" in str(result.result.error)


@pytest.mark.parametrize(("column", "value"), [("started_at", "'then'"), ("pid", BLOB), ("expires_in", "9e300")])
async def test_a_dead_worker_is_settled_whatever_a_row_of_it_holds(lenient: Store, column: str, value: str) -> None:
    bad, good = [await running(lenient, idempotent=True, max_attempts=3) for _ in range(2)]
    await spoil(lenient, "execution_queue", column, value, f"id = '{bad.id}'")
    requeued, _ = await lenient.queue.recover("boot-1", "dead")
    assert good.id in requeued
    assert await lenient.workers.beats() == {}


async def test_workers_that_nobody_wrote_so_are_left_out(lenient: Store) -> None:
    columns = ("queues", "tools", "last_seen_at", "started_at", "concurrency", "answering")
    for name in ("boot-1", *columns):
        await lenient.workers.register(boot(name))
    for column in columns:
        await spoil(lenient, "workers", column, BLOB, f"id = '{column}'")
    assert [one.id for one in await lenient.workers.list()] == ["boot-1"]
    assert await lenient.workers.live_queues(60.0) == {("default", "async"): 5}  # it asks no more of them than that
    assert await lenient.catalogue.publish([GREP], "boot-1") == []


@pytest.mark.parametrize("value", ["'{'", "'[1]'", "NULL", BLOB])
async def test_a_definition_that_is_none_hides_no_other_tool(lenient: Store, value: str) -> None:
    await lenient.workers.register(boot("boot-1"))
    await lenient.catalogue.publish([GREP, GREP.model_copy(update={"name": "Find"})], "boot-1")
    await spoil(lenient, "tools", "spec", value, "name = 'Grep'")
    assert [spec.name for spec in await lenient.catalogue.specs()] == ["Find"]


# An attempt that is there already, on every database.


async def test_a_finish_whose_number_is_taken_ends_its_call_and_no_other_waits(store: Store) -> None:
    bad, good = await running(store), await running(store)
    await forge(store, _attempt_of(bad.id, is_final=False))
    assert await store.queue.finish_many([ended(bad), ended(good)]) == [True, True]
    results = {one.id: one for one in await store.queue.results([bad.id, good.id])}
    assert results[good.id].result.success
    assert results[bad.id].result.error_code == ErrorCode.UNSTORABLE
    assert "somebody else had written" in str(results[bad.id].result.error)


async def test_a_call_that_a_restore_put_back_in_the_queue_keeps_its_end(store: Store) -> None:
    back, other = await submitted(store), await submitted(store)
    await forge(store, _attempt_of(back, is_final=True))
    for id_ in (back, other):
        await overdue(store, id_)
    assert await store.queue.sweep() == [back, other]
    [result] = await store.queue.results([back])
    assert result.status == ExecutionStatus.SUCCEEDED


def _attempt_of(execution_id: str, *, is_final: bool) -> str:
    return (
        "INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, metadata) "
        f"VALUES ('{execution_id}', 1, {is_final}, 'succeeded', '2026-01-01 00:00:00.000000', '{{}}')"
    )


# Results, figures, audit.


@pytest.mark.parametrize(
    ("column", "value"), [("status", "'done'"), ("status", NO_TEXT), ("metadata", "NULL"), ("output", "'{'")]
)
async def test_who_waits_for_a_foreign_result_is_told_and_nobody_else_fails(
    lenient: Store, column: str, value: str
) -> None:
    bad, good = [await submitted(lenient) for _ in range(2)]
    await finished(lenient, [bad, good])
    await spoil(lenient, "execution_attempts", column, value, f"execution_id = '{bad}'")
    told = {one.id: one for one in await lenient.queue.results([bad, good])}
    assert told[good].status == ExecutionStatus.SUCCEEDED
    assert told[bad].result.error_code == "FOREIGN_ROW"
    assert f"Row {bad} of table execution_attempts cannot be read" in str(told[bad].result.error)
    assert (await lenient.queue.statuses([bad, good]))[good] == ExecutionStatus.SUCCEEDED


@pytest.mark.parametrize("value", ["'nine'", BLOB, "-1"])
async def test_a_batch_without_a_number_keeps_nobody_from_sealing(lenient: Store, value: str) -> None:
    await sealed_past(lenient)
    await forge(
        lenient,
        "INSERT INTO audit_batches (sequence, format, kind, executions, events, event_frontier, root, previous, sealed_at, "
        f"sealer, detail, hash) SELECT {value}, format, kind, executions, events, event_frontier, root, previous, sealed_at, "
        "sealer, detail, hash FROM audit_batches",
    )
    await finished(lenient, [await submitted(lenient)])
    sealed = await lenient.audit.seal(None, sealer="tester")
    assert sealed is not None
    assert sealed.head.sequence == 2
    assert {(one.table, one.fault.value) for one in (await verified(lenient)).findings} == {
        ("audit_batches", "inserted")
    }


@pytest.mark.parametrize(("column", "value"), [("hashes", "'short'"), ("hashes", "7"), ("batch", "'one'")])
async def test_what_no_checkpoint_can_account_for_is_not_pruned(lenient: Store, column: str, value: str) -> None:
    ids = await sealed_past(lenient)
    await spoil(lenient, "audit_executions", column, value, f"execution_id = '{ids[1]}'")
    what = Pruning(ended_before=(await lenient.history.get(ids[2])).queued_at.replace(year=9000))
    with pytest.raises(ForgeError, match=rf"Row {ids[1]} of table audit_executions cannot be read: its {column} is"):
        await lenient.retention.prune(what, PruneRun("run", "tester"))
    assert len(await lenient.history.list()) == 3


@pytest.mark.parametrize("value", ["'x'", "7", BLOB])
async def test_a_sealing_key_that_is_none_is_named(lenient: Store, value: str) -> None:
    await forge(lenient, f"INSERT INTO sealing_keys (id, public, created_at) VALUES ('k1', {value}, '2026-01-01')")
    with pytest.raises(ForeignRowError, match="Row k1 of table sealing_keys cannot be read: its public is"):
        await lenient.sealing.current()
    assert await lenient.sealing.list() == []


@pytest.mark.parametrize("value", [NO_TEXT, BLOB, "'UPPER'", "NULL"])
async def test_a_verification_finds_ids_that_are_none_and_comes_to_its_end(lenient: Store, value: str) -> None:
    ids = await sealed_past(lenient)
    await spoil(lenient, "executions", "id", value, f"id = '{ids[1]}'")
    found = (await verified(lenient)).findings
    assert ("executions", "removed", ids[1]) in {(one.table, one.fault.value, one.key) for one in found}


@pytest.mark.parametrize("value", [NO_TEXT, BLOB])
async def test_a_waiting_row_whose_id_is_none_goes_and_the_next_one_ends(lenient: Store, value: str) -> None:
    bad, good = await submitted(lenient), await submitted(lenient)
    for id_ in (bad, good):
        await overdue(lenient, id_)
    await spoil(lenient, "execution_queue", "id", value, f"id = '{bad}'")
    assert await lenient.queue.sweep() == [good]
    assert await lenient.history.backlog() == []


@pytest.mark.parametrize(
    "column", ["queue", "lane", "tool_key", "status", "owner", "started_at", "not_before", "expires_at"]
)
@pytest.mark.parametrize("value", [BLOB, NO_TEXT, "'1'"])
async def test_an_overview_shows_the_rest(lenient: Store, column: str, value: str) -> None:
    await lenient.workers.register(boot("boot-1"))
    good, bad = await running(lenient), await submitted(lenient)
    await running(lenient)
    await spoil(lenient, "execution_queue", column, value, f"id <> '{good.id}'")
    await overdue(lenient, bad)
    overview = await lenient.overviews.read(window=60.0, lease=15.0, patience=0.0)
    assert [one.worker.id for one in overview.workers] == ["boot-1"]
    assert any(depth.queue == "default" and depth.running for depth in await lenient.history.backlog())


async def test_a_call_with_two_ends_says_so(store: Store) -> None:
    id_ = await submitted(store)
    await finished(store, [id_])
    await forge(store, _attempt_of(id_, is_final=True).replace(", 1, ", ", 2, "))
    with pytest.raises(ForeignRowError, match=f"Row {id_} of table execution_attempts cannot be read: more than one"):
        await store.history.get(id_)


async def test_moments_and_numbers_without_end_are_told_on_postgres(migrated_postgres: str) -> None:
    async with await open_store(migrated_postgres) as store:
        ids = await past(store, 4)
        await spoil(store, "executions", "timeout", "'NaN'", f"id = '{ids[0]}'")
        await spoil(store, "execution_attempts", "duration_ms", "'Infinity'", f"execution_id = '{ids[1]}'")
        await spoil(store, "execution_attempts", "completed_at", "'infinity'", f"execution_id = '{ids[2]}'")
        await spoil(store, "execution_events", "at", "'-infinity'", "kind = 'late'")
        assert [one.id for one in await store.history.list(limit=1)] == [ids[3]]
        assert [one.id for one in await pages(store.history.pages(size=1))] == [ids[3]]
        assert [one.kind for one in await pages(store.history.event_pages(size=1))] == ["cancel"]
        with pytest.raises(ForeignRowError, match="its timeout is nan"):
            await store.history.get(ids[0])
        assert {one.id for one in await store.queue.results(ids)} == set(ids)
        await seal_all(store)
        assert (await verified(store)).is_intact
