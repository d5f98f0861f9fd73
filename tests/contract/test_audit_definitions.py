"""The audit chain covers what tools were: whoever changes the definition that a call ran by is found out, on every database."""

from datetime import timedelta
from typing import Any

import pytest

from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.model.audit import Fault
from forge_tools.storage import Store
from forge_tools.storage.audit.batches import following, listed
from forge_tools.storage.audit.chain import ALL
from forge_tools.storage.sqlalchemy_tables import audit_batches, tools
from tests.contract.sealed import (
    changing,
    forge,
    migrated_postgres,
    migrated_sqlite,
    past,
    put_back,
    said,
    seal_all,
    sealed_past,
    verified,
)

__all__ = ["migrated_postgres", "migrated_sqlite"]  # the fixtures: whoever owns the tables can have them refuse nothing

GREP = ToolSpec(
    name="Grep",
    description="Search.",
    category=ToolCategory.FILE,
    parameters=(ToolParameter(name="pattern", type="string", description="What."),),
    timeout=5.0,
)
READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE)
FOUND = {(fault.value, "tools") for fault in (Fault.CHANGED, Fault.REMOVED, Fault.INSERTED)}

DECIDED = {"enabled", "is_default", "last_seen_at", "walls", "moved", "demoted_at", "demoted_reason", "pinned_at"}
"""What people and workers may set at any time."""


@pytest.fixture
async def sealed(store: Store) -> Store:
    await store.catalogue.publish([GREP, READ], "instance-1")
    await sealed_past(store)
    return store


async def test_a_change_of_what_was_defined_is_found_and_of_what_people_decide_is_not(sealed: Store) -> None:
    assert (await verified(sealed)).definitions == 2
    for column in tools.c:
        async with put_back(sealed, tools):
            await forge(sealed, changing(tools, column, sealed.dialect, "name = 'Grep'"))
            found = said(await verified(sealed))
        assert bool(found & FOUND) == bool(found) == (column.name not in DECIDED), (column, found)
    assert (await verified(sealed)).is_intact


async def test_a_parameter_that_is_no_longer_required_is_named_with_its_tool(sealed: Store) -> None:
    await forge(sealed, "UPDATE tools SET spec = CAST(replace(CAST(spec AS TEXT), '\"required\": true', '\"required\": false') AS "
                        f"{'json' if sealed.dialect == 'postgresql' else 'TEXT'})")  # fmt: skip
    [finding] = (await verified(sealed)).findings
    assert (finding.fault, finding.table, finding.key) == (Fault.CHANGED, "tools", f"Grep 1.0.0 {GREP.digest}")


async def test_what_workers_and_people_do_with_a_definition_changes_nothing_that_is_sealed(sealed: Store) -> None:
    await sealed.catalogue.publish([GREP], "instance-2", keeps_first=True)
    await sealed.catalogue.switch("Read", is_enabled=False)
    await sealed.catalogue.pin("Grep", GREP.digest)
    await sealed.catalogue.demote(READ, "it blocks")
    assert (await verified(sealed)).is_intact


async def test_a_definition_that_is_first_seen_later_is_in_the_next_batch(sealed: Store) -> None:
    newer = GREP.model_copy(update={"version": "2.0.0"})
    await sealed.catalogue.publish([newer], "instance-1")
    assert (await verified(sealed)).definitions == 2
    await sealed_past(sealed)
    assert (await verified(sealed)).definitions == 3
    await forge(sealed, "DELETE FROM tools WHERE version = '2.0.0'")
    assert said(await verified(sealed)) == {("removed", "tools")}


async def test_a_batch_lists_only_what_may_be_new(sealed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.audit.batches.OVERLAP", timedelta(0))
    await sealed_past(sealed)
    async with sealed.database.reading() as connection:
        first, second = await following(connection, 0, 10)
    assert ([name for name, *_ in listed(first)], listed(second)) == (["Grep", "Read"], {})


async def test_a_definition_that_was_inserted_into_the_past_is_named_until_somebody_takes_it_in(sealed: Store) -> None:
    long_ago = "2026-01-01 00:00:00.000000" + ("+00" if sealed.dialect == "postgresql" else "")
    await sealed.catalogue.publish([GREP.model_copy(update={"version": "0.9.0"})], "instance-1")
    await forge(sealed, f"UPDATE tools SET first_seen_at = '{long_ago}' WHERE version = '0.9.0'")
    await sealed_past(sealed)
    assert said(await verified(sealed)) == {("inserted", "tools")}
    await past(sealed)
    await sealed.audit.seal(None, sealer="me", behind=ALL)
    report = await verified(sealed)
    assert (report.is_intact, report.definitions) == (True, 3)


async def test_a_definition_that_was_sealed_again_with_other_content_is_found(sealed: Store) -> None:
    await forge(sealed, "UPDATE tools SET category = 'web' WHERE name = 'Grep'")
    await sealed_past(sealed)  # within the half minute that is listed again
    assert said(await verified(sealed)) == {("changed", "tools")}


@pytest.mark.parametrize(
    "detail", ['{"definitions":[["a"]]}', '{"definitions":[["a","b","c","zz"]]}', '{"definitions":7}']
)
async def test_a_list_that_no_sealer_wrote_is_a_finding_and_stops_nothing(sealed: Store, detail: Any) -> None:
    await forge(sealed, f"UPDATE audit_batches SET detail = '{detail}'")
    assert ("broken batch", audit_batches.name) in said(await verified(sealed))
    assert await seal_all(sealed) == 0
