"""Progress and output of calls on real workers, as their followers receive it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from forge_tools.client import ExecutorClient, Handle, SyncExecutorClient
from forge_tools.model import Ended, ExecutionContext, ExecutionStatus, Note, Output, Progress, StateChange
from forge_tools.model.history import CallEvent
from forge_tools.model.scope import Report
from forge_tools.sandbox.reports import MOST_BYTES, PART_BYTES
from forge_tools.storage.sqlalchemy_tables import execution_reports
from tests.fleet import Fleet
from tests.migrated import database
from tests.telling_tools import FLOOD_BYTES, FLOOD_LINE
from tests.waiting import within

DATABASES = ("postgres",)

FLEET_TOOLS = "tests.telling_tools:TOOLS"
LIMIT = 60


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(fleet.settings) as client:
        yield client


async def heard(handle: Handle, after: str | None = None) -> list[CallEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in handle.events(after)]


def text(events: list[CallEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Output))


def left_out(events: list[CallEvent]) -> int:
    return sum(event.left_out for event in events if isinstance(event, Output))


def progress(events: list[CallEvent]) -> list[Progress]:
    return [event for event in events if isinstance(event, Progress)]


@pytest.mark.parametrize("tool", ["Count", "CountBlocking"])
async def test_a_call_is_followed_while_it_runs(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path, tool: str
) -> None:
    go = tmp_path / "go"
    handle = await client.submit(tool, {"steps": 4, "pause": 0.5, "go": str(go)}, context)
    events = []

    async with asyncio.timeout(LIMIT):
        async for event in handle.events():
            events.append(event)
            if isinstance(event, Output):
                go.touch()  # before it is heard it does not end

    assert text(events).startswith("line 1\nline 2\nline 3\nline 4\n")
    assert (progress(events)[-1].done, progress(events)[-1].total, progress(events)[-1].message) == (4, 4, "step 4")
    assert len(progress(events)) >= 3
    states = [(event.status, event.attempt) for event in events if isinstance(event, StateChange)]
    assert states[-1] == (ExecutionStatus.RUNNING, 1)
    assert isinstance(events[-1], Ended)
    assert (events[-1].status, events[-1].result.output, events[-1].attempt) == (ExecutionStatus.SUCCEEDED, 4, 1)


@pytest.mark.parametrize("tool", ["CountInThreads", "CountInThreadsOfProcess"])
async def test_threads_are_heard(client: ExecutorClient, context: ExecutionContext, tool: str) -> None:
    events = await heard(await client.submit(tool, {"steps": 20}, context))

    assert {f"line {step}" for step in range(1, 21)} == set(text(events).splitlines())
    assert progress(events)[-1].done == 20


@pytest.mark.parametrize("tool", ["tell_async", "tell_sync"])
async def test_a_function_is_heard_even_if_it_returns_at_once(
    client: ExecutorClient, context: ExecutionContext, tool: str
) -> None:
    for _ in range(10):
        events = await heard(await client.submit(tool, {"word": "hello"}, context))
        assert text(events) == "hello"


@pytest.mark.parametrize("tool", ["tell_apart_async", "tell_apart_sync"])
async def test_a_secret_that_is_told_in_parts_is_in_no_row(
    client: ExecutorClient, context: ExecutionContext, tool: str
) -> None:
    events = await heard(await client.submit(tool, {"pin": "hunter22"}, context))

    assert [event.text for event in events if isinstance(event, Output)] == ["is ", "[redacted]", " not ", "hunt"]


async def test_who_comes_late_and_who_comes_again_hear_the_same(
    client: ExecutorClient, context: ExecutionContext
) -> None:
    handle = await client.submit("Count", {"steps": 3, "pause": 0.3}, context)
    whole = await heard(handle)
    late = await heard(client.calls.attach(handle.id))
    first = next(event for event in whole if isinstance(event, Output))
    rest = await heard(client.calls.attach(handle.id), after=first.cursor)

    assert text(late) == text(whole) == text([first]) + text(rest)
    assert isinstance(late[-1], Ended)
    assert [type(event) for event in await heard(handle, after=whole[-1].cursor)] == [Ended]


async def test_two_who_follow_hear_the_same(fleet: Fleet, client: ExecutorClient, context: ExecutionContext) -> None:
    handle = await client.submit("CountBlocking", {"steps": 4, "pause": 0.3}, context)
    async with ExecutorClient(fleet.settings) as other:
        mine, theirs = await asyncio.gather(heard(handle), heard(other.calls.attach(handle.id)))

    assert text(mine) == text(theirs)
    assert mine[-1] == theirs[-1] or isinstance(theirs[-1], Ended)


def test_a_script_follows_without_a_loop(fleet: Fleet, context: ExecutionContext) -> None:
    with SyncExecutorClient(fleet.settings) as client:
        events = list(client.submit("Count", {"steps": 2}, context).events())
        for _ in client.submit("Count", {"steps": 2}, context).events():
            break

    assert text(events) == "line 1\nline 2\n"
    assert isinstance(events[-1], Ended)


@pytest.mark.parametrize("tool", ["Hostile", "HostileInProcess"])
async def test_hostile_text_is_heard_as_it_can_be_shown(
    client: ExecutorClient, context: ExecutionContext, tool: str
) -> None:
    events = await heard(await client.submit(tool, context=context))

    shown = text(events)
    assert shown.startswith("nul \\x00 here\nhalf \\ud800 a pair\n\ufffd\ufffd bytes\nred\nxxx")
    assert shown.endswith("xxx\n7")
    assert shown.count("x") + left_out(events) == 1_000_001
    assert (progress(events)[-1].done, progress(events)[-1].message) == (4, "\\x00")
    assert isinstance(events[-1], Ended)
    assert events[-1].result.success


async def test_a_fork_and_a_thread_that_is_left_do_no_harm(client: ExecutorClient, context: ExecutionContext) -> None:
    forked, left = await asyncio.gather(
        *[heard(await client.submit(tool, context=context)) for tool in ("TellFromFork", "TellAndLeaveAThread")]
    )

    assert (text(forked), forked[-1].result.output) == ("before\nafter\n", 0)
    assert text(left).startswith("0 1 ")
    assert "99" not in text(left)


@pytest.mark.parametrize("tool", ["Flood", "FloodInProcess"])
async def test_a_flood_is_bounded_and_harms_no_neighbour(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, tool: str
) -> None:
    handle = await client.submit(tool, context=context)
    following = asyncio.ensure_future(heard(handle))
    slowest = 0.0
    time_left = within(60, "the flood does not end")
    while not following.done() and next(time_left):
        began = time.monotonic()
        assert (
            await client.execute("tell_sync" if tool == "FloodInProcess" else "tell_async", context, word="x")
        ).success
        slowest = max(slowest, time.monotonic() - began)
    events = await following

    assert isinstance(events[-1], Ended)
    assert events[-1].result.output < 30_000, "kilobytes that the memory grew"
    written = FLOOD_BYTES // len(FLOOD_LINE) * len(FLOOD_LINE)
    assert len(text(events)) + left_out(events) == written
    assert PART_BYTES < len(text(events)) <= MOST_BYTES
    assert slowest < 20
    async with database(fleet.settings.database) as rows:
        assert await rows.scalar(select(func.count()).where(execution_reports.c.execution_id == handle.id)) < 200


async def test_a_call_that_tells_nothing_leaves_nothing(client: ExecutorClient, context: ExecutionContext) -> None:
    events = await heard(await client.submit("Count", {"steps": 0}, context))

    assert {type(event) for event in events} <= {StateChange, Ended}


async def test_who_asks_for_the_end_is_heard_of(client: ExecutorClient, context: ExecutionContext) -> None:
    handle = await client.submit("Count", {"steps": 100, "pause": 0.2}, context)
    events = []
    async with asyncio.timeout(LIMIT):
        async for event in handle.events():
            events.append(event)
            if isinstance(event, Output) and len(events) < 5:
                await handle.cancel("enough")

    note = next(event.event for event in events if isinstance(event, Note))
    assert (note.kind, note.detail) == ("cancel", {"reason": "enough"})
    assert isinstance(events[-1], Ended)
    assert events[-1].status is ExecutionStatus.CANCELLED


@pytest.mark.parametrize("tool", ["Count", "CountBlocking"])
async def test_a_call_whose_time_is_up_has_told_all_it_did(
    client: ExecutorClient, context: ExecutionContext, tool: str
) -> None:
    brief = context.model_copy(update={"timeout": 1.0})
    events = await heard(await client.submit(tool, {"steps": 1000, "pause": 0.01}, brief))

    assert isinstance(events[-1], Ended)
    assert events[-1].status is ExecutionStatus.TIMED_OUT
    lines = text(events).splitlines()
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    assert abs(progress(events)[-1].done - len(lines)) <= 1


@pytest.mark.parametrize(
    ("database_url", "lane", "tool"),
    [("sqlite", "async", "TellAndStay"), ("postgres", "process", "TellAndStayInProcess")],
    indirect=["database_url"],
)
async def test_attempts_are_told_apart_when_a_worker_is_killed(fresh_fleet: Fleet, lane: str, tool: str) -> None:
    context = ExecutionContext(working_dir=str(fresh_fleet.folder))
    first = fresh_fleet.start(lane, tools=FLEET_TOOLS, lease="15")
    async with ExecutorClient(fresh_fleet.settings) as client:
        handle = await client.submit(tool, {"pause": 8.0}, context)
        events: list[CallEvent] = []
        async with asyncio.timeout(90):
            async for event in handle.events():
                events.append(event)
                if isinstance(event, Output) and first.process.poll() is None:
                    await asyncio.to_thread(first.kill)
                    await asyncio.to_thread(fresh_fleet.start, lane, tools=FLEET_TOOLS)

    outputs = [event for event in events if isinstance(event, Output)]
    assert [event.attempt for event in outputs] == [1, 2]
    assert outputs[0].text != outputs[1].text
    states = [(event.status, event.attempt) for event in events if isinstance(event, StateChange)]
    assert states[-1] == (ExecutionStatus.RUNNING, 2)
    assert any(isinstance(event, Note) and event.event.kind == "requeue" for event in events)
    assert isinstance(events[-1], Ended)
    assert events[-1].attempt == 2


async def test_bash_shows_what_its_command_writes_while_it_runs(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    go = fleet.folder / tmp_path.name  # in the workspace: the command would not see it elsewhere
    line = "printf '\\033[1mline %s\\033[0m\\n' $n"
    command = f"for n in 1 2 3; do {line}; until [ -e {go} ]; do sleep 0.05; done; done"
    handle = await client.submit("Bash", {"command": command}, context)
    first = asyncio.ensure_future(anext(one async for one in handle.events() if isinstance(one, Output)))
    async with asyncio.timeout(LIMIT):
        assert (await first).text.startswith("line 1\n")
        assert not (await handle.record()).is_over
        go.touch()

    assert text(await heard(handle)) == "line 1\nline 2\nline 3\n"


@pytest.mark.parametrize("tool", ["Count", "CountBlocking"])
async def test_whoever_awaits_a_call_can_be_told_meanwhile(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path, tool: str
) -> None:
    reports: list[CallEvent] = []
    go = tmp_path / "go"

    def hear(report: Report) -> None:
        reports.append(report)
        go.touch()  # before it is heard it does not end
        raise ValueError("what a listener raises is lost")

    async with asyncio.timeout(LIMIT):
        result = await client.call(tool, {"steps": 4, "pause": 0.5, "go": str(go)}, context, on_report=hear)

    assert (result.output, result.success) == (4, True)
    assert text(reports).startswith("line 1\nline 2\nline 3\nline 4\n")
    assert progress(reports)[-1].message == "step 4"
    assert {type(report) for report in reports} == {Output, Progress}


def test_a_script_is_told_on_its_own_thread_and_may_use_the_client(fleet: Fleet, context: ExecutionContext) -> None:
    heard: list[tuple[Report, int, int]] = []
    with SyncExecutorClient(fleet.settings) as client:

        def hear(report: Report) -> None:
            heard.append((report, threading.get_ident(), len(client.history.list())))

        result = client.call("Count", {"steps": 3, "pause": 0.3}, context, on_report=hear)

    assert result.output == 3
    assert text([report for report, _, _ in heard]).startswith("line 1\nline 2\nline 3\n")
    assert {thread for _, thread, _ in heard} == {threading.get_ident()}
    assert all(rows >= 1 for _, _, rows in heard)
