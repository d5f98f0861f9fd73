"""`forge-tools mcp` over a fleet of real workers, for clients of the official SDK and for one that writes lines itself."""

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    ResourceLink,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from forge_tools.client import ExecutorClient
from forge_tools.mcp.tasks import EXTENSION
from forge_tools.model import ExecutionRecord, ExecutionStatus, ToolCategory, ToolSpec, new_id
from forge_tools.storage import open_store
from tests.fleet import Fleet
from tests.mcp_process import McpEndpoint, McpProcess, forked, parameters
from tests.mcp_tasks_client import TasksExtension
from tests.waiting import wait_until

ERAS: list[ConnectMode] = ["legacy", "auto"]
SECONDS = {"seconds": 60}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[Fleet]:
    """One worker a lane: what depends on the database is tested on each elsewhere."""
    folder = tmp_path_factory.mktemp("fleet")
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=1.0)
    fleet.start("async", concurrency=50)
    fleet.start("process")
    yield fleet
    fleet.stop()


@pytest.fixture
def raw(fleet: Fleet) -> Iterator[McpProcess]:
    """A server, greeted in the protocol of 2025-11-25."""
    server = McpProcess(fleet.environment(), fleet.folder)
    yield server.greet()
    server.stop()


@pytest.fixture(scope="module")
def endpoint(fleet: Fleet) -> Iterator[McpEndpoint]:
    server = McpEndpoint(fleet.environment(), fleet.folder)
    yield server
    assert server.stop() == 0, server.errors()


def text(result: Any) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def newest(client: ExecutorClient, tool: str) -> ExecutionRecord:
    return (await client.history.list(tool=tool, limit=1))[0]


async def running(client: ExecutorClient, after: int) -> ExecutionRecord:
    """The newest Sleep once it runs, of more than `after` of them."""
    async with asyncio.timeout(60):
        while True:
            found = await client.history.list(tool="Sleep", limit=1000)
            if len(found) > after and found[0].status is ExecutionStatus.RUNNING:
                return found[0]
            await asyncio.sleep(0.02)


async def count(client: ExecutorClient) -> int:
    return len(await client.history.list(tool="Sleep", limit=1000))


async def end_of(client: ExecutorClient, record: ExecutionRecord) -> ExecutionStatus:
    await client.calls.attach(record.id).result(60)
    return await client.calls.attach(record.id).status()


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_runs_on_a_worker_in_the_name_of_the_client(
    fleet: Fleet, client: ExecutorClient, era: ConnectMode
) -> None:
    server = parameters(fleet.environment(), "--categories", "other", "--session-id", "desk")
    async with Client(server, mode=era) as agent:
        names = [tool.name for tool in (await agent.list_tools()).tools]
        result = await agent.call_tool("EchoInProcess", {"message": "hello"})

    record = await newest(client, "EchoInProcess")
    assert text(result) == "hello"
    assert "Echo" in names
    assert "Bash" not in names
    assert (record.session_id, record.agent_id) == ("desk", "mcp/0.1.0")


