"""Rows that forge-tools did not write: the schema refuses them, the doctor reports those that got past it, and others are served."""

import sqlite3
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

from forge_tools.errors import ErrorCode, StorageError
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Kept, Wakeup
from forge_tools.schema import Unreadable
from forge_tools.storage import Store, integrity, open_store
from forge_tools.storage.connection.faults import RefusedError
from forge_tools.storage.heartbeat import BEATS, CANCELS, DEMOTED, DISABLED, PINNED, Heartbeat
from tests.contract.calls import SCOPE, ended, finished, instance, overdue, running, scope, statuses, submitted
from tests.contract.sealed import forge, sealed_past, verified
from tests.contract.test_catalogue import GREP
from tests.services import admin

NO_TEXT = "CAST(x'ff41fe' AS TEXT)"
"""SQL of a text that is no UTF-8."""

BLOB = "x'ff00'"

REFUSED = (
    *(("executions", "queued_at", value) for value in ("'2026-13-45 nonsense'", "'2026-02-30 00:00:00.000000'", BLOB)),
    *(("executions", "id", value) for value in (NO_TEXT, BLOB, "'UPPER'", "NULL")),
    *(("executions", "parameters", value) for value in ("'{'", "7", "'[1]'", NO_TEXT, BLOB)),
    *(("executions", "context", value) for value in ("'[1]'", "'{'", NO_TEXT)),
    *(("executions", "timeout", value) for value in ("'long'", "9e999", BLOB)),
    *(("executions", column, BLOB) for column in ("tool", "options", "max_attempts", "reply_to")),
    ("executions", "category", "NULL"),
    ("executions", "max_attempts", "0"),
    *(("execution_queue", "id", value) for value in (BLOB, NO_TEXT)),
    *(("execution_queue", "attempt", value) for value in ("'one'", BLOB, "9223372036854775807", "-1")),
    *(("execution_queue", "expires_in", value) for value in ("'long'", "9e300")),
    *(("execution_queue", column, value) for column in ("lane", "status") for value in (BLOB, NO_TEXT, "'1'")),
    *(("execution_queue", column, "'soon'") for column in ("not_before", "started_at", "expires_at")),
    ("execution_queue", "max_attempts", "0"),
    *(("execution_queue", column, BLOB) for column in ("max_attempts", "queue", "tool_key", "owner", "pid")),
    *(("execution_attempts", "status", value) for value in ("'done'", NO_TEXT, "'queued'")),
    *(("execution_attempts", "metadata", value) for value in ("NULL", "'7'")),
    *(("execution_attempts", column, "'{'") for column in ("output", "error_details")),
    ("execution_attempts", "completed_at", "7"),
    ("execution_attempts", "final", "NULL"),
    ("execution_attempts", "final", "2"),
    ("execution_attempts", "pid", "'x'"),
    ("execution_events", "at", "'soon'"),
    ("execution_events", "kind", BLOB),
    ("execution_events", "detail", "'{'"),
    *(("workers", column, BLOB) for column in ("id", "beat", "queues", "tools", "last_seen_at", "concurrency")),
    *(("tools", "spec", value) for value in ("'{'", "'[1]'", "NULL", BLOB)),
    ("tools", "digest", BLOB),
    *(("audit_batches", "sequence", value) for value in ("'nine'", BLOB, "-1")),
    *(("audit_executions", "hashes", value) for value in ("'short'", "7")),
    ("audit_executions", "batch", "'one'"),
    *(("encryption_keys", "public", value) for value in ("'x'", "7", BLOB)),
)
"""What SQLite would keep in tables of its usual kind, and no code of this package writes."""

REFUSED_ON_POSTGRES = (
    ("executions", "timeout", "'NaN'"),
    ("executions", "parameters", "'[1]'"),
    ("execution_queue", "status", "'done'"),
    ("execution_queue", "attempt", "-1"),
    *((table, "max_attempts", "0") for table in ("executions", "execution_queue")),
    ("execution_attempts", "status", "'queued'"),
    ("execution_attempts", "duration_ms", "'Infinity'"),
    ("execution_attempts", "completed_at", "'infinity'"),
    ("execution_events", "at", "'-infinity'"),
    ("encryption_keys", "public", "'x'"),
)


ON_SQLITE = pytest.mark.parametrize("filled_url", ["sqlite"], indirect=True)


async def fill(url: str) -> None:
    """A row in every table that is spoilt here."""
    async with await open_store(url) as store:
        await sealed_past(store)
        await running(store)
        await store.workers.register(instance("instance-2"))
        await store.catalogue.publish([GREP], "instance-2")
        await store.encryption_keys.publish("k1", bytes(32))


