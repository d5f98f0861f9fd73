"""The contract of lists over all executions, attempts and events, on every database."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.model import ExecutionRecord, ExecutionStatus
from forge_tools.model.history import AttemptRecord, EventRecord
from forge_tools.storage import Store
from forge_tools.storage.sqlalchemy_tables import execution_events
from tests.contract.calls import claimed, ended, finish_one, finished, instance, running, submitted
from tests.waiting import within

Record = ExecutionRecord | AttemptRecord | EventRecord


async def retried(store: Store, **asked: Any) -> str:
    """A call of two attempts: the first failed and was to be tried again, the second succeeded."""
    first = await running(store, max_attempts=2, **asked)
    failed = ended(first, ExecutionStatus.FAILED, retry_in=0.0, error="Disk FULL", error_code="DISK", duration_ms=900.0)
    assert await finish_one(store, failed)
    second = await claimed(store, first.id, 1)
    assert await finish_one(store, ended(second, output='"done"', duration_ms=5.0, metadata='{"n":1}'))
    return first.id


async def cancelled(store: Store, reason: str = "enough", **asked: Any) -> str:
    id_ = await submitted(store, **asked)
    assert await store.transitions.cancel(id_, actor="ada", reason=reason) == "cancelled"
    return id_


async def test_attempts_tell_what_was_asked_and_how_each_ended(store: Store) -> None:
    id_ = await retried(store, agent_id="a-7", session_id="s-1")
    last, first = await store.history.list_attempts()
    assert (first.execution_id, first.attempt, first.status, first.final) == (id_, 1, ExecutionStatus.FAILED, False)
    assert (first.error, first.error_code, first.duration_ms, first.hostname) == ("Disk FULL", "DISK", 900.0, "host-1")
    assert (last.attempt, last.status, last.final, last.output) == (2, ExecutionStatus.SUCCEEDED, True, "done")
    assert (last.tool, last.category, last.agent_id, last.session_id, last.queue) == (
        "Grep", "file", "a-7", "s-1", "default"
    )  # fmt: skip
    assert last.metadata == {"n": 1}


@pytest.mark.parametrize(
    "filters",
    [
        *({"status": "failed"}, {"error_code": "DISK"}, {"error_text": "disk f"}, {"min_ms": 900}),
        {
            "tool": "Grep",
            "category": "file",
            "agent_id": "a",
            "session_id": "s",
            "queue": "default",
            "status": "failed",
        },
    ],
)
async def test_filters_see_attempts_that_their_executions_outlived(store: Store, filters: dict[str, Any]) -> None:
    id_ = await retried(store, agent_id="a", session_id="s")
    await finished(store, [await submitted(store)])
    found = await store.history.list_attempts(**filters)
    assert [(one.execution_id, one.attempt) for one in found] == [(id_, 1)]
    assert await store.history.list(**filters) == []  # the execution itself succeeded
    for nothing in ({"tool": "Bash"}, {"agent_id": "b"}, {"error_text": "disk_f"}, {"min_ms": 901}, {"status": "lost"}):
        assert await store.history.list_attempts(**nothing) == []


async def test_events_tell_to_what_they_happened(store: Store) -> None:
    id_ = await cancelled(store, "too slow", agent_id="a-7", session_id="s-1")
    [event] = await store.history.list_events()
    assert (event.execution_id, event.kind, event.actor, event.detail) == (id_, "cancel", "ada", {"reason": "too slow"})
    assert (event.tool, event.category, event.agent_id, event.session_id) == ("Grep", "file", "a-7", "s-1")


@pytest.mark.parametrize(
    "filters",
    [
        *({"kind": "cancel"}, {"tool": "Bash"}, {"category": "execution"}, {"agent_id": "a"}, {"session_id": "s"}),
        *(
            {"status": "cancelled"},
            {"error_code": "CANCELLED"},
            {"error_text": "BY ADA"},
            {"queue": "b", "kind": "cancel"},
        ),
    ],
)
async def test_filters_pick_events_by_kind_and_by_what_they_happened_to(store: Store, filters: dict[str, Any]) -> None:
    id_ = await cancelled(store, tool="Bash", category="execution", agent_id="a", session_id="s", queue="b")
    lost = await running(store)
    await store.workers.register(instance())
    await store.transitions.recover("instance-1", "it died")
    assert [(one.execution_id, one.kind) for one in await store.history.list_events(**filters)] == [(id_, "cancel")]
    assert [one.execution_id for one in await store.history.list_events(kind="lost", status="lost")] == [lost.id]
    assert await store.history.list_events(kind="lost", tool="Bash") == []


async def test_times_bound_events_by_when_they_happened(store: Store) -> None:
    await cancelled(store)
    [event] = await store.history.list_events()
    after, before = event.at + timedelta(microseconds=1), event.at - timedelta(days=1)
    assert await store.history.list_events(since=event.at, until=after) == [event]
    assert await store.history.list_events(until=event.at) == []
    assert await store.history.list_events(since=after, kind="cancel") == []
    assert await store.history.list_events(since=before, tool="Grep") == [event]


def reads(store: Store) -> list[tuple[Callable[..., Any], Callable[..., Any]]]:
    history = store.history
    return [
        (history.list, history.pages),
        (history.list_attempts, history.attempt_pages),
        (history.list_events, history.event_pages),
    ]


async def seeded(store: Store, count: int) -> None:
    for _ in range(count):
        await cancelled(store)
        await retried(store)


@pytest.mark.parametrize("which", range(3), ids=["executions", "attempts", "events"])
async def test_pages_have_each_row_once_whatever_is_added_meanwhile(store: Store, which: int) -> None:
    await seeded(store, 4)
    read, pages = reads(store)[which]
    there = [one.cursor for one in await read(limit=1000)]
    paged, exported, before = list[str](), list[str](), None
    time_left = within(60, "the pages do not end")
    while next(time_left) and (page := await read(limit=3, before=before)):
        paged += [one.cursor for one in page]
        before = page[-1].cursor
        await seeded(store, 1)
    assert paged == there
    now = [one.cursor for one in await read(limit=1000)]
    async for some in pages(3):
        exported += [one.cursor for one in some]
        await seeded(store, 1)
    assert exported == now[::-1]


async def test_events_of_one_moment_are_told_apart(store: Store) -> None:
    ids = [await cancelled(store) for _ in range(7)]
    at_once = update(execution_events).values(at=select(func.min(execution_events.c.at)).scalar_subquery())
    await store.database.write(lambda connection: connection.execute(at_once))
    found, before = list[EventRecord](), None
    time_left = within(60, "the pages do not end")
    while next(time_left) and (page := await store.history.list_events(limit=2, before=before)):
        found += page
        before = page[-1].cursor
    assert len({one.at for one in found}) == 1
    assert sorted(one.execution_id for one in found) == sorted(ids)
    assert [one.id for one in found] == sorted((one.id for one in found), reverse=True)


async def test_a_page_of_events_goes_on_where_the_one_above_is_gone(store: Store) -> None:
    ids = [await cancelled(store) for _ in range(3)]
    newest, *_ = await store.history.list_events()
    gone = str(newest.id + 1)
    assert [one.execution_id for one in await store.history.list_events(before=gone)] == ids[::-1]
    assert await store.history.list_events(before="0") == []


async def gone(store: Store, *events: EventRecord) -> None:
    statement = delete(execution_events).where(execution_events.c.id.in_([event.id for event in events]))
    await store.database.write(lambda connection: connection.execute(statement))


@pytest.mark.parametrize("pruned", [slice(2, 3), slice(2, 4), slice(0, 3), slice(2, 5)])
async def test_a_page_of_events_goes_on_where_the_last_one_above_was_pruned(store: Store, pruned: slice) -> None:
    ids = [await cancelled(store) for _ in range(5)][::-1]
    events = list(await store.history.list_events())
    await gone(store, *events[pruned])

    page = await store.history.list_events(before=events[2].cursor)

    assert [one.execution_id for one in page] == ids[max(3, pruned.stop) :]
    assert page.older is None


async def test_all_events_are_read_to_the_end_though_those_behind_are_pruned_meanwhile(store: Store) -> None:
    ids = [await cancelled(store) for _ in range(5)]
    found = list[str]()
    async for stretch in store.history.event_pages(2):
        found += [one.execution_id for one in stretch]
        await gone(store, *stretch)
    assert found == ids


async def test_cursors_that_there_cannot_be_are_refused(store: Store) -> None:
    await seeded(store, 1)
    for before in ("", "x", "1.5", "-1", "٣", "9" * 40, "\0", "\ud800"):
        with pytest.raises(ExecutionNotFoundError, match=r"`before` needs"):
            await store.history.list_events(before=before)
        with pytest.raises(ExecutionNotFoundError, match=re.escape("`before` needs an id, a colon and a number")):
            await store.history.list_attempts(before=before)
    for read, _ in reads(store):
        with pytest.raises(ValueError, match="limit is 0"):
            await read(limit=0)


async def test_what_waits_has_no_attempt_that_could_be_asked_for(store: Store) -> None:
    await submitted(store)
    assert await store.history.list_attempts() == []
    with pytest.raises(ValueError, match="No attempt has the status 'queued'"):
        await store.history.list_attempts(status="queued")
    with pytest.raises(ValueError, match="without a time zone"):
        await store.history.list_events(since=datetime.now(UTC).replace(tzinfo=None))


async def test_what_is_not_over_is_found_by_the_filters_of_history(store: Store) -> None:
    ids = [await submitted(store, session_id="s", queue=queue) for queue in ("a", "b", "a")]
    await submitted(store, session_id="other", queue="a")
    claim = await running(store, session_id="s")
    await finished(store, [await submitted(store, session_id="s")])
    assert await store.history.unfinished(session_id="s") == sorted([*ids, claim.id])
    assert await store.history.unfinished(session_id="s", queue="a") == [ids[0], ids[2]]
    assert await store.history.unfinished(session_id="s", status="running") == [claim.id]
    assert await store.history.unfinished(session_id="s", status="succeeded") == []
