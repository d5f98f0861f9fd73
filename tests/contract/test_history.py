"""The contract of history, on every database."""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge_tools.errors import ExecutionNotFoundError
from forge_tools.model import Diagnosis, ExecutionStatus, Grouping, new_id
from forge_tools.model.diagnosis import Frame
from forge_tools.model.execution import Outcome, Wakeup
from forge_tools.storage import Store
from tests.contract.calls import (
    SCOPE,
    UNKNOWN,
    call,
    claimed,
    ended,
    finish_one,
    finished,
    instance,
    running,
    submit_one,
    submitted,
)
from tests.waiting import within


async def test_a_finished_call_tells_what_was_asked_and_what_came_of_it(store: Store) -> None:
    claim = await running(store, agent_id="agent-7", session_id="s-1", parameters='{"pattern":"x"}')
    await finish_one(store, ended(claim, output='["a"]', duration_ms=3.0, metadata='{"n":1}'))
    record = await store.history.get(claim.id)
    assert (record.tool, record.category, record.agent_id, record.session_id) == ("Grep", "file", "agent-7", "s-1")
    assert (record.parameters, record.context) == ({"pattern": "x"}, {"working_dir": "/w"})
    assert (record.status, record.attempt, record.output, record.metadata) == (
        ExecutionStatus.SUCCEEDED, 1, ["a"], {"n": 1}
    )  # fmt: skip
    assert (record.worker_id, record.hostname, record.duration_ms) == ("instance-1", "host-1", 3.0)
    assert (record.timeout, record.timeout_source, record.soft_time_limit, record.time_limit) == (5.0, "tool", 6.0, 7.0)
    assert record.started_at is not None
    assert record.completed_at is not None
    assert record.queued_at <= record.started_at <= record.completed_at
    assert record.queued_at.utcoffset() is not None


async def test_a_failed_attempt_keeps_its_diagnosis_and_is_found_by_it(store: Store) -> None:
    why = Diagnosis(type="KeyError", message="'missing'", frames=(Frame(file="t.py", line=7, function="look_up"),))
    told = {"error": "Unexpected error: KeyError: 'missing'", "diagnosis": json.dumps(why.as_dict())}
    retried = await running(store, idempotent=True, max_attempts=2)
    await finish_one(store, ended(retried, ExecutionStatus.FAILED, retry_in=0.0, **told))
    failed = await running(store)
    await finish_one(store, ended(failed, ExecutionStatus.FAILED, **told))

    assert Diagnosis.read((await store.history.get(failed.id)).diagnosis) == why
    assert [Diagnosis.read(one.diagnosis) for one in await store.history.attempts(retried.id)] == [why]
    [result] = await store.queue.results([failed.id])
    assert result.diagnosis == why
    for text in ("KeyError", "look_up", "t.py"):
        assert [one.id for one in await store.history.list(error_text=text)] == [failed.id]
    [broken] = (await store.overviews.read(window=60.0, lease=15.0, patience=5.0)).failures
    assert broken.why == "KeyError: 'missing' (t.py:7 in look_up)"


async def test_queued_and_running_calls_are_history_too(store: Store) -> None:
    queued = await store.history.get(await submitted(store))
    assert (queued.status, queued.attempt, queued.started_at) == (ExecutionStatus.QUEUED, 0, None)
    claim = await running(store)
    seen = await store.history.get(claim.id)
    assert (seen.status, seen.attempt, seen.worker_id) == (ExecutionStatus.RUNNING, 1, "instance-1")
    assert seen.completed_at is None
    assert seen.metadata == {}


async def test_a_tool_gets_the_secret_that_history_does_not_show(store: Store) -> None:
    shown = '{"url":"u","token":"[redacted]"}'
    new = call(parameters=shown, encrypted="1.key.s3cret", encrypted_names=("token",))
    await submit_one(store, new)
    claim = await claimed(store, new.id)
    assert (claim.parameters, claim.encrypted) == (shown, "1.key.s3cret")
    assert (await store.history.get(new.id)).parameters == {"url": "u", "token": "[redacted]"}
    [listed] = await store.history.list()
    assert "s3cret" not in repr(listed)


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
    await finish_one(store, ended(claim, ExecutionStatus.FAILED, error="x", error_code="TOOL_ERROR"))
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
    time_left = within(60, "the pages do not end")
    while next(time_left) and (page := await store.history.list(limit=5, before=before)):
        listed += page
        before = page[-1].id
    ids = [record.id for record in listed]
    assert len(ids) == 23
    assert ids == sorted(ids, reverse=True)


