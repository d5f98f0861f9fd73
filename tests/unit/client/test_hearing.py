"""A call that is heard while it is awaited ends as any other: refused, cancelled, going on where it is detached."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forge_tools.client import ExecutorClient, SyncExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, StorageError
from forge_tools.model import ExecutionContext, ExecutionRecord, ExecutionStatus
from tests.waiting import reached, wait_until

CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient.connect(settings) as client:
        yield client


def calling(client: ExecutorClient, **options: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(client.call("Echo", {"message": "x"}, CONTEXT, on_report=print, **options))


async def only_row(client: ExecutorClient, status: ExecutionStatus) -> ExecutionRecord:
    rows = await reached(lambda: client.history.list(status=status.value), 30)
    return rows[0]


async def test_a_refused_call_is_a_failed_result_on_record(client: ExecutorClient) -> None:
    result = await client.call("Nope", {}, CONTEXT, on_report=print)

    assert (result.success, result.error_code) == (False, ErrorCode.TOOL_NOT_FOUND)
    assert (await client.history.get(result.metadata["execution_id"])).status == ExecutionStatus.REJECTED
    assert [one.tool_name for one in client.get_executions()] == ["Nope"]


async def test_who_stops_listening_cancels_the_call(client: ExecutorClient) -> None:
    call = calling(client)
    await only_row(client, ExecutionStatus.QUEUED)

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    await only_row(client, ExecutionStatus.CANCELLED)


async def test_who_stops_waiting_for_what_cannot_be_followed_cancels_it_too(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(position: object) -> None:
        raise StorageError("What it told cannot be read.")

    async def wait(execution_id: str, *, is_known: bool = False) -> Any:
        waits.append(execution_id)
        return await waiting(execution_id)

    waits: list[str] = []
    waiting = client.calls.wait
    monkeypatch.setattr(client.calls, "poll", unreadable)
    monkeypatch.setattr(client.calls, "wait", wait)
    call = calling(client)
    await reached(lambda: waits)  # for the result alone: following fails before it waits

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    await only_row(client, ExecutionStatus.CANCELLED)


@pytest.mark.parametrize("options", [{"detached": True}, {"idempotency_key": "build-17"}])
async def test_a_detached_or_keyed_call_goes_on_without_its_listener(
    client: ExecutorClient, settings: Settings, options: dict[str, Any]
) -> None:
    call = calling(client, **options)
    row = await only_row(client, ExecutionStatus.QUEUED)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.close()

    async with ExecutorClient(settings) as other:
        assert (await other.history.get(row.id)).status == ExecutionStatus.QUEUED


async def test_a_client_that_closes_says_that_the_call_goes_on(settings: Settings) -> None:
    client = ExecutorClient(settings)
    await client.open()
    heard, plain = calling(client), asyncio.create_task(client.execute("Echo", CONTEXT, message="x"))
    rows = await reached(client.history.list, 30, when=lambda rows: len(rows) >= 2)

    await client.close()

    async with asyncio.timeout(30):
        results = await asyncio.gather(heard, plain)
    assert {result.metadata["execution_id"] for result in results} == {row.id for row in rows}
    for result in results:
        where = f"before execution {result.metadata['execution_id']} ended. It keeps running; attach to it"
        assert (result.success, where in (result.error or "")) == (False, True)


def test_an_interrupt_of_a_listening_thread_cancels_its_call(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        """Where the thread waits for reports when Ctrl-C comes."""

        put = staticmethod(lambda report: None)

        def __class_getitem__(cls, _: object) -> type["Interrupted"]:
            return cls

        def get(self) -> None:
            wait_until(lambda: bool(face.history.list()), 10, "the call is stored")
            raise KeyboardInterrupt

    monkeypatch.setattr("forge_tools.client.sync.SimpleQueue", Interrupted)
    with SyncExecutorClient(settings) as face:
        with pytest.raises(KeyboardInterrupt):
            face.call("Echo", {"message": "x"}, CONTEXT, on_report=print)
        wait_until(lambda: bool(face.history.list(status="cancelled")), 10, "the call is cancelled")