@pytest.mark.parametrize("era", ERAS)
async def test_progress_is_told_while_a_call_runs(endpoint: McpEndpoint, era: ConnectMode) -> None:
    told: list[tuple[float, str | None]] = []

    async def note(progress: float, _total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with Client(endpoint.url, mode=era) as agent:
        result = await agent.call_tool("Sleep", {"seconds": 6}, progress_callback=note)

    assert text(result) == "slept 6s"
    assert len(told) >= 2
    assert [one for one, _ in told] == sorted(one for one, _ in told)
    assert "Sleep runs on" in str(told[-1][1])


@pytest.mark.parametrize(("era", "with_progress"), [("legacy", False), ("legacy", True), ("auto", True)])
async def test_a_call_that_the_client_cancels_is_recorded_as_cancelled(
    fleet: Fleet, client: ExecutorClient, era: ConnectMode, with_progress: bool
) -> None:
    async def note(*_: object) -> None: ...

    before = await count(client)
    async with Client(forked(fleet.environment()), mode=era) as agent:
        callback = note if with_progress else None
        calling = asyncio.ensure_future(agent.call_tool("Sleep", SECONDS, progress_callback=callback))
        record = await running(client, before)
        calling.cancel()
        assert await end_of(client, record) is ExecutionStatus.CANCELLED


async def test_the_end_of_input_ends_the_process_and_its_calls(raw: McpProcess, client: ExecutorClient) -> None:
    before = await count(client)
    raw.begin("tools/call", {"name": "Sleep", "arguments": SECONDS})
    record = await running(client, before)
    await asyncio.to_thread(raw.hang_up)

    assert raw.process.returncode == 0, raw.errors()
    assert await end_of(client, record) is ExecutionStatus.CANCELLED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_process_and_its_calls(
    raw: McpProcess, client: ExecutorClient, number: signal.Signals
) -> None:
    before = await count(client)
    raw.begin("tools/call", {"name": "Sleep", "arguments": SECONDS})
    record = await running(client, before)
    raw.process.send_signal(number)

    assert await asyncio.to_thread(raw.process.wait, 60) == 0, raw.errors()
    assert await end_of(client, record) is ExecutionStatus.CANCELLED
    assert "Traceback" not in raw.errors()


async def test_a_long_call_becomes_a_task_for_clients_of_the_later_protocol(fleet: Fleet) -> None:
    tasks = TasksExtension()
    async with Client(forked(fleet.environment(), "--task-after", "30"), extensions=[tasks]) as agent:
        brief = await agent.call_tool("Echo", {"message": "at once"})
    assert tasks.seen == []
    async with Client(forked(fleet.environment(), "--task-after", "0.3"), extensions=[tasks]) as agent:
        long = await agent.call_tool("Sleep", {"seconds": 5})

    assert (text(brief), text(long)) == ("at once", "slept 5s")
    assert [tasks.seen[0]["status"], tasks.seen[-1]["status"]] == ["working", "completed"]


async def test_clients_without_tasks_submit_look_and_cancel(fleet: Fleet) -> None:
    async with Client(forked(fleet.environment(), "--background-tools"), mode="legacy") as agent:
        made = await agent.call_tool("submit_tool", {"tool": "Sleep", "arguments": {"seconds": 0.5}})
        id_ = made.structured_content["execution_id"]
        done = await agent.call_tool("poll_execution", {"execution_id": id_, "wait_seconds": 20})
        other = (await agent.call_tool("submit_tool", {"tool": "Sleep", "arguments": SECONDS})).structured_content
        ended = await agent.call_tool("cancel_execution", {"execution_id": other["execution_id"]})
        seen = await agent.call_tool("poll_execution", {"execution_id": other["execution_id"], "wait_seconds": 20})
        wrong = [
            await agent.call_tool("submit_tool", {"tool": "NoSuch"}),
            await agent.call_tool("submit_tool", {"tool": "Echo", "arguments": {}}),
            await agent.call_tool("poll_execution", {"execution_id": "x"}),
            await agent.call_tool("poll_execution", {}),
        ]

    assert text(done) == "slept 0.5s"
    assert ended.structured_content["outcome"] in {"cancelled", "requested"}
    assert seen.is_error
    assert all(result.is_error for result in wrong)


def test_nothing_but_json_rpc_is_on_the_wire_whatever_is_sent(raw: McpProcess) -> None:
    raw.write(b"not json\n" + b"x" * 50_000_000 + b"\n[]\n{}\n")
    codes = [raw.read()["error"]["code"] for _ in range(4)]

    assert codes == [-32700, -32600, -32600, -32600]
    assert raw.call("Echo", message="still here")["content"][0]["text"] == "still here"
    assert raw.hang_up() == []


@pytest.mark.parametrize("era", ERAS)
async def test_what_was_too_long_is_a_resource_of_its_session(
    endpoint: McpEndpoint, era: ConnectMode, fleet: Fleet
) -> None:
    async with Client(endpoint.url, mode=era) as agent:
        result = await agent.call_tool("Bash", {"command": "seq 1 60000"})
        link = next(block for block in result.content if isinstance(block, ResourceLink))
        whole = (await agent.read_resource(link.uri)).contents[0]
        page = (await agent.read_resource(f"{link.uri}?offset=30001&limit=2")).contents[0]
        with pytest.raises(MCPError, match="Resource not found"):
            await agent.read_resource("artifact://" + "0" * 32)
        with pytest.raises(MCPError, match="Resource not found"):
            await agent.read_resource("file:///etc/passwd")
        ref = ResourceTemplateReference(uri="artifact://{id}")
        completed = (await agent.complete(ref, {"name": "id", "value": ""})).completion.values
        assert completed == ([link.uri.removeprefix("artifact://")] if era == "legacy" else []), (
            "others share that session"
        )
    async with Client(forked(fleet.environment())) as stranger:
        with pytest.raises(MCPError, match="Resource not found"):
            await stranger.read_resource(link.uri)
        with pytest.raises(MCPError, match="Resource not found"):
            await stranger.read_resource(f"{link.uri}?offset=30001")

    assert isinstance(page, TextResourceContents)
    assert page.text == "30001\n30002\n"
    assert page.meta is not None
    assert page.meta["forge-tools/next"] == f"{link.uri}?offset=30003&limit=2"
    assert isinstance(whole, TextResourceContents)
    assert whole.text.splitlines() == [str(number) for number in range(1, 60_001)]


async def test_two_clients_over_http_have_sessions_of_their_own(endpoint: McpEndpoint, client: ExecutorClient) -> None:
    async with Client(endpoint.url, mode="legacy") as one, Client(endpoint.url, mode="legacy") as two:
        results = await asyncio.gather(
            one.call_tool("Echo", {"message": "one"}), two.call_tool("Echo", {"message": "two"})
        )
    records = await client.history.list(tool="Echo", limit=2)

    assert [text(result) for result in results] == ["one", "two"]
    assert len({record.session_id for record in records}) == 2
    assert all(str(record.session_id).startswith("mcp-") for record in records)


async def test_the_later_protocol_is_served_over_http(endpoint: McpEndpoint) -> None:
    tasks = TasksExtension()
    async with Client(endpoint.url, extensions=[tasks]) as agent:
        assert agent.protocol_version == "2026-07-28"
        assert text(await agent.call_tool("Echo", {"message": "hello"})) == "hello"


async def test_a_request_about_a_task_is_refused_where_its_header_names_another(endpoint: McpEndpoint) -> None:
    envelope = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
    }
    params = {"taskId": "0199-mine", "_meta": envelope}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}
    answers = {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            for name in ("0199-mine", "0199-another", None):
                named = {"Mcp-Method": method, **({"Mcp-Name": name} if name else {})}
                answer = await http.post(endpoint.url, json=asked, headers=named)
                answers[method, name] = answer.json()["error"]["code"]

    assert {asked for asked, code in answers.items() if code == HEADER_MISMATCH} == {
        (method, "0199-another") for method in ("tasks/get", "tasks/update", "tasks/cancel")
    }
    assert set(answers.values()) == {HEADER_MISMATCH, INVALID_PARAMS}


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_hangs_up_cancels_its_calls_over_http(
    endpoint: McpEndpoint, client: ExecutorClient, era: ConnectMode
) -> None:
    before = await count(client)
    async with httpx2.AsyncClient(timeout=30) as http:
        agent = Client(streamable_http_client(endpoint.url, http_client=http, terminate_on_close=False), mode=era)
        with anyio.CancelScope() as scope:
            async with agent, anyio.create_task_group() as group:
                group.start_soon(agent.call_tool, "Sleep", SECONDS)
                record = await running(client, before)
                scope.cancel()

    assert await end_of(client, record) is ExecutionStatus.CANCELLED


async def test_sigterm_ends_an_endpoint_with_its_calls(fleet: Fleet, client: ExecutorClient) -> None:
    server = McpEndpoint(fleet.environment(), fleet.folder)
    before = await count(client)

    async def call() -> None:
        async with Client(server.url, mode="legacy") as agent:
            await agent.call_tool("Sleep", SECONDS)

    calling = asyncio.ensure_future(call())
    record = await running(client, before)
    started = time.monotonic()
    assert await asyncio.to_thread(server.stop) == 0, server.errors()
    assert time.monotonic() - started < 30
    assert await end_of(client, record) is ExecutionStatus.CANCELLED
    with pytest.raises((MCPError, ExceptionGroup)):
        await asyncio.wait_for(calling, 60)


async def test_the_token_opens_an_endpoint(fleet: Fleet) -> None:
    server = McpEndpoint(fleet.environment(mcp_token="s3cret"), fleet.folder)
    try:
        async with httpx2.AsyncClient() as stranger:
            assert (await stranger.post(server.url, json={})).status_code == 401
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer s3cret"}) as http,
            Client(streamable_http_client(server.url, http_client=http)) as agent,
        ):
            assert text(await agent.call_tool("Echo", {"message": "hello"})) == "hello"
    finally:
        server.stop()


