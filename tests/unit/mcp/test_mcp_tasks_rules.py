"""Who may ask what about tasks, without a worker: calls wait until they are cancelled."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, TextContent

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.mcp.calls import LONG_QUEUE, Offer
from forge_tools.mcp.server import ToolServer
from forge_tools.storage import open_store
from tests.contract.calls import claimed, ended, finish_one, scope
from tests.mcp_tasks_client import TasksExtension, ask
from tests.migrated import migrated
from tests.unit.client.conftest import ECHO, NOWHERE, publish

SOON = Offer(task_after=0.05, background_tools=True)
HELLO = {"message": "hello"}


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[ExecutorClient]:
    """A client of workers of which there are none."""
    settings = Settings.load(home=tmp_path, broker_url=NOWHERE, database_url=f"sqlite:///{tmp_path / 'forge.db'}")
    migrated(settings.database)
    await publish(settings, ECHO)
    async with ExecutorClient(settings) as client:
        yield client


async def made(agent: Client) -> str:
    """Call Echo and return the id of the task that it became."""
    created: Any = await agent.session.call_tool("Echo", HELLO, allow_claimed=True)
    assert created.status == "working"
    return str(created.task_id)


async def test_a_call_that_lasts_becomes_a_task_which_can_be_cancelled(workers: ExecutorClient) -> None:
    async with Client(ToolServer(workers, SOON), extensions=[TasksExtension()]) as agent:
        id_ = await made(agent)
        waiting = await ask(agent.session, "tasks/get", id_)
        acknowledged = await ask(agent.session, "tasks/cancel", id_)
        ended = await ask(agent.session, "tasks/get", id_)
        again = await ask(agent.session, "tasks/cancel", id_)

    assert (waiting["taskId"], waiting["status"], waiting["ttlMs"]) == (id_, "working", None)
    assert "queue" in waiting["statusMessage"]
    assert set(acknowledged) == set(again) == {"resultType"} | (set(acknowledged) & {"_meta"})
    assert ended["status"] == "cancelled"
    assert "result" not in ended


async def test_refused_arguments_are_an_answer_and_no_task(workers: ExecutorClient) -> None:
    async with Client(ToolServer(workers, SOON), extensions=[TasksExtension()]) as agent:
        result = await agent.call_tool("Echo", {})

    assert result.is_error
    assert "message" in result.content[0].text


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/update"])
async def test_clients_that_do_not_declare_tasks_may_not_ask_for_them(workers: ExecutorClient, method: str) -> None:
    async with Client(ToolServer(workers, SOON)) as agent:
        with pytest.raises(MCPError) as caught:
            await ask(agent.session, method, "0" * 36)

    assert caught.value.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert "io.modelcontextprotocol/tasks" in str(caught.value.error.data)


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_what_the_extension_has_no_longer_is_not_served(workers: ExecutorClient, method: str) -> None:
    async with Client(ToolServer(workers, SOON), extensions=[TasksExtension()]) as agent:
        with pytest.raises(MCPError) as caught:
            await ask(agent.session, method, "0" * 36)

    assert caught.value.error.code == METHOD_NOT_FOUND


@pytest.mark.parametrize("id_", ["", "x", "%", "0" * 8, "0" * 36, "01a20000-0000-7000-8000-000000000000", "\x00"])
async def test_an_invalid_id_is_reported(workers: ExecutorClient, id_: str) -> None:
    async with Client(ToolServer(workers, SOON), extensions=[TasksExtension()]) as agent:
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError, match="Unknown task") as caught:
                await ask(agent.session, method, id_)
            assert caught.value.error.code == INVALID_PARAMS


async def test_executions_of_others_are_not_shown(workers: ExecutorClient) -> None:
    handle = await workers.submit("Echo", HELLO, None)
    async with Client(ToolServer(workers, SOON), extensions=[TasksExtension()]) as agent:
        with pytest.raises(MCPError, match="Unknown task"):
            await ask(agent.session, "tasks/cancel", handle.id)
        polled = await agent.call_tool("poll_execution", {"execution_id": handle.id})

    assert polled.is_error
    assert await handle.status() == "queued"


async def test_answers_to_questions_that_nobody_asked_are_acknowledged(workers: ExecutorClient) -> None:
    async with Client(ToolServer(workers, SOON), extensions=[TasksExtension()]) as agent:
        assert (await ask(agent.session, "tasks/update", await made(agent)))["resultType"] == "complete"


async def test_a_task_whose_output_breaks_the_promise_of_a_schema_is_an_error(
    workers: ExecutorClient, tmp_path: Path
) -> None:
    promising = ECHO.model_copy(update={"output_schema": {"type": "object", "required": ["said"]}})
    settings = Settings.load(home=tmp_path, broker_url=NOWHERE, database_url=f"sqlite:///{tmp_path / 'forge.db'}")
    await publish(settings, promising)
    await workers.catalogue.refresh()
    async with Client(ToolServer(workers, SOON), extensions=[TasksExtension()]) as agent:
        id_ = await made(agent)
        async with await open_store(settings.database) as store:
            by = scope(queues=(LONG_QUEUE, "default"), tool_keys=("Echo@1",))
            await finish_one(store, ended(await claimed(store, id_, by=by), output='"too long"'))
        told = await ask(agent.session, "tasks/get", id_)

    assert (told["status"], told["result"]["isError"]) == ("completed", True)


async def test_tasks_are_told_of_in_each_era_in_its_own_words(workers: ExecutorClient) -> None:
    server = ToolServer(workers, SOON)
    async with Client(server, mode="legacy") as old, Client(server) as new:
        old_tools, new_tools = (await old.list_tools()).tools, (await new.list_tools()).tools
        told = old.server_capabilities, new.server_capabilities

    assert told[0].tasks is not None
    assert told[0].tasks.cancel is not None
    assert (told[0].extensions, told[1].tasks) == (None, None)
    assert told[1].extensions == {"io.modelcontextprotocol/tasks": {}}
    executions = {tool.name: tool.execution for tool in old_tools}
    assert executions["Echo"] is not None
    assert executions["submit_tool"] is None
    assert all(tool.execution is None for tool in new_tools)


async def test_submitted_calls_wait_where_they_starve_nobody(workers: ExecutorClient) -> None:
    async with Client(ToolServer(workers, SOON), mode="legacy") as agent:
        submitted = await agent.call_tool("submit_tool", {"tool": "Echo", "arguments": HELLO})
        record = await workers.history.get(submitted.structured_content["execution_id"])
        looked = await agent.call_tool("poll_execution", {"execution_id": record.id, "wait_seconds": 0.05})
        cancelled = await agent.call_tool("cancel_execution", {"execution_id": record.id})
        again = await agent.call_tool("cancel_execution", {"execution_id": record.id})

    assert (record.queue, record.agent_id) == (LONG_QUEUE, "mcp/0.1.0")
    assert looked.structured_content["status"] == "queued"
    assert cancelled.structured_content["outcome"] == "cancelled"
    assert again.structured_content["outcome"] == "over"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("submit_tool", {}),
        ("submit_tool", {"tool": 7}),
        ("submit_tool", {"tool": "Echo", "arguments": [1]}),
        ("submit_tool", {"tool": "submit_tool", "arguments": {}}),
        ("submit_tool", {"tool": "Echo", "arguments": {"message": 7}}),
        ("poll_execution", {"execution_id": 7}),
        ("poll_execution", {"execution_id": "0" * 36}),
        ("cancel_execution", {"execution_id": "x" * 36}),
        ("cancel_execution", {}),
    ],
)
async def test_wrong_arguments_of_the_three_tools_are_answered(
    workers: ExecutorClient, tool: str, arguments: dict[str, Any]
) -> None:
    async with Client(ToolServer(workers, SOON), mode="legacy") as agent:
        result = await agent.call_tool(tool, arguments)

    assert result.is_error
    assert isinstance(result.content[0], TextContent)
    assert result.content[0].text.startswith("Error: ")


async def test_a_wait_that_is_not_a_number_is_refused(workers: ExecutorClient) -> None:
    async with Client(ToolServer(workers, SOON), mode="legacy") as agent:
        submitted = await agent.call_tool("submit_tool", {"tool": "Echo", "arguments": HELLO})
        wanted = {**submitted.structured_content, "wait_seconds": "long"}
        assert (await agent.call_tool("poll_execution", wanted)).is_error