async def test_the_remaining_filters_pick_by_time_taken_and_by_words_of_the_error(store: Store) -> None:
    fast, slow = await running(store, queue="default"), await running(store, queue="default")
    await finish_one(store, ended(fast, duration_ms=5.0))
    await finish_one(store, ended(slow, ExecutionStatus.FAILED, duration_ms=900.0, error="Disk 100% FULL_ on /dev"))
    for filters in ({"min_ms": 900}, {"error_text": "100% full_"}, {"min_ms": 6, "queue": "default"}):
        assert [record.id for record in await store.history.list(**filters)] == [slow.id]
    assert [record.id for record in await store.history.list(max_ms=5)] == [fast.id]
    for nothing in ({"error_text": "100_ full"}, {"error_text": "%" * 3}, {"queue": "b"}, {"min_ms": 1, "max_ms": 2}):
        assert await store.history.list(**nothing) == []


async def test_an_unknown_filter_is_an_error(store: Store) -> None:
    with pytest.raises(TypeError, match=r"There is no filter 'agent'. There are: tool, .*, agent_id, session_id, "):
        await store.history.list(agent="a")


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"status": "done"}, "There is no status 'done'. There are: queued, "),
        ({"status": ["failed"]}, r"There is no status \['failed'\]. There are: queued, "),
        ({"since": datetime.fromisoformat("2026-05-01T12:00:00")}, "since is 2026-05-01 12:00:00, without a time zone"),
        ({"until": datetime.fromisoformat("2026-05-01T12:00:00")}, "until is 2026-05-01 12:00:00, without a time zone"),
        ({"since": "15m"}, "since is 15m, without a time zone. Give a datetime that has one: datetime.now.UTC."),
    ],
)
async def test_filters_that_mean_nothing_are_refused(store: Store, filters: dict[str, Any], said: str) -> None:
    for read in (store.history.list, store.history.figures, lambda **given: anext(store.history.pages(**given))):
        with pytest.raises(ValueError, match=said):
            await read(**filters)


async def test_pages_and_groups_that_there_cannot_be_are_refused(store: Store) -> None:
    for before in ("", "zz", "01a00000", "\ud800", "\0", "x" * 1000):
        with pytest.raises(ExecutionNotFoundError, match="is not an execution id"):
            await store.history.list(before=before)
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"limit is {limit}"):
            await store.history.list(limit=limit)
    with pytest.raises(ValueError, match="minute"):
        await store.history.figures("minute")


async def test_a_page_goes_on_where_the_execution_above_is_gone(store: Store) -> None:
    older, above = await submitted(store), new_id()
    await submitted(store)
    assert [record.id for record in await store.history.list(before=above.upper())] == [older]


async def test_the_ends_of_time_bound_nothing(store: Store) -> None:
    id_ = await submitted(store)
    bounds = {"since": datetime.min.replace(tzinfo=UTC), "until": datetime.max.replace(tzinfo=UTC)}
    assert [record.id for record in await store.history.list(**bounds)] == [id_]
    assert [one.calls for one in await store.history.figures(**bounds)] == [1]
    assert [len(page) async for page in store.history.pages(**bounds)] == [1]


async def test_all_pages_come_oldest_first_without_what_is_queued_meanwhile(store: Store) -> None:
    ids = [await submitted(store, agent_id="a") for _ in range(7)]
    seen = []
    async for page in store.history.pages(3, agent_id="a"):
        seen += [record.id for record in page]
        await submitted(store, agent_id="a")
    assert seen == ids
    assert [page async for page in store.history.pages(3, agent_id="nobody")] == []


