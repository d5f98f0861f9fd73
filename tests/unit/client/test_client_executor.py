"""The client without any worker: it accepts, rejects, warns, takes back and lets go."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.client import results as results_module
from forge_tools.client.catalogue import Catalogue
from forge_tools.config import Settings
from forge_tools.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    ErrorCode,
    ExecutionNotFoundError,
    ForgeError,
    SchemaVersionError,
)
from forge_tools.model import CallOptions, ExecutionContext, ExecutionStatus, ToolParameter, new_id
from forge_tools.model.execution import NewExecution, is_id
from forge_tools.storage.directory import Directories, Directory
from forge_tools.storage.queue.queue import ExecutionQueue
from forge_tools.storage.queue.sqlite import SqliteHotPath
from tests.unit.client.conftest import ECHO, publish

CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient.connect(settings) as client:
        yield client


async def test_an_accepted_call_is_a_row_before_anything_else(client: ExecutorClient) -> None:
    handle = await client.submit("Echo", {"message": "x"}, CONTEXT)

    assert await handle.status() == ExecutionStatus.QUEUED


async def test_cancelling_a_queued_call_ends_its_wait_at_once(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for interval in ("FIRST_POLL", "SILENCE"):
        monkeypatch.setattr(results_module, interval, 60.0)
    handle = await client.submit("Echo", {"message": "x"}, CONTEXT)
    waiting = asyncio.ensure_future(handle.result())
    await asyncio.sleep(0.1)

    assert await client.calls.cancel(handle.id, "enough") == "cancelled"

    async with asyncio.timeout(30):
        assert (await waiting).error_code == ErrorCode.CANCELLED


async def test_all_calls_that_a_filter_matches_are_cancelled_at_once(client: ExecutorClient) -> None:
    contexts = [ExecutionContext(working_dir=".", session_id=session) for session in ("s", "s", "t")]
    handles = [await client.submit("Echo", {"message": "x"}, context) for context in contexts]

    assert await client.calls.cancel_many("enough", session_id="s") == {one.id: "cancelled" for one in handles[:2]}

    assert "enough" in str((await handles[0].result(timeout=30)).error)
    assert await handles[2].status() is ExecutionStatus.QUEUED
    with pytest.raises(ValueError, match="without one, every call would be cancelled"):
        await client.calls.cancel_many("enough")


async def test_closing_the_client_ends_its_waits_and_the_calls_go_on(settings: Settings) -> None:
    client = ExecutorClient(settings)
    await client.open()
    handle = await client.submit("Echo", {"message": "x"}, CONTEXT)
    waits = [
        asyncio.ensure_future(handle.result()),
        asyncio.ensure_future(client.execute("Echo", CONTEXT, message="y")),
    ]
    await asyncio.sleep(0.1)

    await client.close()

    with pytest.raises(ConfigurationError, match="It keeps running"):
        await waits[0]
    assert "closed" in ((await waits[1]).error or "")
    async with ExecutorClient(settings) as other:
        assert await other.calls.attach(handle.id).status() == ExecutionStatus.QUEUED


async def test_a_client_may_be_closed_twice_and_used_no_more(settings: Settings) -> None:
    client = ExecutorClient(settings)
    await client.open()
    await client.close()
    await client.close()

    with pytest.raises(ConfigurationError, match="not connected"):
        await client.submit("Echo", {"message": "x"}, CONTEXT)
    with pytest.raises(ConfigurationError, match=r"connects once.*ExecutorClient\.connect\(\)"):
        await client.open()


async def test_a_client_that_is_connected_is_not_entered_again_in_this_loop_or_another(settings: Settings) -> None:
    async with ExecutorClient(settings) as client:
        with pytest.raises(ConfigurationError, match="connects once"):
            await client.open()
        with pytest.raises(ConfigurationError, match="connects once"):
            await asyncio.to_thread(asyncio.run, client.open())

        assert (await client.submit("Echo", {"message": "x"}, CONTEXT)).id


@pytest.mark.parametrize(
    "parameters", [["message"], "message", CONTEXT, {1: 2}], ids=["list", "text", "context", "keys that are no names"]
)
async def test_a_wrong_form_is_a_failed_result_that_shows_the_right_one_without_a_row(
    client: ExecutorClient, parameters: Any
) -> None:
    called = await client.call("Echo", parameters, CONTEXT)
    handle = await client.submit("Echo", parameters)
    executed = await client.execute("Echo", {"message": "x"})

    form = "(name, parameters, context=None, options=None)"
    for result, right in (
        (called, f"call{form}"),
        (await handle.result(), f"submit{form}"),
        (executed, "execute(name, context, **parameters)"),
    ):
        assert result.error_code == ErrorCode.INVALID_CALL
        assert (result.error or "").endswith(f". The form is {right}")
    assert is_id(handle.id)
    assert await client.history.list() == []


async def test_parameters_as_keywords_are_told_their_place(client: ExecutorClient) -> None:
    called = await client.call("Echo", message="x", options=CallOptions(timeout=1.0))
    submitted = await (await client.submit("Echo", message="x", delay=1.0)).result()
    for result in (called, submitted):
        assert result.error_code == ErrorCode.INVALID_CALL
        assert "message may be a parameter of the tool; parameters go into the object `parameters`" in str(result.error)


async def test_a_client_may_be_awaited_and_closed(settings: Settings) -> None:
    client = await ExecutorClient.connect(settings)
    try:
        assert client.specs()
    finally:
        await client.close()


async def test_a_call_may_be_due_at_a_time(client: ExecutorClient) -> None:
    when = datetime.now(UTC) + timedelta(hours=1)
    handle = await client.submit("Echo", {"message": "x"}, CONTEXT, when=when)
    assert await handle.status() == ExecutionStatus.QUEUED

    for wrong in ({"when": datetime.fromisoformat("2026-01-01")}, {"when": when, "delay": 1.0}):
        result = await (await client.submit("Echo", {"message": "x"}, CONTEXT, **wrong)).result()
        assert result.error_code == ErrorCode.INVALID_CALL


async def test_a_tool_that_came_a_moment_ago_is_known(client: ExecutorClient, settings: Settings) -> None:
    await publish(settings, ECHO.model_copy(update={"name": "New"}))

    assert await (await client.submit("New", {"message": "x"}, CONTEXT)).status() == ExecutionStatus.QUEUED


async def test_a_tool_whose_parameters_changed_is_learned_again(
    client: ExecutorClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.client.intake.REFRESH_INTERVAL", 0.0)
    loud = ToolParameter(name="loud", type="boolean", description="Shout.", required=False)
    await publish(settings, ECHO.model_copy(update={"parameters": (*ECHO.parameters, loud), "version": "1.1.0"}))

    handle = await client.submit("Echo", {"message": "x", "loud": True}, CONTEXT)

    assert await handle.status() == ExecutionStatus.QUEUED


async def test_many_unknown_tools_at_once_share_their_reads(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = [], Directories.read

    async def counted(directories: Directories, within: float) -> Directory:
        reads.append(1)
        return await read(directories, within)

    monkeypatch.setattr(Directories, "read", counted)

    results = await asyncio.gather(*(client.execute("Nope", CONTEXT) for _ in range(200)))

    assert {result.error_code for result in results} == {ErrorCode.TOOL_NOT_FOUND}
    assert 1 <= len(reads) <= 2


async def test_many_calls_give_one_answer_each_and_in_order(client: ExecutorClient) -> None:
    good, bad = Call("Echo", {"message": "x"}, CONTEXT), Call("Echo", {}, CONTEXT)

    handles = await client.calls.submit_many([good, bad] * 1000)

    statuses = {row.id: row.status for row in await client.history.list(limit=2000)}
    assert [statuses[handle.id] for handle in handles if isinstance(handle, Handle)] == [
        ExecutionStatus.QUEUED,
        ExecutionStatus.REJECTED,
    ] * 1000


async def test_what_is_no_call_is_refused_in_its_place_and_takes_no_handle_of_others_with_it(
    client: ExecutorClient,
) -> None:
    good, pair = Call("Echo", {"message": "x"}, CONTEXT), cast(Call, ("Echo", {"message": "x"}))

    first, refused, last = await client.calls.submit_many([good, pair, good])

    assert isinstance(first, Handle)
    assert isinstance(last, Handle)
    assert str(refused) == "Expected a Call, not tuple. The form is Call(name, parameters)."


async def test_rejections_that_cannot_be_recorded_take_no_accepted_call_with_them(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise DatabaseUnavailableError("The database went away")

    monkeypatch.setattr(ExecutionQueue, "record", fails)

    good, bad = await client.calls.submit_many([Call("Echo", {"message": "x"}, CONTEXT), Call("Nope", {}, CONTEXT)])

    assert isinstance(good, Handle)
    assert isinstance(bad, DatabaseUnavailableError)


class _Slow:
    """Storing that takes its time, as in a busy database; what it stores is not taken back by whoever is cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        submit = SqliteHotPath.submit

        async def slowly(hot: SqliteHotPath, rows: Sequence[NewExecution]) -> list[ForgeError | None]:
            self.began.set()
            await self.go_on.wait()
            return await submit(hot, rows)

        monkeypatch.setattr(SqliteHotPath, "submit", slowly)


