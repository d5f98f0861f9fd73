"""Attacks by somebody who knows the tables of the audit chain, on every database: none stays unnoticed."""

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forge_tools.model.audit import Fault
from forge_tools.storage import Store, open_store
from forge_tools.storage.audit import Signer
from tests.contract.calls import submitted
from tests.contract.sealed import (
    forge,
    lift_the_checks,
    migrated_postgres,
    migrated_sqlite,
    past,
    said,
    seal_all,
    sealed_past,
    verified,
)

__all__ = ["migrated_postgres", "migrated_sqlite"]  # the fixtures: whoever owns the tables can have them refuse nothing


SIGNER = Signer(Ed25519PrivateKey.generate())


async def fill(url: str) -> None:
    lift_the_checks(url)
    async with await open_store(url) as store:
        await sealed_past(store, SIGNER)


@pytest.fixture
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate())


async def forged_in_the_past(store: Store) -> str:
    """An execution that says that it ended long before the last seal."""
    [new] = await past(store, 1)
    long_ago = "2026-01-01 00:00:00.000000" + ("+00" if store.dialect == "postgresql" else "")
    await forge(store, f"UPDATE execution_attempts SET completed_at = '{long_ago}' WHERE execution_id = '{new}'")
    return new


async def columns(store: Store, table: str) -> list[str]:
    async with store.database.reading() as connection:
        return list((await connection.exec_driver_sql(f"SELECT * FROM {table} WHERE 1 = 0")).keys())


async def copy_of(store: Store, table: str, where: str, **changes: str) -> str:
    """SQL that inserts a copy of a row with other values in some columns."""
    names = await columns(store, table)
    values = ", ".join(changes.get(name, name) for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table} WHERE {where}"


@pytest.mark.parametrize("number", ["0", "-1", "-9223372036854775807"])
async def test_a_batch_numbered_below_the_first_covers_nothing(store: Store, signer: Signer, number: str) -> None:
    [first, *_] = await sealed_past(store, signer)
    new = await forged_in_the_past(store)
    uuid = f"'{new}'::uuid" if store.dialect == "postgresql" else f"'{new}'"
    await forge(
        store,
        await copy_of(store, "audit_batches", "sequence = 1", sequence=number),
        await copy_of(store, "audit_executions", f"execution_id = '{first}'", execution_id=uuid, batch=number),
    )
    assert (Fault.INSERTED.value, "audit_batches") in said(await verified(store, signer))


