"""What clients of the official SDK see of a server in their own process, in both eras of the protocol."""

import asyncio
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.client import ConnectMode
from mcp.types import INTERNAL_ERROR, Implementation, TextContent

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.mcp.calls import LONGEST_NAME, Offer
from forge_tools.mcp.server import PAGE, ToolServer
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from tests.unit.mcp.conftest import Local, Say, Wait
from tests.waiting import reached, within

ERAS: list[ConnectMode] = ["legacy", "auto"]


def text(result: Any) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def numbered(count: int) -> list[BaseTool]:
    kind: Any = Say
    return [type(f"Say{n}", (kind,), {"name": f"Say{n:03}", "aliases": ()})() for n in range(count)]


@pytest.mark.parametrize("era", ERAS)
async def test_tools_are_listed_and_called(local: Local, era: ConnectMode) -> None:
    async with Client(ToolServer(local), mode=era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        said = await client.call_tool("Say", {"message": "hello"})

    assert names == ["Loud", "Say"]
    assert (text(said), said.is_error) == ("hello", False)


@pytest.mark.parametrize("era", ERAS)
async def test_changes_of_the_list_are_promised_and_tasks_only_where_calls_are_kept(
    local: Local, era: ConnectMode
) -> None:
    async with Client(ToolServer(local), mode=era) as client:
        told = client.server_capabilities

    assert told.tools is not None
    assert told.tools.list_changed
    assert told.tasks is None
    assert not told.extensions


@pytest.mark.parametrize("era", ERAS)
async def test_long_lists_come_in_pages(era: ConnectMode) -> None:
    async with Client(ToolServer(Local(*numbered(2 * PAGE + 5))), mode=era) as client:
        pages = []
        cursor = None
        for _ in within(60, "the pages do not end"):
            page = await client.list_tools(cursor=cursor)
            pages.append([tool.name for tool in page.tools])
            if (cursor := page.next_cursor) is None:
                break

    assert [len(page) for page in pages] == [PAGE, PAGE, 5]
    assert len({name for page in pages for name in page}) == 2 * PAGE + 5


@pytest.mark.parametrize("era", ERAS)
async def test_a_full_last_page_has_no_successor(era: ConnectMode) -> None:
    async with Client(ToolServer(Local(*numbered(PAGE))), mode=era) as client:
        assert (await client.list_tools()).next_cursor is None


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_not_offered_can_neither_be_seen_nor_called(local: Local, era: ConnectMode) -> None:
    async with Client(ToolServer(local, Offer(names={"Say"})), mode=era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        with pytest.raises(MCPError, match="Unknown tool: Loud"):
            await client.call_tool("Loud", {})

    assert names == ["Say"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_catalogue_that_cannot_be_read_is_an_error_of_the_server(era: ConnectMode) -> None:
    class Away(Local):
        is_away = False

        def specs(self) -> Any:
            if self.is_away:
                raise DatabaseUnavailableError("The database is away")
            return super().specs()

    local = Away(Say())
    async with Client(ToolServer(local), mode=era) as client:
        local.is_away = True
        with pytest.raises(MCPError, match="The database is away") as caught:
            await client.list_tools()

    assert caught.value.error.code == INTERNAL_ERROR
    assert caught.value.error.data == {"code": "STORAGE_UNAVAILABLE", "retryable": True}


async def test_an_unknown_name_is_answered_with_the_closest_one(local: Local) -> None:
    async with Client(ToolServer(local)) as client:
        with pytest.raises(MCPError, match=r"Unknown tool: Sayy \(did you mean 'Say'\?\)"):
            await client.call_tool("Sayy", {})


async def test_a_tool_answers_to_its_alias(local: Local) -> None:
    async with Client(ToolServer(local)) as client:
        assert text(await client.call_tool("say", {"message": "hello"})) == "hello"


@pytest.mark.parametrize("era", ERAS)
async def test_bad_arguments_are_a_result_that_the_model_can_act_on(local: Local, era: ConnectMode) -> None:
    async with Client(ToolServer(local), mode=era) as client:
        result = await client.call_tool("Say", {"message": 7})

    assert result.is_error
    assert "message" in text(result)


@pytest.mark.parametrize("era", ERAS)
async def test_calls_carry_the_client_and_the_session(local: Local, era: ConnectMode) -> None:
    offer = Offer(session_id="s-1", working_dir="/w", dry_run=True)
    me = Implementation(name="tester" * 100, version="7")
    async with Client(ToolServer(local, offer), mode=era, client_info=me) as client:
        await client.call_tool("Say", {"message": "hello"})

    context = local.contexts[0]
    assert (context.session_id, context.working_dir, context.dry_run) == ("s-1", "/w", True)
    assert context.agent_id == ("tester" * 100)[:LONGEST_NAME]


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_is_cancelled_stops(era: ConnectMode) -> None:
    wait = Wait()
    async with Client(ToolServer(Local(wait)), mode=era) as client:
        with anyio.move_on_after(30) as scope:
            async with asyncio.TaskGroup() as group:
                calling = group.create_task(client.call_tool("Wait", {}))
                await wait.started.wait()
                calling.cancel()
        await asyncio.wait_for(wait.stopped.wait(), 10)

    assert not scope.cancelled_caught


async def test_calls_of_a_client_that_leaves_stop() -> None:
    wait = Wait()
    async with Client(ToolServer(Local(wait)), mode="legacy") as client:
        calling = asyncio.ensure_future(client.call_tool("Wait", {}))
        await wait.started.wait()
    await asyncio.wait_for(wait.stopped.wait(), 10)

    with pytest.raises(MCPError):
        await calling


async def test_calls_run_at_the_same_time() -> None:
    class Meet(BaseTool):
        """Wait for another one."""

        name = "Meet"
        category = ToolCategory.OTHER
        parameters = ()
        barrier = asyncio.Barrier(5)

        async def _execute(self, context: ExecutionContext) -> ToolResult:
            await asyncio.wait_for(self.barrier.wait(), 10)
            return ToolResult.ok("met")

    async with Client(ToolServer(Local(Meet())), mode="legacy") as client:
        results = await asyncio.gather(*(client.call_tool("Meet", {}) for _ in range(5)))

    assert {text(result) for result in results} == {"met"}


async def test_a_session_hears_that_the_list_has_changed(local: Local) -> None:
    heard: list[Any] = []

    async def note(message: Any) -> None:
        heard.append(message)

    server = ToolServer(local, Offer(refresh_interval=0.02))
    async with Client(server, mode="legacy", message_handler=note) as client:
        await client.list_tools()
        local.registry.register(numbered(1)[0])
        await reached(lambda: any(getattr(one, "method", "") == "notifications/tools/list_changed" for one in heard))
        assert "Say000" in [tool.name for tool in (await client.list_tools()).tools]


async def test_a_stream_hears_that_the_list_has_changed(local: Local) -> None:
    server = ToolServer(local, Offer(refresh_interval=0.02))
    async with Client(server) as client, client.listen(tools_list_changed=True) as changes:
        local.registry.register(numbered(1)[0])
        await asyncio.wait_for(anext(aiter(changes)), 10)


async def test_nobody_is_told_of_a_list_that_has_not_changed(local: Local) -> None:
    heard: list[Any] = []
    looks = 0

    class Counting(Local):
        def specs(self) -> Any:
            nonlocal looks
            looks += 1
            return super().specs()

    async def note(message: Any) -> None:
        heard.append(message)

    server = ToolServer(Counting(Say()), Offer(refresh_interval=0.01))
    async with Client(server, mode="legacy", message_handler=note):
        await reached(lambda: looks > 5)

    assert heard == []


async def test_the_catalogue_is_left_alone_while_nobody_is_connected(local: Local) -> None:
    server = ToolServer(local, Offer(refresh_interval=0.01))
    async with Client(server, mode="legacy"):
        await reached(lambda: server.listeners.are_present)
    await reached(lambda: not server.listeners.are_present)

    assert not server.listeners.are_present


async def test_names_that_no_tool_has_are_told_to_whoever_reads_the_log(
    local: Local, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(ToolServer(local, Offer(names=["say", "Lout"]))) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["Say"]

    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (warning.message, vars(warning)["names"]) == ("Tools that are to be offered do not exist so far", ["Lout"])
