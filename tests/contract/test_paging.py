"""The contract of reading history step by step, on every database: steps show in nothing but the time a page takes."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model import ExecutionStatus, new_id
from forge_tools.storage import Store, open_store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import execution_events
from tests.contract.calls import ended, finish_one, running, submitted
from tests.waiting import within

FAILED = ExecutionStatus.FAILED


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.history.pages.FIRST_STEP", 2)
    monkeypatch.setattr("forge_tools.storage.history.pages.LONGEST_STEP", 3)
    monkeypatch.setattr("forge_tools.storage.history.pages.PATIENT_STEP", 2)


async def fill(url: str) -> None:
    async with await open_store(url) as store:
        await mixed(store)


async def mixed(store: Store) -> None:
    """Twenty calls in which every filter has something to find and something to leave out; the newest three wait."""
    for number in range(17):
        asked: dict[str, Any] = {
            "tool": "Grep" if number % 3 else "Read",
            "category": "file" if number % 4 else "web",
            "agent_id": f"a-{number % 2}",
            "session_id": f"s-{number // 5}",
        }
        claim = await running(store, **asked)
        if number % 6 == 1:
            outcome = ended(claim, FAILED, error=f"Disk {number} is full", error_code="DISK", duration_ms=900.0)
        else:
            outcome = ended(claim, output='"done"', duration_ms=float(number))
        assert await finish_one(store, outcome)
    for queue in ("default", "background", "background"):
        await submitted(store, agent_id="a-1", queue=queue)


CHECKS: dict[str, tuple[dict[str, Any], Callable[[Any], bool]]] = {
    "none": ({}, lambda one: True),
    "tool": ({"tool": "Read"}, lambda one: one.tool == "Read"),
    "category": ({"category": "web"}, lambda one: one.category == "web"),
    "agent": ({"agent_id": "a-1"}, lambda one: one.agent_id == "a-1"),
    "session and tool": ({"session_id": "s-2", "tool": "Grep"}, lambda one: one.session_id == "s-2" and one.tool == "Grep"),
    "queue": ({"queue": "background"}, lambda one: one.queue == "background"),
    "waiting": ({"status": "queued"}, lambda one: one.status == "queued"),
    "waiting elsewhere": ({"status": "queued", "queue": "default"}, lambda one: one.status == "queued" and one.queue == "default"),
    "failed": ({"status": "failed"}, lambda one: one.status == "failed"),
    "succeeded": ({"status": "succeeded", "tool": "Read"}, lambda one: one.status == "succeeded" and one.tool == "Read"),
    "code": ({"error_code": "DISK", "agent_id": "a-1"}, lambda one: one.error_code == "DISK" and one.agent_id == "a-1"),
    "text": ({"error_text": "IS FULL"}, lambda one: one.status == "failed"),
    "slow": ({"min_ms": 500.0}, lambda one: one.status == "failed"),
    "nothing": ({"error_text": "nowhere"}, lambda one: False),
}  # fmt: skip


NARROWER: list[dict[str, Any]] = [{}, {"status": "failed"}, {"tool": "Grep"}, {"min_ms": 500.0, "agent_id": "a-1"}]


async def test_a_page_read_in_steps_has_what_one_statement_would_have(filled: Store) -> None:
    every = await filled.history.list(limit=100)
    assert len(every) == 20

    for name, (filters, is_meant) in CHECKS.items():
        monolith = [one.id for one in every if is_meant(one)]
        assert len(monolith) > 0 or name == "nothing", name
        assert [one.id for one in await filled.history.list(limit=100, **filters)] == monolith, name
        assert [one.id for one in await filled.history.list(limit=2, **filters)] == monolith[:2], name


@pytest.mark.parametrize("patience", [None, 0.0])
async def test_pages_go_on_where_the_last_one_stopped_looking_until_there_is_no_more(
    filled: Store, patience: float | None
) -> None:
    every = await filled.history.list(limit=100)

    for name, (filters, is_meant) in CHECKS.items():
        found: list[str] = []
        page = await filled.history.list(limit=3, patience=patience, **filters)
        found += [one.id for one in page]
        time_left = within(60, "the pages do not end")
        while page.older is not None and next(time_left):
            page = await filled.history.list(limit=3, before=page.older, patience=patience, **filters)
            found += [one.id for one in page]

        assert found == [one.id for one in every if is_meant(one)], name


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_all_rows_read_in_steps_are_those_of_one_statement_the_oldest_first(filled: Store, size: int) -> None:
    every = await filled.history.list(limit=100)

    for name, (filters, is_meant) in CHECKS.items():
        stretches = [stretch async for stretch in filled.history.pages(size, **filters)]

        assert [one.id for stretch in stretches for one in stretch] == [one.id for one in every if is_meant(one)][
            ::-1
        ], name
        assert max(map(len, stretches), default=0) <= size, name


async def test_all_attempts_and_events_are_read_in_steps_as_well(copied: Store) -> None:
    for one in await copied.history.list(limit=3):
        await copied.transitions.cancel(one.id, actor="ada", reason="enough")

    history = copied.history
    both = ((history.list_attempts, history.attempt_pages), (history.list_events, history.event_pages))
    for (read, pages), filters in product(both, NARROWER):
        whole = [one.cursor for one in await read(limit=100, **filters)]
        found = [one.cursor async for stretch in pages(2, **filters) for one in stretch]
        assert found == whole[::-1], filters


async def test_a_stretch_without_rows_says_how_far_was_looked(filled: Store) -> None:
    every = [one.queued_at async for stretch in filled.history.pages() for one in stretch]

    stretches = [stretch async for stretch in filled.history.pages(agent_id="a-1", max_ms=-1.0)]
    until = [stretch.until for stretch in stretches]

    assert [list(stretch) for stretch in stretches] == [[]] * len(stretches)
    assert len(until) >= 3
    assert until == sorted(until)
    assert abs(until[0] - every[0]) < abs(until[-1] - every[0])


async def test_a_size_that_takes_no_row_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="size is 0; it must be at least 1"):
        await anext(store.history.pages(0))


async def test_a_page_without_patience_stops_after_a_step_and_says_where(filled: Store) -> None:

    page = await filled.history.list(error_text="nowhere", patience=0.0)

    assert (list(page), page.older is None) == ([], False)
    assert (await filled.history.list(error_text="nowhere")).older is None


@pytest.mark.parametrize("filters", [{"tool": "Read"}, {"status": "queued"}])
async def test_what_is_queued_while_a_page_is_read_pushes_nothing_out_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]
) -> None:
    expected = [await submitted(store, tool="Read") for _ in range(9)][::-1]
    look = AsyncConnection.scalar

    async def look_while_calls_come(*args: Any, **kw: Any) -> Any:
        found = await look(*args, **kw)
        await submitted(store, tool="Read")
        return found

    monkeypatch.setattr(AsyncConnection, "scalar", look_while_calls_come)
    found = [one.id for one in await store.history.list(limit=100, **filters)]

    assert [id_ for id_ in found if id_ in expected] == expected


async def test_attempts_and_events_are_found_in_steps_as_well(copied: Store) -> None:
    for one in await copied.history.list(limit=3):
        await copied.transitions.cancel(one.id, actor="ada", reason="enough")

    for read, filters in product((copied.history.list_attempts, copied.history.list_events), NARROWER):
        whole = [one.cursor for one in await read(limit=100, **filters)]
        found: list[str] = []
        page = await read(limit=2, patience=0.0, **filters)
        found += [one.cursor for one in page]
        time_left = within(60, "the pages do not end")
        while page.older is not None and next(time_left):
            page = await read(limit=2, patience=0.0, before=page.older, **filters)
            found += [one.cursor for one in page]
        assert found == whole, filters


async def test_more_rows_of_one_moment_than_a_step_takes_do_not_hold_pages_up(store: Store) -> None:
    claim = await running(store)
    async with store.database.reading() as connection:
        now = await connection.scalar(select(from_now(0.0)))
    rows = [
        {"execution_id": claim.id, "at": now, "kind": "requeued", "actor": "me", "detail": {}, "token": new_id()}
        for _ in range(9)
    ]
    await store.database.write(lambda connection: connection.execute(insert(execution_events), rows))

    seen, before = [], None
    for _ in within(60, "the pages do not end"):
        page = await store.history.list_events(tool="Nope", before=before, patience=0.0)
        seen.append(before)
        if (before := page.older) is None:
            break
        assert before not in seen, "this page is asked for again and again"
