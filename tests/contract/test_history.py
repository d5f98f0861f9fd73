"""The contract of history, on every database."""

import pytest

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.records import ExecutionStatus, Outcome, new_id
from forge_tools.storage import Store
from tests.contract.calls import UNKNOWN, boot, call, claimed, ended, finished, running, submitted


async def test_a_finished_call_tells_what_was_asked_and_what_came_of_it(store: Store) -> None:
    claim = await running(store, agent_id="agent-7", session_id="s-1", parameters='{"pattern":"x"}')
    await store.queue.finish(ended(claim, output='["a"]', duration_ms=3.0, metadata='{"n":1}'))
    record = await store.history.get(claim.id)
    assert (record.tool, record.category, record.agent_id, record.session_id) == ("Grep", "file", "agent-7", "s-1")
    assert (record.parameters, record.context) == ({"pattern": "x"}, {"working_dir": "/w"})
    assert (record.status, record.attempt, record.output, record.metadata) == (
        ExecutionStatus.SUCCEEDED, 1, ["a"], {"n": 1}
    )  # fmt: skip
    assert (record.worker_id, record.hostname, record.duration_ms) == ("boot-1", "host-1", 3.0)
    assert (record.timeout, record.timeout_source, record.soft_time_limit, record.time_limit) == (5.0, "tool", 6.0, 7.0)
    assert record.started_at is not None
    assert record.completed_at is not None
    assert record.queued_at <= record.started_at <= record.completed_at
    assert record.queued_at.utcoffset() is not None


async def test_queued_and_running_calls_are_history_too(store: Store) -> None:
    queued = await store.history.get(await submitted(store))
    assert (queued.status, queued.attempt, queued.started_at) == (ExecutionStatus.QUEUED, 0, None)
    claim = await running(store)
    seen = await store.history.get(claim.id)
    assert (seen.status, seen.attempt, seen.worker_id) == (ExecutionStatus.RUNNING, 1, "boot-1")
    assert seen.completed_at is None
    assert seen.metadata == {}


async def test_a_tool_gets_the_secret_that_history_does_not_show(store: Store) -> None:
    new = call(parameters='{"url":"u","token":"s3cret"}', sensitive=("token", "absent"))
    await store.queue.submit(new)
    assert (await claimed(store, new.id)).parameters == '{"url":"u","token":"s3cret"}'
    assert (await store.history.get(new.id)).parameters == {"url": "u", "token": "[redacted]"}
    [listed] = await store.history.list()
    assert "s3cret" not in repr(listed)


async def test_a_rejected_call_is_redacted_too(store: Store) -> None:
    new = call(parameters='{"token":"s3cret"}', sensitive=("token",))
    await store.queue.record(new, Outcome(id=new.id, attempt=0, token="", status=ExecutionStatus.REJECTED, error="no"))
    assert (await store.history.get(new.id)).parameters == {"token": "[redacted]"}


async def test_the_beginning_of_an_id_is_enough_if_it_is_unique(store: Store) -> None:
    id_ = await submitted(store)
    for length in (20, 30, 36):
        assert (await store.history.get(id_[:length].upper())).id == id_


async def test_an_ambiguous_beginning_asks_for_more(store: Store) -> None:
    base = new_id()
    for last in "ab":
        await submitted(store, id=base[:-1] + last)
    with pytest.raises(ExecutionNotFoundError, match="give more characters"):
        await store.history.get(base[:-1])


@pytest.mark.parametrize("id_", [UNKNOWN, "0123456", "", "zzzzzzzz", "not-a-uuid-at-all", "%" * 36, "1" * 400])
async def test_an_id_that_fits_nothing_is_not_found(store: Store, id_: str) -> None:
    with pytest.raises(ExecutionNotFoundError):
        await store.history.get(id_)


async def test_each_filter_picks_its_rows(store: Store) -> None:
    wanted = await submitted(store, tool="Bash", category="execution", agent_id="a", session_id="s")
    claim = await running(store)
    await store.queue.finish(ended(claim, ExecutionStatus.FAILED, error="x", error_code="TOOL_ERROR"))
    for filters in (
        {"tool": "Bash"}, {"category": "execution"}, {"agent_id": "a"}, {"session_id": "s"}, {"status": "queued"}
    ):  # fmt: skip
        assert [record.id for record in await store.history.list(**filters)] == [wanted]
    assert [record.id for record in await store.history.list(error_code="TOOL_ERROR")] == [claim.id]
    assert await store.history.list(status=ExecutionStatus.LOST) == []


async def test_since_and_until_bound_the_queued_time(store: Store) -> None:
    ids = [await submitted(store) for _ in range(3)]
    middle = (await store.history.get(ids[1])).queued_at
    assert [record.id for record in await store.history.list(since=middle)] == [ids[2], ids[1]]
    assert [record.id for record in await store.history.list(until=middle)] == [ids[0]]


async def test_pages_follow_each_other_without_gap_or_repetition(store: Store) -> None:
    assert await store.queue.submit_many([call() for _ in range(23)]) == [None] * 23
    listed, before = [], None
    while page := await store.history.list(limit=5, before=before):
        listed += page
        before = (page[-1].queued_at, page[-1].id)
    keys = [(record.queued_at, record.id) for record in listed]
    assert len(keys) == 23
    assert keys == sorted(keys, reverse=True)


async def test_stats_count_calls_and_average_times_per_tool(store: Store) -> None:
    fast, slow = await running(store), await running(store)
    await store.queue.finish_many([ended(fast, duration_ms=10.0), ended(slow, duration_ms=30.0)])
    failed = await running(store)
    await store.queue.finish(ended(failed, ExecutionStatus.TIMED_OUT))
    new = call(tool="Nope")
    await store.queue.record(new, Outcome(id=new.id, attempt=0, token="", status=ExecutionStatus.REJECTED))
    grep, nope = await store.history.stats()
    assert (grep.tool, grep.calls, grep.succeeded, grep.failed, grep.rejected) == ("Grep", 3, 2, 1, 0)
    assert (grep.mean_duration_ms, grep.max_duration_ms) == (20.0, 30.0)
    assert grep.mean_wait_seconds is not None
    assert 0 <= grep.mean_wait_seconds < 30
    assert (nope.calls, nope.rejected, nope.mean_wait_seconds) == (1, 1, None)


async def test_backlog_counts_what_waits_and_runs_per_queue_and_lane(store: Store) -> None:
    await store.workers.register(boot())
    await running(store)
    for changes in ({}, {"queue": "background"}, {"queue": "background"}):
        await submitted(store, **changes)
    await finished(store, [await submitted(store)])
    background, default = await store.history.backlog()
    assert (background.queue, background.lane, background.queued, background.running) == ("background", "async", 2, 0)
    assert (default.queue, default.queued, default.running) == ("default", 1, 1)
    assert background.oldest_seconds is not None
    assert 0 <= background.oldest_seconds < 30


async def test_an_empty_history_is_empty(store: Store) -> None:
    assert await store.history.list() == []
    assert await store.history.stats() == []
    assert await store.history.backlog() == []
    assert await store.history.attempts("nope") == []
    assert await store.history.events(new_id()) == []
