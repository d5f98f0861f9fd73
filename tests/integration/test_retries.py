"""Failures are retried if that was requested and is safe; poison calls end alone."""

import asyncio
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus, RetryPolicy
from tests.fleet import ROOT, Fleet, warm_worker
from tests.integration.conftest import attempts_of
from tests.waiting import wait_until

DATABASES = ("postgres",)

PROMPT = RetryPolicy(max_attempts=3)


async def ends_of(client: ExecutorClient, execution_id: str) -> list[tuple[int, ExecutionStatus]]:
    return [(attempt.attempt, attempt.status) for attempt in await attempts_of(client, execution_id)]


async def test_a_failure_is_tried_again_by_policy_and_every_attempt_is_kept(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    handle = await client.submit("Flaky", {"mark": str(tmp_path / "mark")}, context, retry=PROMPT)
    result = await handle.result(timeout=30)

    assert (result.output, result.metadata["attempt"]) == ("start 3", 3)
    assert await ends_of(client, handle.id) == [
        (1, ExecutionStatus.FAILED),
        (2, ExecutionStatus.FAILED),
        (3, ExecutionStatus.SUCCEEDED),
    ]


async def test_attempts_end_with_the_last_failure(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    call = {"mark": str(tmp_path / "mark"), "failures": 9}
    result = await client.call("Flaky", call, context, retry=RetryPolicy(max_attempts=2))

    assert (result.error, result.error_code, result.metadata["attempt"]) == ("start 2 failed", "FLAKY", 2)


@pytest.mark.parametrize(
    ("tool", "options", "said"),
    [
        ("Flaky", {}, {}),
        ("Flaky", {"max_attempts": 3}, {}),
        ("Flaky", {"retry": PROMPT}, {"harmless": False}),
        ("FlakyOrder", {"retry": PROMPT}, {}),
    ],
)
async def test_a_failed_result_is_an_answer_where_nobody_asked_or_trying_again_could_harm(
    client: ExecutorClient,
    context: ExecutionContext,
    tmp_path: Path,
    tool: str,
    options: dict[str, Any],
    said: dict[str, bool],
) -> None:
    result = await client.call(tool, {"mark": str(tmp_path / "mark"), **said}, context, **options)

    assert (result.error, result.metadata["attempt"]) == ("start 1 failed", 1)
    assert ("not_retried" in result.metadata) == (tool == "FlakyOrder")


async def test_a_tool_that_says_nothing_happened_is_tried_again_though_it_is_not_idempotent(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    call = {"mark": str(tmp_path / "mark"), "harmless": True}
    result = await client.call("FlakyOrder", call, context, retry=PROMPT)

    assert (result.output, result.metadata["attempt"]) == ("start 3", 3)


async def test_a_time_out_of_an_idempotent_tool_is_tried_again_by_policy(
    client: ExecutorClient, context: ExecutionContext, tmp_path: Path
) -> None:
    hasty = context.model_copy(update={"timeout": 0.5})
    handle = await client.submit(
        "BlockIdempotent", {"seconds": 60, "mark": str(tmp_path / "mark")}, hasty, retry=RetryPolicy(2)
    )
    result = await handle.result(timeout=30)

    assert result.error_code == ErrorCode.TIMEOUT
    assert await ends_of(client, handle.id) == [(1, ExecutionStatus.TIMED_OUT), (2, ExecutionStatus.TIMED_OUT)]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_delay_is_kept_and_not_stretched_to_the_next_heartbeat(fresh_fleet: Fleet) -> None:
    context = ExecutionContext(working_dir=str(fresh_fleet.folder))
    await asyncio.to_thread(fresh_fleet.start, "async", heartbeat="20", lease="100")
    mark = fresh_fleet.folder / "mark"
    async with ExecutorClient(fresh_fleet.settings) as client:
        call = {"mark": str(mark), "failures": 3}
        result = await client.call("Flaky", call, context, retry=RetryPolicy(4, 0.3, backoff=2.0))
    times = [float(line) for line in mark.read_text().splitlines()]
    waits = [after - before for before, after in pairwise(times)]

    assert result.output == "start 4"
    assert [wait >= delay for wait, delay in zip(waits, (0.3, 0.6, 1.2), strict=True)] == [True] * 3
    assert max(waits) < 15, waits


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_call_that_ends_its_worker_is_retried_alone_and_ends_as_lost(fresh_fleet: Fleet) -> None:
    context = ExecutionContext(working_dir=str(fresh_fleet.folder))
    for lane in ("async", "async", "process"):
        await asyncio.to_thread(fresh_fleet.start, lane, concurrency=1 if lane == "process" else 2)
    marks = {name: fresh_fleet.folder / name for name in ("Doze", "EndWorker")}
    async with ExecutorClient(fresh_fleet.settings) as client:
        neighbour = await client.submit("Doze", {"mark": str(marks["Doze"])}, context)
        await asyncio.to_thread(wait_until, marks["Doze"].exists, 20, "the body did not start")
        poison = await client.submit("EndWorker", {"mark": str(marks["EndWorker"])}, context)
        lost, result = await poison.result(timeout=90), await neighbour.result(timeout=60)
        [listed] = await client.history.list(status=ExecutionStatus.LOST)
        [_, moved] = [event for event in await client.history.events_of(poison.id) if event.kind == "requeue"]

    assert result.output == "awake"
    assert (lost.error_code, listed.id, listed.attempt) == (ErrorCode.LOST, poison.id, 3)
    assert "All 3 attempts are used up" in (lost.error or "")
    assert moved.detail["lane"] == "process, to run alone"
    assert len(marks["EndWorker"].read_text().splitlines()) == 3


async def test_the_command_line_retries_and_shows_each_attempt(
    fleet: Fleet, context: ExecutionContext, tmp_path: Path
) -> None:
    run = await cli(fleet, "run", "Flaky", f"mark={tmp_path / 'mark'}", "--retry", "2", "--retry-delay", "0.1")
    harmful = await cli(fleet, "run", "FlakyOrder", f"mark={tmp_path / 'order'}", "--retry", "2")
    async with ExecutorClient(fleet.settings) as client:
        [record] = await client.history.list(tool="Flaky", limit=1)
    shown = await cli(fleet, "show", record.id)

    assert run.stdout.strip() == "start 3", run.stderr
    assert "Not retried: FlakyOrder is not idempotent" in harmful.stderr
    assert "start 1 failed" in shown.stdout
    assert "start 2 failed" in shown.stdout


async def cli(fleet: Fleet, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own."""
    environment = {**fleet.environment(), "COLUMNS": "200"}
    return await asyncio.to_thread(warm_worker().run, ["forge_tools.cli", *words], cwd=ROOT, env=environment)
