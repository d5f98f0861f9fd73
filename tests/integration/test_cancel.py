"""A cancel is heard wherever the call is: waiting, between attempts, running in either lane, or on a worker that dies."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forge_tools.broker.message import CHANNEL_PREFIX
from forge_tools.client import ExecutorClient, results
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus, RetryPolicy
from forge_tools.storage import open_store
from tests.fleet import ROOT, Fleet, warm_worker
from tests.integration.conftest import Parts, attempts_of
from tests.services import client as broker
from tests.waiting import is_alive, reached, wait_until

DATABASES = ("postgres",)


@pytest.fixture
async def other(fleet: Fleet) -> AsyncIterator[ExecutorClient]:
    """A client that did not submit the call."""
    async with ExecutorClient(fleet.settings) as other:
        yield other


async def test_the_submitter_of_a_delayed_call_hears_of_its_cancel_at_once(
    parts: Parts,
    client: ExecutorClient,
    other: ExecutorClient,
    context: ExecutionContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(results, "SILENCE", 15.0)
    handle = await client.submit("Echo", {"message": "never"}, context, delay=600)
    result_of = asyncio.ensure_future(handle.result(timeout=20))
    await reached(lambda: parts.brokers[0].is_listening, 30)
    await asyncio.sleep(0)

    assert await other.calls.cancel(handle.id, "changed my mind") == "cancelled"
    began = time.monotonic()
    result = await result_of
    took = time.monotonic() - began

    assert (result.error_code, "changed my mind" in (result.error or "")) == (ErrorCode.CANCELLED, True)
    assert took < 10, "it was polled"


async def test_a_call_between_two_attempts_is_cancelled_and_keeps_the_first(
    client: ExecutorClient, other: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    retry = RetryPolicy(max_attempts=3, delay_seconds=600)
    handle = await client.submit("Flaky", {"mark": str(tmp_path / "mark")}, context, retry=retry)
    await reached(handle.record, 20, when=lambda row: row.attempt >= 1 and row.status is ExecutionStatus.QUEUED)

    assert await other.calls.cancel(handle.id) == "cancelled"
    result = await handle.result(timeout=20)
    attempts = await attempts_of(client, handle.id)

    assert "after attempt 1 of 3" in (result.error or "")
    assert [attempt.status for attempt in attempts] == [ExecutionStatus.FAILED, ExecutionStatus.CANCELLED]
    assert len((tmp_path / "mark").read_text().splitlines()) == 1


@pytest.mark.parametrize("tool", ["Sleep", "Block"])
async def test_a_running_call_is_stopped_from_another_process_in_either_lane(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, tmp_path: Path, tool: str
) -> None:
    mark = tmp_path / "mark"
    handle = await client.submit(tool, {"seconds": 60, "mark": str(mark)}, context)
    await asyncio.to_thread(wait_until, lambda: mark.exists() and mark.read_text(), 20, "the body did not start")

    said = await asyncio.to_thread(cancel_by_command, fleet, handle.id)
    result = await handle.result(timeout=20)

    assert "Asked the worker to stop" in said
    assert result.error_code == ErrorCode.CANCELLED
    pid = int(mark.read_text())
    assert pid in {worker.pid for worker in fleet.workers} or not is_alive(pid)


async def test_a_forged_notification_cancels_nothing(
    fleet: Fleet, client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    handle = await client.submit("Sleep", {"seconds": 1, "mark": str(tmp_path / "mark")}, context)
    async with await open_store(fleet.settings.database) as store, asyncio.timeout(30):
        with broker(fleet.settings.broker) as server:
            while await handle.status() is not ExecutionStatus.SUCCEEDED:
                for worker in await store.workers.list(seen_within=15):
                    for forged in (handle.id, "an id of nobody", b"\xff"):
                        server.publish(CHANNEL_PREFIX + worker.id, forged)

    assert (await handle.result(timeout=20)).success


async def test_cancelling_what_is_over_says_so_and_changes_nothing(
    fleet: Fleet, client: ExecutorClient, other: ExecutorClient, context: ExecutionContext
) -> None:
    handle = await client.submit("Echo", {"message": "done"}, context)
    await handle.result(timeout=20)

    assert await other.calls.cancel(handle.id) == "over"
    assert "has already ended" in await asyncio.to_thread(cancel_by_command, fleet, handle.id)
    assert (await handle.status(), await client.history.events_of(handle.id)) == (ExecutionStatus.SUCCEEDED, [])


async def test_cancels_that_race_with_ends_leave_one_truth(
    client: ExecutorClient, other: ExecutorClient, context: ExecutionContext
) -> None:
    handles = [await client.submit("Sleep", {"seconds": 0.01 * n}, context) for n in range(20)]
    answers = await asyncio.gather(*(other.calls.cancel(handle.id) for handle in handles))
    results = [await handle.result(timeout=20) for handle in handles]

    for handle, answer, result in zip(handles, answers, results, strict=True):
        status = await handle.status()
        assert result.success == (status is ExecutionStatus.SUCCEEDED)
        assert status in {ExecutionStatus.SUCCEEDED, ExecutionStatus.CANCELLED}
        assert answer == "requested" or result.success == (answer == "over")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_cancel_that_its_dying_worker_never_saw_ends_the_call_after_the_restart(fresh_fleet: Fleet) -> None:
    context = ExecutionContext(working_dir=str(fresh_fleet.folder))
    mark = fresh_fleet.folder / "mark"
    doomed = await asyncio.to_thread(fresh_fleet.start, "process")
    async with ExecutorClient(fresh_fleet.settings) as client:
        handle = await client.submit("BlockIdempotent", {"seconds": 60, "mark": str(mark)}, context)
        await asyncio.to_thread(wait_until, lambda: mark.exists() and mark.read_text(), 20, "the body did not start")
        await asyncio.to_thread(fresh_fleet.freeze, doomed)
        answer = await client.calls.cancel(handle.id)
        doomed.kill()
        await asyncio.to_thread(fresh_fleet.start, "process")
        result = await handle.result(timeout=60)
        attempts = await attempts_of(client, handle.id)

    assert (answer, result.error_code) == ("requested", ErrorCode.CANCELLED)
    assert [attempt.status for attempt in attempts] == [ExecutionStatus.LOST, ExecutionStatus.CANCELLED]
    assert len(mark.read_text().splitlines()) == 1


def cancel_by_command(fleet: Fleet, execution_id: str) -> str:
    return warm_worker().run(["forge_tools.cli", "cancel", execution_id], cwd=ROOT, env=fleet.environment()).stdout