async def spoil(store: Store, table: str, column: str, value: str, where: str = "true") -> None:
    """Write what a check refuses, as somebody can who switches it off."""
    statement = f"UPDATE {table} SET {column} = {value} WHERE {where}"
    if store.dialect == "postgresql":
        off = f"ALTER DOMAIN {table}_{column} DROP CONSTRAINT IF EXISTS {table}_{column}_check"
        admin(store.database.address.target, f"{off}; {statement}")
        return
    with closing(sqlite3.connect(store.database.address.target)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement)


async def pages(pages: Any) -> list[Any]:
    return [one async for stretch in pages for one in stretch]


# The schema.


@ON_SQLITE
@pytest.mark.parametrize(("table", "cells"), [(table, list(cells)) for table, cells in groupby(REFUSED, itemgetter(0))])
async def test_sqlite_refuses_it(copied: Store, table: str, cells: list[tuple[str, str, str]]) -> None:
    for _, column, value in cells:
        with pytest.raises(RefusedError, match=f"{column}|datatype mismatch"):
            await forge(copied, f"UPDATE {table} SET {column} = {value}")


@pytest.mark.parametrize("filled_url", ["postgres"], indirect=True)
async def test_postgres_refuses_it(copied: Store) -> None:
    for table, column, value in REFUSED_ON_POSTGRES:
        with pytest.raises(RefusedError, match=column):
            await forge(copied, f"UPDATE {table} SET {column} = {value}")


@pytest.mark.parametrize(
    "moment", ["0001-01-02 00:00:00.000000", "2024-02-29 23:59:59.999999", "9999-12-29 00:00:00.000001"]
)
async def test_every_moment_of_ours_is_taken(copied: Store, moment: str) -> None:
    where = "+00" if copied.dialect == "postgresql" else ""
    await forge(copied, f"UPDATE executions SET queued_at = '{moment}{where}'")
    assert {f"{one.queued_at:%f}" for one in await copied.history.list()} == {moment[-6:]}


# What came past it: the doctor says so in one line, and whatever can be shown is.


async def test_nothing_is_said_of_rows_that_are_ours(copied: Store) -> None:
    assert await copied.violations() == []


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("executions", "parameters", "'[1]'"),
        ("execution_queue", "status", "'done'"),
        ("execution_attempts", "metadata", "'7'"),
        ("workers", "queues", "'{}'"),
    ],
)
async def test_rows_that_break_a_check_are_counted(copied: Store, table: str, column: str, value: str) -> None:
    await spoil(copied, table, column, value)
    async with copied.database.reading() as connection:
        count = (await connection.exec_driver_sql(f"SELECT count(*) FROM {table}")).scalar_one()
    missing = [f"a missing check of {table}.{column}"] if copied.dialect == "postgresql" else []
    assert await copied.violations() == [*missing, f"{table}.{column} ({count})"]


@pytest.mark.parametrize("migrated_url", ["postgres"], indirect=True)
async def test_a_column_that_left_its_domain_has_no_check(store: Store) -> None:
    admin(store.database.address.target, "ALTER TABLE workers ALTER queues TYPE json, ALTER tools TYPE json")
    admin(store.database.address.target, "ALTER TABLE workers ADD CONSTRAINT workers_tools_check CHECK (true)")
    assert await store.violations() == ["a missing check of workers.queues"]


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["parameters", "context"])
async def test_a_list_shows_where_a_cell_is_no_json_and_all_other_rows(store: Store, column: str) -> None:
    first, second, third = [await submitted(store) for _ in range(3)]
    await spoil(store, "executions", column, "'{'", f"id = '{second}'")
    found = await store.history.list()
    assert [one.id for one in found] == [third, second, first]
    assert isinstance(getattr(found[1], column), Unreadable)
    assert [one.id for one in await pages(store.history.pages(size=2))] == [first, second, third]
    assert "unreadable" in getattr(await store.history.get(second), column)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["output", "metadata", "error_details"])
async def test_a_result_that_is_not_json_says_so_and_no_other_waits(store: Store, column: str) -> None:
    bad, good = [await submitted(store) for _ in range(2)]
    await finished(store, [bad, good])
    await spoil(store, "execution_attempts", column, "'{'", f"execution_id = '{bad}'")
    told = {one.metadata["execution_id"]: one for one in await store.queue.results([bad, good])}
    assert told[good].success
    assert "unreadable" in getattr(told[bad], column)
    assert (column == "output") == ("unreadable" in told[bad].to_text())  # what models are told
    assert len(await store.history.list_attempts()) == 2


