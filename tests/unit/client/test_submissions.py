"""Calls on their way out: many leave in parts, and the first part does not wait for the last call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from forge_tools.broker.redis import RedisBroker
from forge_tools.client import Call, ExecutorClient, submissions
from forge_tools.client.catalogue import Snapshot
from forge_tools.client.intake import Intake, Rejected
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, ForgeError, SubmitOutcomeUnknownError
from forge_tools.model import ExecutionContext, ExecutionStatus
from forge_tools.model.execution import NewExecution
from forge_tools.model.overview import ServerState
from forge_tools.storage import open_store
from forge_tools.storage.directory import Directories, Directory
from forge_tools.storage.queue.queue import ExecutionQueue
from tests.contract.calls import instance
from tests.unit.client.conftest import ECHO

CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
async def client(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ExecutorClient]:
    monkeypatch.setattr(submissions, "PART", 10)
    async with ExecutorClient.connect(settings) as client:
        yield client


async def test_the_first_calls_of_a_burst_are_on_their_way_before_the_last_is_prepared(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, submit_many = Intake.prepare, ExecutionQueue.submit_many
    prepared: list[Call] = []
    parts: list[tuple[int, int]] = []

    def note(intake: Intake, call: Call, snapshot: Snapshot) -> NewExecution | Rejected:
        prepared.append(call)
        return prepare(intake, call, snapshot)

    async def submit(queue: ExecutionQueue, accepted: Sequence[NewExecution]) -> list[ForgeError | None]:
        parts.append((len(accepted), len(prepared)))
        return await submit_many(queue, accepted)

    monkeypatch.setattr(Intake, "prepare", note)
    monkeypatch.setattr(ExecutionQueue, "submit_many", submit)
    handles = await asyncio.gather(*(client.submit("Echo", {"message": str(n)}, CONTEXT) for n in range(35)))

    assert [await handle.status() for handle in handles] == [ExecutionStatus.QUEUED] * 35
    assert [size for size, _ in parts] == [10, 10, 10, 5]
    assert parts[0][1] < 35


async def test_a_burst_waits_while_enough_of_it_is_on_its_way(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "MOST_UNDER_WAY", 20)
    submit_many, begun, under_way = ExecutionQueue.submit_many, 0, []

    async def submit(queue: ExecutionQueue, accepted: Sequence[NewExecution]) -> list[ForgeError | None]:
        nonlocal begun
        begun += len(accepted)
        for _ in range(5):  # turns of the loop in which more calls could come
            await asyncio.sleep(0)
        under_way.append(begun)
        answers = await submit_many(queue, accepted)
        begun -= len(accepted)
        return answers

    monkeypatch.setattr(ExecutionQueue, "submit_many", submit)
    async with asyncio.timeout(60):
        handles = await asyncio.gather(*(client.submit("Echo", {"message": str(n)}, CONTEXT) for n in range(95)))

    assert [await handle.status() for handle in handles] == [ExecutionStatus.QUEUED] * 95
    assert max(under_way) == 20


async def test_calls_that_wait_for_their_turn_go_on_when_those_before_them_are_rejected(client: ExecutorClient) -> None:
    calls = [client.submit("Echo", {"message": "x"}, CONTEXT) for _ in range(10)]
    calls += [client.submit("NoSuchTool", context=CONTEXT) for _ in range(10)]
    calls += [client.submit("Echo", {"message": "y"}, CONTEXT) for _ in range(10)]

    async with asyncio.timeout(20):
        handles = await asyncio.gather(*calls)

    assert [await handle.status() for handle in handles[20:]] == [ExecutionStatus.QUEUED] * 10


async def test_a_call_that_is_cancelled_while_it_waits_for_its_turn_holds_up_nobody(client: ExecutorClient) -> None:
    tasks = [asyncio.ensure_future(client.submit("Echo", {"message": str(n)}, CONTEXT)) for n in range(35)]
    await asyncio.sleep(0)
    for task in tasks[12:25]:
        task.cancel()

    async with asyncio.timeout(20):
        ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert [isinstance(end, asyncio.CancelledError) for end in ended] == [12 <= n < 25 for n in range(35)]
    assert len(await client.history.list(limit=100)) == 22


def failing_once(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """What has a defect that the first who use it meet."""
    used: list[object] = []

    async def fail_once(*args: Any, **more: Any) -> Any:
        used.append(args)
        if len(used) == 1:
            raise ZeroDivisionError("division by zero")
        return await work(*args, **more)

    return fail_once


async def test_a_defect_in_storing_ends_the_calls_of_its_part_and_no_others(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ExecutionQueue, "submit_many", failing_once(ExecutionQueue.submit_many))
    calls = [client.submit("Echo", {"message": str(n)}, CONTEXT) for n in range(25)]
    async with asyncio.timeout(20):
        first, awaited, *rest = await asyncio.gather(
            calls[0], client.execute("Echo", CONTEXT, message="awaited"), *calls[1:], return_exceptions=True
        )
    handles = [first, *rest]

    assert (awaited.error_code, "ZeroDivisionError: division by zero" in awaited.error) == (
        ErrorCode.OUTCOME_UNKNOWN,
        True,
    )
    assert awaited.metadata["execution_id"] in awaited.error
    assert [type(handle) for handle in handles[:9]] == [SubmitOutcomeUnknownError] * 9
    assert [await handle.status() for handle in handles[9:]] == [ExecutionStatus.QUEUED] * 16
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


@pytest.mark.parametrize("many", [False, True])
async def test_a_defect_in_publishing_costs_the_messages_and_no_call(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    def broken(broker: RedisBroker, message: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RedisBroker, "publish", broken)
    call = Call("Echo", {"message": "x"}, CONTEXT)
    async with asyncio.timeout(20):
        [handle] = (
            await client.calls.submit_many([call]) if many else [await client.submit("Echo", {"message": "x"}, CONTEXT)]
        )

    assert await handle.status() == ExecutionStatus.QUEUED


async def test_a_defect_in_storing_is_told_to_many_and_to_a_keyed_call_too(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call("Echo", {"message": "x"}, CONTEXT)
    store = ExecutionQueue.submit_many
    monkeypatch.setattr(ExecutionQueue, "submit_many", failing_once(store))
    [error] = await client.calls.submit_many([call])
    monkeypatch.setattr(ExecutionQueue, "submit_many", failing_once(store))
    result = await client.call("Echo", {"message": "x"}, CONTEXT, idempotency_key="build-17")

    assert isinstance(error, SubmitOutcomeUnknownError)
    assert (result.error_code, len(result.metadata["execution_id"])) == (ErrorCode.OUTCOME_UNKNOWN, 36)


async def test_a_client_whose_storing_is_cut_off_tells_its_calls(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: asyncio.Future[asyncio.Task[Any] | None] = asyncio.get_running_loop().create_future()

    async def hang(*_: object) -> None:
        begun.set_result(asyncio.current_task())
        await asyncio.Event().wait()

    monkeypatch.setattr(ExecutionQueue, "submit_many", hang)
    other = asyncio.ensure_future(client.submit("Echo", {"message": "y"}, CONTEXT))
    call = asyncio.ensure_future(client.execute("Echo", CONTEXT, message="x"))
    storing = await begun
    assert storing is not None
    storing.cancel()

    async with asyncio.timeout(20):
        assert (await call).error_code == ErrorCode.OUTCOME_UNKNOWN
        with pytest.raises(SubmitOutcomeUnknownError):
            await other


async def test_who_gives_up_closing_cuts_off_no_call(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ExecutorClient(settings)
    await client.open()
    await client.submit(
        "Echo", {"message": "x"}, CONTEXT, idempotency_key="build-16"
    )  # which makes the secret of all keys
    submit_many, go_on = ExecutionQueue.submit_many, asyncio.Event()

    async def slowly(queue: ExecutionQueue, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
        await go_on.wait()
        return await submit_many(queue, rows)

    monkeypatch.setattr(ExecutionQueue, "submit_many", slowly)
    submitting = [asyncio.ensure_future(client.submit("Echo", {"message": "x"}, CONTEXT))]
    submitting += [asyncio.ensure_future(client.call("Echo", {"message": "x"}, CONTEXT, idempotency_key="build-17"))]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.close(), 0.1)
    go_on.set()
    async with asyncio.timeout(20):
        handle = await submitting[0]
        assert await handle.status() == ExecutionStatus.QUEUED
        await client.close()
        assert "ended. It keeps running" in (await submitting[1]).error


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_tool_that_nobody_hosts_any_more_is_warned_about_once_although_its_queue_is_served(
    settings: Settings, caplog: pytest.LogCaptureFixture, *, is_back: bool
) -> None:
    gone = ECHO.model_copy(update={"name": "mcp__web__gone"})
    failing = ServerState(server="web", prefix="mcp__web__", status="failing", since=datetime.now(UTC), why="no file")
    async with await open_store(settings.database) as store, ExecutorClient.connect(settings) as client:
        await store.workers.register(instance(servers=(failing,)))
        await store.catalogue.publish([ECHO], "instance-1")
        await store.catalogue.publish([gone], "of yesterday")
        await client.catalogue.refresh()
        if is_back:
            await store.catalogue.publish([gone], "instance-1")
        for name in ("Echo", gone.name, "Echo", gone.name):
            await client.submit(name, {"message": "x"}, CONTEXT)

    warned = [record.getMessage() for record in caplog.records if "No live worker" in record.getMessage()]
    assert len(warned) == (0 if is_back else 1)
    for sentence in warned:
        assert sentence.startswith(
            "No live worker of queue default in lane async hosts mcp__web__gone@1; its calls wait until one does, or expire. "
            "The MCP server 'web' on host-1 has been failing since"
        )
        assert sentence.endswith("or hide it from models: forge-tools tools disable mcp__web__gone")


async def test_calls_that_can_be_answered_read_the_directory_no_more_often_than_it_changes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [ECHO.model_copy(update={"name": f"Echo{n}"}) for n in range(5)]
    async with await open_store(settings.database) as store:
        await store.workers.register(instance())
        await store.catalogue.publish([ECHO, *others], "instance-1")
    reads, read = [], Directories.read

    async def counted(directories: Directories, *within: float) -> Directory:
        reads.append(within)
        return await read(directories, *within)

    monkeypatch.setattr(Directories, "read", counted)
    async with ExecutorClient.connect(settings) as client:
        for spec in others:
            await client.submit(spec.name, {"message": "x"}, CONTEXT)

    assert len(reads) == 1