@pytest.mark.parametrize(("detached", "status"), [(False, ExecutionStatus.CANCELLED), (True, ExecutionStatus.QUEUED)])
async def test_a_call_cancelled_while_it_is_stored_is_taken_back_unless_detached(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, detached: bool, status: ExecutionStatus
) -> None:
    slow = _Slow(monkeypatch)  # before the client is: its store takes the method when it is opened
    client = await ExecutorClient.connect(settings)
    task = asyncio.ensure_future(client.calls.execute(Call("Echo", {"message": "x"}, CONTEXT, detached=detached)))
    await slow.began.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.go_on.set()
    await client.close()

    async with ExecutorClient.connect(settings) as other:
        assert [record.status for record in await other.history.list()] == [status]


async def test_a_database_that_is_away_is_a_failed_result(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> list[ForgeError | None]:
        return [DatabaseUnavailableError("The database is away")]

    monkeypatch.setattr(ExecutionQueue, "submit_many", fails)

    result = await client.execute("Echo", CONTEXT, message="x")

    assert (result.error_code, result.error) == (ErrorCode.STORAGE_UNAVAILABLE, "The database is away")


async def test_each_queue_that_nobody_serves_is_warned_about_once(
    client: ExecutorClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "forge_tools.client"):
        for queue in ("one", "two", "one", "two"):
            await client.submit("Echo", {"message": "x"}, CONTEXT, queue=queue)
        await client.close()

    warned = [record.getMessage() for record in caplog.records if "No live worker" in record.getMessage()]
    assert sorted(name for line in warned for name in ("queue one", "queue two") if name in line) == [
        "queue one",
        "queue two",
    ], "queues are looked after beside the calls, in any order"


async def test_an_invalid_id_is_not_found(client: ExecutorClient) -> None:
    for unknown in (new_id(), "nonsense"):
        with pytest.raises(ExecutionNotFoundError):
            await client.calls.attach(unknown).result(timeout=5)


async def test_a_prefix_of_an_id_finds_its_execution(client: ExecutorClient) -> None:
    handle = await client.submit("Echo", {"message": "x"}, CONTEXT)
    waiting = asyncio.ensure_future(client.calls.attach(handle.id[:-2]).result(timeout=5))
    await asyncio.sleep(0.05)
    await handle.cancel()

    assert (await waiting).metadata["execution_id"] == handle.id


async def test_a_client_whose_catalogue_cannot_be_read_keeps_no_connection(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Catalogue) -> None:
        raise SchemaVersionError("not this version")

    monkeypatch.setattr(Catalogue, "refresh", fails)
    client, before = ExecutorClient(settings), set(threading.enumerate())

    with pytest.raises(SchemaVersionError):
        await client.open()

    assert set(threading.enumerate()) <= before, "each connection has a thread"


def test_an_invalid_broker_url_is_reported_at_once(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="FORGE_BROKER_URL"):
        ExecutorClient(settings.model_copy(update={"broker_url": "redis://host:port"}))


async def test_this_clients_own_list_can_be_forgotten(client: ExecutorClient) -> None:
    await client.execute("Nope", CONTEXT)
    assert [execution.tool_name for execution in client.get_executions()] == ["Nope"]

    client.clear_executions()

    assert client.get_executions() == []