async def test_pages_of_elsewhere_are_kept_out(endpoint: McpEndpoint) -> None:
    async with httpx2.AsyncClient() as page:
        rebound = await page.post(endpoint.url, json={}, headers={"Host": "evil.example"})
        foreign = await page.post(endpoint.url, json={}, headers={"Origin": "https://evil.example"})
        large = await page.post(endpoint.url, content=b"x" * 21_000_000, headers={"Content-Type": "application/json"})

    assert (rebound.status_code, foreign.status_code, large.status_code) == (421, 403, 413)


async def test_tools_that_come_are_announced_over_http(fleet: Fleet) -> None:
    server = McpEndpoint(fleet.environment(), fleet.folder, "--refresh", "0.2")
    heard = asyncio.Event()

    async def note(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            heard.set()

    try:
        async with Client(server.url, mode="legacy", message_handler=note) as agent:
            await agent.list_tools()
            await _publish(fleet, "NewerTool")
            await asyncio.wait_for(heard.wait(), 60)
    finally:
        server.stop()


def test_tools_that_come_are_announced(fleet: Fleet) -> None:
    server = McpProcess(fleet.environment(), fleet.folder, "--refresh", "0.2")
    try:
        server.greet()
        before = {tool["name"] for tool in server.ask("tools/list")["tools"]}
        assert "NewTool" not in before
        asyncio.run(_publish(fleet, "NewTool"))
        wait_until(lambda: server.read().get("method") == "notifications/tools/list_changed")
        assert "NewTool" in {tool["name"] for tool in server.ask("tools/list")["tools"]}
    finally:
        server.stop()


async def _publish(fleet: Fleet, name: str) -> None:
    async with await open_store(fleet.settings.database) as store:
        await store.catalogue.publish([ToolSpec(name=name, description="New.", category=ToolCategory.OTHER)], new_id())
