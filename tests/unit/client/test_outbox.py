"""Calls on their way out: many leave in parts, and the first part does not wait for the last call."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from forge_tools.client import Call, ExecutorClient, outbox
from forge_tools.client.intake import Accepted, Rejected
from forge_tools.client.snapshot import Snapshot
from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.records import ExecutionContext, ExecutionStatus, NewExecution

CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
async def client(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ExecutorClient]:
    monkeypatch.setattr(outbox, "PART", 10)
    async with ExecutorClient.connect(settings) as client:
        yield client


async def test_the_first_calls_of_a_burst_are_on_their_way_before_the_last_is_prepared(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, submit_many = client._intake.prepare, client._open_store.queue.submit_many
    prepared: list[Call] = []
    parts: list[tuple[int, int]] = []

    def note(call: Call, snapshot: Snapshot) -> Accepted | Rejected:
        prepared.append(call)
        return prepare(call, snapshot)

    async def submit(accepted: Sequence[NewExecution]) -> list[ForgeError | None]:
        parts.append((len(accepted), len(prepared)))
        return await submit_many(accepted)

    monkeypatch.setattr(client._intake, "prepare", note)
    monkeypatch.setattr(client._open_store.queue, "submit_many", submit)
    handles = await asyncio.gather(*(client.submit("Echo", CONTEXT, {"message": str(n)}) for n in range(35)))

    assert [await handle.status() for handle in handles] == [ExecutionStatus.QUEUED] * 35
    assert [size for size, _ in parts] == [10, 10, 10, 5]
    assert parts[0][1] < 35


async def test_calls_that_wait_for_their_turn_go_on_when_those_before_them_are_rejected(client: ExecutorClient) -> None:
    calls = [client.submit("Echo", CONTEXT, {"message": "x"}) for _ in range(10)]
    calls += [client.submit("NoSuchTool", CONTEXT) for _ in range(10)]
    calls += [client.submit("Echo", CONTEXT, {"message": "y"}) for _ in range(10)]

    async with asyncio.timeout(20):
        handles = await asyncio.gather(*calls)

    assert [await handle.status() for handle in handles[20:]] == [ExecutionStatus.QUEUED] * 10


async def test_a_call_that_is_cancelled_while_it_waits_for_its_turn_holds_up_nobody(client: ExecutorClient) -> None:
    tasks = [asyncio.ensure_future(client.submit("Echo", CONTEXT, {"message": str(n)})) for n in range(35)]
    await asyncio.sleep(0)
    for task in tasks[12:25]:
        task.cancel()

    async with asyncio.timeout(20):
        ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert [isinstance(end, asyncio.CancelledError) for end in ended] == [12 <= n < 25 for n in range(35)]
    assert len(await client.history(limit=100)) == 22