@ON_SQLITE
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("executions", column) for column in ("tool", "agent_id", "category", "reply_to")),
        *(("execution_queue", column) for column in ("owner", "hostname", "queue", "encrypted")),
        *(("execution_events", column) for column in ("actor", "kind")),
        *(("workers", column) for column in ("id", "hostname")),
        *(("tools", column) for column in ("name", "digest")),
    ],
)
async def test_a_text_that_is_no_utf8_is_shown_and_counted_and_stops_nobody(
    copied: Store, table: str, column: str
) -> None:
    await copied.workers.register(instance("instance-1"))
    await spoil(copied, table, column, NO_TEXT, "rowid = 1" if table != "execution_queue" else "true")
    questions = (BEATS, CANCELS, DEMOTED, DISABLED, PINNED)
    answers = await copied.workers.beat(Heartbeat(scope(instance="instance-1"), questions))
    assert all(answers[question] is not None for question in questions)
    assert answers[BEATS]["instance-1"]
    assert "instance-1" in await copied.workers.beats()
    assert len(await pages(copied.history.pages(size=2))) == len(await copied.history.list()) == 4
    assert await copied.history.list_events()
    assert len(await copied.workers.list()) == 2
    assert (await copied.overviews.read(window=60.0, lease=15.0, patience=0.0)).workers
    assert await copied.transitions.sweep() == []
    assert await copied.violations() == [f"{table}.text (1)"]


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", [NO_TEXT, "'UPPER'"])
async def test_a_verification_finds_ids_that_are_none_and_comes_to_its_end(store: Store, value: str) -> None:
    ids = await sealed_past(store)
    await spoil(store, "executions", "id", value, f"id = '{ids[1]}'")
    found = (await verified(store)).findings
    assert ("executions", "removed", ids[1]) in {(one.table, one.fault.value, one.key) for one in found}


@ON_SQLITE
async def test_a_look_that_takes_too_long_is_broken_off(copied: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = "WITH RECURSIVE n(x) AS (SELECT 100 UNION ALL SELECT x + 1 FROM n WHERE x < 20000)"
    event = (
        "SELECT x, id, '2026-01-01 00:00:00.000000', 'replayed', 'x', '{}' FROM n, (SELECT id FROM executions LIMIT 1)"
    )
    await forge(copied, f"INSERT INTO execution_events (id, execution_id, at, kind, actor, detail) {numbers} {event}")
    monkeypatch.setattr(integrity, "LIMIT_SECONDS", 0.0)
    with pytest.raises(StorageError, match="takes longer than"):
        await copied.violations()
    monkeypatch.undo()
    assert await copied.violations() == []


# What a missing check of one row can say.


async def test_a_row_in_the_queue_that_nobody_asked_for_goes_when_it_is_claimed(store: Store) -> None:
    bad, good = await submitted(store), await submitted(store)
    await forge(store, f"DELETE FROM executions WHERE id = '{bad}'")
    [claim] = await store.queue.claim([Wakeup(bad, 0), Wakeup(good, 0)], SCOPE)
    assert claim.id == good


async def test_a_call_with_two_ends_is_shown_once_and_counted(store: Store) -> None:
    id_ = await submitted(store)
    await finished(store, [id_])
    await forge(store, _attempt_of(id_, is_final=True).replace(", 1, ", ", 2, "))
    assert (await store.history.get(id_)).id == id_
    assert await store.violations() == ["executions that ended twice (1)"]


async def test_a_call_that_has_neither_ended_nor_waits_is_lost_and_counted(store: Store) -> None:
    bad, good = await submitted(store), await submitted(store)
    await forge(store, f"DELETE FROM execution_queue WHERE id = '{bad}'")
    assert [one.status for one in await store.history.list()] == [ExecutionStatus.QUEUED, ExecutionStatus.LOST]
    assert await statuses(store, [bad, good]) == {good: ExecutionStatus.QUEUED}
    assert await store.violations() == ["executions that neither ended nor are queued (1)"]


async def test_a_finish_whose_number_is_taken_ends_its_call_and_no_other_waits(store: Store) -> None:
    bad, good = await running(store), await running(store)
    await forge(store, _attempt_of(bad.id, is_final=False))
    assert await store.queue.finish_many([ended(bad), ended(good)]) == [Kept.REPLACED, Kept.WHOLE]
    results = {one.metadata["execution_id"]: one for one in await store.queue.results([bad.id, good.id])}
    assert results[good.id].success
    assert results[bad.id].error_code == ErrorCode.UNSTORABLE
    assert "another process had already recorded" in str(results[bad.id].error)


async def test_a_call_that_a_restore_put_back_in_the_queue_keeps_its_end(store: Store) -> None:
    back, other = await submitted(store), await submitted(store)
    await forge(store, _attempt_of(back, is_final=True))
    for id_ in (back, other):
        await overdue(store, id_)
    assert await store.transitions.sweep() == [back, other]
    [result] = await store.queue.results([back])
    assert result.success


def _attempt_of(execution_id: str, *, is_final: bool) -> str:
    return (
        "INSERT INTO execution_attempts (execution_id, attempt, final, status, completed_at, metadata) "
        f"VALUES ('{execution_id}', 1, {is_final}, 'succeeded', '2026-01-01 00:00:00.000000', '{{}}')"
    )