async def test_figures_count_calls_and_how_they_ended(store: Store) -> None:
    fast, slow = await running(store), await running(store)
    await store.queue.finish_many([ended(fast, duration_ms=10.0), ended(slow, duration_ms=30.0)])
    await finish_one(store, ended(await running(store), ExecutionStatus.TIMED_OUT))
    await submitted(store)
    new = call(tool="Nope")
    await store.queue.record(new, Outcome(id=new.id, attempt=0, token="", status=ExecutionStatus.REJECTED))
    grep, nope = await store.history.figures()
    assert (grep.key, grep.calls, grep.succeeded, grep.failed, grep.rejected) == ("Grep", 4, 2, 1, 0)
    assert grep.success_rate == pytest.approx(2 / 3)
    assert (grep.duration_ms.mean, grep.duration_ms.max) == (20.0, 30.0)
    assert grep.wait_ms.p99 is not None
    assert 0 <= grep.wait_ms.p99 < 30_000
    assert (nope.calls, nope.rejected, nope.success_rate, nope.wait_ms.p50) == (1, 1, None, None)


@pytest.mark.parametrize("count", [1, 2, 20, 100, 101])
async def test_percentiles_are_by_nearest_rank_on_every_database(store: Store, count: int) -> None:
    durations = [float(number) for number in range(1, count + 1)]
    await store.queue.submit_many(calls := [call() for _ in durations])
    claims = await store.queue.claim([Wakeup(one.id, 0) for one in calls], SCOPE)
    outcomes = [ended(claim, duration_ms=time) for claim, time in zip(claims, reversed(durations), strict=True)]
    assert all(await store.queue.finish_many(outcomes))
    [figures] = await store.history.figures()
    expected = [durations[math.ceil(count * percent / 100) - 1] for percent in (50, 95, 99)]
    assert [figures.duration_ms.p50, figures.duration_ms.p95, figures.duration_ms.p99] == expected


async def test_figures_are_told_apart_by_what_is_asked(store: Store) -> None:
    await submitted(store, tool="Bash", category="execution", agent_id="a", session_id="s", queue="background")
    await submitted(store)
    expected: dict[Grouping, list[str | None]] = {
        Grouping.TOOL: ["Bash", "Grep"],
        Grouping.CATEGORY: ["execution", "file"],
        Grouping.AGENT: ["a", None],
        Grouping.SESSION: ["s", None],
        Grouping.QUEUE: ["background", "default"],
    }
    for by, keys in expected.items():
        assert [one.key for one in await store.history.figures(by)] == keys
    hours = await store.history.figures(Grouping.HOUR)
    assert sum(one.calls for one in hours) == 2
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:00Z", one.key or "") for one in hours)


async def test_figures_of_a_period_leave_the_rest_out(store: Store) -> None:
    await finished(store, [await submitted(store)])
    middle = (await store.history.get(await submitted(store))).queued_at
    [since], [until] = await store.history.figures(since=middle), await store.history.figures(until=middle)
    assert (since.calls, since.succeeded, until.calls, until.succeeded) == (1, 0, 1, 1)
    assert await store.history.figures(since=middle + timedelta(days=1)) == []


async def test_backlog_counts_what_waits_and_runs_per_queue_and_lane(store: Store) -> None:
    await store.workers.register(instance())
    await running(store)
    for changes in ({}, {"queue": "background"}, {"queue": "background"}):
        await submitted(store, **changes)
    await finished(store, [await submitted(store)])
    background, default = (await store.overviews.read(window=60.0, lease=15.0, patience=5.0)).queues
    assert (background.queue, background.lane, background.waiting, background.running) == ("background", "async", 2, 0)
    assert (default.queue, default.waiting, default.running) == ("default", 1, 1)
    assert background.oldest_seconds is not None
    assert 0 <= background.oldest_seconds < 30


async def test_an_empty_history_is_empty(store: Store) -> None:
    assert await store.history.list() == []
    assert await store.history.figures() == []
    assert (await store.overviews.read(window=60.0, lease=15.0, patience=5.0)).queues == ()
    assert await store.history.attempts("nope") == []
    assert await store.history.events(new_id()) == []