async def test_a_row_in_the_queue_hides_nothing_that_was_inserted_into_the_past(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    new, waiting = await forged_in_the_past(store), await submitted(store)
    uuid = f"'{new}'::uuid" if store.dialect == "postgresql" else f"'{new}'"
    await forge(store, await copy_of(store, "execution_queue", f"id = '{waiting}'", id=uuid))
    report = await verified(store, signer)
    assert [(one.fault, one.table, one.key) for one in report.findings] == [(Fault.INSERTED, "executions", new)]


async def test_what_is_over_and_put_in_the_queue_again_is_named(store: Store, signer: Signer) -> None:
    [first, *_] = await sealed_past(store, signer)
    waiting = await submitted(store)
    uuid = f"'{first}'::uuid" if store.dialect == "postgresql" else f"'{first}'"
    await forge(store, await copy_of(store, "execution_queue", f"id = '{waiting}'", id=uuid))
    report = await verified(store, signer)
    assert [(one.fault, one.table, one.key) for one in report.findings] == [(Fault.INSERTED, "execution_queue", first)]


async def test_a_chain_that_is_gone_altogether_is_not_taken_for_a_new_one(store: Store, signer: Signer) -> None:
    await sealed_past(store, signer)
    await forged_in_the_past(store)
    await forge(store, *(f"DELETE FROM {table}" for table in ("audit_batches", "audit_executions", "audit_events")))
    assert said(await verified(store, signer)) == {(Fault.UNSIGNED.value, "audit_batches")}


async def test_a_number_that_is_given_late_is_sealed_and_no_forgery(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.storage.audit.batches.OVERLAP", timedelta(microseconds=1))
    await past(store)  # an event that is committed after a later one, and after that was sealed:
    await forge(
        store,
        "CREATE TABLE under_way AS SELECT * FROM execution_events ORDER BY id LIMIT 1",
        "DELETE FROM execution_events WHERE id IN (SELECT id FROM under_way)",
    )
    await seal_all(store)
    await forge(store, "INSERT INTO execution_events SELECT * FROM under_way")
    assert (await verified(store)).is_intact
    await seal_all(store)
    report = await verified(store)
    assert (report.is_intact, report.events) == (True, 2)


async def test_an_end_that_lies_ahead_keeps_no_other_from_being_sealed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("batches", "chain", "verification"):
        monkeypatch.setattr(f"forge_tools.storage.audit.{module}.OVERLAP", timedelta(0))
    [ahead] = await past(store, 1)
    later = "2099-01-01 00:00:00.000000" + ("+00" if store.dialect == "postgresql" else "")
    await forge(store, f"UPDATE execution_attempts SET completed_at = '{later}' WHERE execution_id = '{ahead}'")
    assert await seal_all(store) == 1
    await past(store, 2)
    assert (await verified(store)).is_intact
    assert await seal_all(store) == 2
    assert (await verified(store)).is_intact


NO_KEY = (
    "CREATE TABLE twice AS SELECT * FROM {0}",
    "INSERT INTO twice SELECT * FROM {0}",
    "UPDATE twice SET {1} WHERE rowid > (SELECT count(*) FROM {0})",
    "DROP VIEW tool_executions",
    "DROP TABLE {0}",
    "ALTER TABLE twice RENAME TO {0}",
)


@pytest.mark.parametrize("filled_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("table", ["executions", "execution_attempts", "execution_events"])
@pytest.mark.parametrize("again", ["", "a", "~"])
async def test_a_row_beside_the_real_one_under_the_same_key_is_found(copied: Store, table: str, again: str) -> None:
    column = {"executions": "tool", "execution_attempts": "error", "execution_events": "actor"}[table]
    change = f"{column} = '{again}'" if again else f"{column} = {column}"
    await forge(copied, *(one.format(table, change) for one in NO_KEY))
    assert not (await verified(copied)).is_intact


GARBAGE = [
    "UPDATE execution_attempts SET attempt = 1.5 WHERE attempt = 2",
    "UPDATE execution_attempts SET attempt = 'x' WHERE attempt = 2",
    "UPDATE execution_attempts SET attempt = 1099511627776 WHERE attempt = 2",
    "UPDATE execution_attempts SET execution_id = X'FF' WHERE attempt = 2",
    "UPDATE audit_executions SET execution_id = X'FF' WHERE rowid = 1",
    "UPDATE audit_executions SET hashes = 'x'",
    "UPDATE audit_events SET hashes = 5",
    "UPDATE audit_executions SET hashes = X''",
    "UPDATE audit_executions SET pruned_by = 'x' WHERE rowid = 1",
    "UPDATE audit_executions SET batch = 1.5",
    "UPDATE audit_batches SET sealer = X'00'",
    "UPDATE audit_batches SET detail = X'FF', kind = 'prune'",
    "UPDATE audit_batches SET executions = 'x', events = X'00'",
    "UPDATE audit_batches SET signature = X'00'",
    "UPDATE audit_batches SET hash = X'00'",
    "UPDATE audit_batches SET sealed_at = 'yesterday'",
]


@pytest.mark.parametrize("filled_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("statement", GARBAGE)
async def test_garbage_is_a_finding_and_stops_nothing(copied: Store, statement: str) -> None:
    await forge(copied, statement)
    assert not (await verified(copied, SIGNER)).is_intact


async def test_as_many_entries_that_are_others_are_not_said_to_be_the_same(copied: Store) -> None:
    longer = "hashes || X'00'" if copied.dialect == "sqlite" else "hashes || '\\x00'::bytea"
    await forge(copied, f"UPDATE audit_executions SET hashes = {longer}")
    [first, *_] = [one.said for one in (await verified(copied, SIGNER)).findings if one.fault is Fault.BROKEN_BATCH]
    assert first == "its 5 entries are not the 5 that were sealed"


async def test_an_invalid_number_does_not_stop_the_sealer(migrated_sqlite: str) -> None:
    async with await open_store(migrated_sqlite) as store:
        await past(store)
        await forge(store, "UPDATE execution_attempts SET attempt = 1.5 WHERE attempt = 2")
        assert await seal_all(store) == 3
        assert (await verified(store)).is_intact
        await forge(store, "UPDATE execution_attempts SET attempt = 2.5 WHERE attempt = 1.5")
        assert not (await verified(store)).is_intact
