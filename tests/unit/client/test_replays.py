"""Replays as a client without workers makes them, and what it encrypts and shows."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, ForgeError
from forge_tools.model import ExecutionContext, ExecutionStatus, ToolSpec
from forge_tools.model.execution import NewExecution
from forge_tools.secrets.encryption import KeyFolder, key_id
from forge_tools.storage import open_store
from forge_tools.storage.queue.queue import ExecutionQueue
from tests.unit.client.conftest import ECHO, publish
from tests.unit.client.test_linked import refusal
from tests.waiting import reached

CONTEXT = ExecutionContext(working_dir=".", agent_id="ann")


@pytest.fixture
async def client(encrypting_client: ExecutorClient) -> ExecutorClient:
    return encrypting_client


async def test_a_replay_runs_the_stored_arguments_again(client: ExecutorClient) -> None:
    first = await _over(client, "Echo", {"message": "x"})
    again = await client.calls.replay(first, actor="ann@host", reason="it was cancelled")

    record = await again.record()
    assert (record.parameters, record.replay_of, record.agent_id) == ({"message": "x"}, first, "ann")
    assert record.timeout_source == "default"
    kinds = [[event.kind for event in await client.history.events_of(id_)] for id_ in (first, again.id)]
    assert kinds == [["cancel", "replayed"], ["replay"]]


async def test_a_replay_takes_other_values_and_may_be_a_dry_run(client: ExecutorClient) -> None:
    first = await _over(client, "Echo", {"message": "x"})
    again = await client.calls.replay(first[:23], {"message": "y"}, dry_run=True, queue="background")

    record = await again.record()
    assert (record.parameters, record.context["dry_run"], record.queue) == ({"message": "y"}, True, "background")
    assert (await client.history.events_of(again.id))[0].detail == {"of": first, "dry_run": True}


async def test_a_replay_wants_what_is_secret_again_by_name(client: ExecutorClient) -> None:
    first = await _over(client, "Login", {"user": "ann", "pin": "123456"})

    with pytest.raises(ForgeError, match="pass pin again"):
        await client.calls.replay(first)
    again = await client.calls.replay(first, {"pin": "654321", "who": "bob"})

    assert (await again.record()).parameters == {"user": "bob", "pin": "[redacted]"}


async def test_what_is_not_over_is_replayed_as_a_dry_run_only(client: ExecutorClient) -> None:
    first = await client.submit("Echo", {"message": "x"}, CONTEXT)

    with pytest.raises(ForgeError, match="is queued: running it again now would run it twice"):
        await client.calls.replay(first.id)
    assert (await (await client.calls.replay(first.id, dry_run=True)).record()).context["dry_run"] is True


async def test_a_replay_that_the_tool_of_today_refuses_says_that_it_changed(
    client: ExecutorClient, settings: Settings
) -> None:
    first = await _over(client, "Echo", {"message": "x"})
    renamed = {"version": "2.0.0", "parameters": [{"name": "text", "type": "string", "description": "What."}]}
    await publish(settings, ToolSpec.model_validate(ECHO.model_dump() | renamed))
    await client.catalogue.refresh()

    result = await refusal(await client.calls.replay(first))

    assert "Unknown parameter 'message'" in (result.error or "")
    assert f"Echo is 2.0.0, but was 1.0.0 when execution {first} was made" in (result.error or "")
    assert result.metadata["replay_of"] == first
    assert (await (await client.calls.replay(first, {"text": "x", "message": None})).record()).replay_of == first


async def test_a_replay_of_a_tool_that_is_gone_is_refused(client: ExecutorClient) -> None:
    first = await _over(client, "Echo", {"message": "x"})
    await client.catalogue.disable("Echo")

    assert (await refusal(await client.calls.replay(first))).error_code == ErrorCode.TOOL_DISABLED


async def test_a_rejected_call_can_be_replayed_with_what_it_lacked(client: ExecutorClient) -> None:
    rejected = await client.submit("Echo", {}, CONTEXT.model_copy(update={"timeout": 7.0}))

    again = await client.calls.replay(rejected.id, {"message": "x"})

    record = await again.record()
    assert (record.status, record.timeout, record.timeout_source) == (ExecutionStatus.QUEUED, 7.0, "call")


async def test_a_replay_is_cancelled_with_whoever_began_it(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _interrupted_replay(client, monkeypatch)

    async def is_cancelled() -> bool:
        return [one.status for one in await client.history.list()] == [ExecutionStatus.CANCELLED] * 2

    await reached(is_cancelled)


async def test_a_detached_replay_goes_on_without_whoever_began_it(
    client: ExecutorClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _interrupted_replay(client, monkeypatch, detached=True)
    await client.close()

    async with ExecutorClient(settings) as other:
        rows = await other.history.list()
    assert [one.status for one in rows] == [ExecutionStatus.QUEUED, ExecutionStatus.CANCELLED]


async def test_a_replay_hears_that_its_tool_was_switched_off_elsewhere(
    client: ExecutorClient, settings: Settings
) -> None:
    first = await _over(client, "Echo", {"message": "x"})
    async with ExecutorClient(settings) as other:
        await other.catalogue.disable("Echo")
    client.catalogue.read_at = 0.0

    assert (await refusal(await client.calls.replay(first))).error_code == ErrorCode.TOOL_DISABLED


async def test_a_client_that_was_idle_encrypts_with_the_key_of_today(
    client: ExecutorClient, settings: Settings
) -> None:
    await client.submit("Login", {"user": "ann", "pin": "123456"}, CONTEXT)
    async with await open_store(settings.database) as store:
        [old] = await store.encryption_keys.list()
        public = KeyFolder(settings.keys_folder).new()
        await store.encryption_keys.publish(key_id(public), public)
        await store.encryption_keys.retire([old.id])

        client.catalogue.read_at -= 61.0
        await client.submit("Login", {"user": "ann", "pin": "123456"}, CONTEXT)

        assert {key.id: key.live for key in await store.encryption_keys.list()} == {old.id: 1, key_id(public): 1}


async def test_a_clients_own_list_shows_no_text_of_a_call_that_no_tool_knows(client: ExecutorClient) -> None:
    await client.execute("Lgoin", CONTEXT, pin="s3cret-pin", times=3)

    assert client.get_executions()[-1].parameters == {"pin": "[redacted]", "times": 3}


async def _over(client: ExecutorClient, tool: str, parameters: dict[str, Any]) -> str:
    handle = await client.submit(tool, parameters, CONTEXT)
    assert await handle.cancel() == "cancelled"
    return handle.id


async def _interrupted_replay(client: ExecutorClient, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Replay a cancelled call, and cancel whoever does so while the replay is being stored."""
    first = await _over(client, "Echo", {"message": "x"})
    store, began, go_on = ExecutionQueue.submit_many, asyncio.Event(), asyncio.Event()

    async def slow(self: ExecutionQueue, rows: Sequence[NewExecution]) -> Any:
        began.set()
        await go_on.wait()
        return await store(self, rows)

    monkeypatch.setattr(ExecutionQueue, "submit_many", slow)
    replaying = asyncio.ensure_future(client.calls.replay(first, **options))
    await began.wait()
    replaying.cancel()
    go_on.set()
    with suppress(asyncio.CancelledError):
        await replaying
