"""MCP servers on a real worker: called like all tools, killed in the middle, and gone with their worker."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext, ExecutionStatus, Progress
from tests.fleet import ROOT, Fleet
from tests.hosting import hosting_worker, warm_host
from tests.waiting import is_alive, reached

SERVERS = ROOT / "tests" / "mcp_servers"
CONTEXT = ExecutionContext(working_dir=".")


def started(*words: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-P", str(SERVERS / words[0]), *words[1:]], "cwd": str(ROOT), **more}


@pytest.fixture
def fleet(tmp_path: Path, valkey: Any) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


async def until_found(client: ExecutorClient, tool: str) -> None:
    async def is_found() -> bool:
        await client.catalogue.refresh()
        return tool in {spec.name for spec in client.specs()}

    await reached(is_found, 60, f"{tool} is not offered")


def shown(fleet: Fleet, *words: str) -> str:
    """What a command prints, on one line."""
    printed = warm_host().run(["forge_tools.cli", *words], env={**fleet.environment(), "COLUMNS": "400"}, cwd=ROOT)
    return " ".join((printed.stdout + printed.stderr).split())


async def test_tools_of_servers_are_in_the_catalogue_and_run_on_the_worker(fresh_fleet: Fleet) -> None:
    hosting_worker(fresh_fleet, {"good": started("good.py"), "raw": started("raw.py", "unspeakable")})
    async with ExecutorClient(fresh_fleet.settings) as client:
        schemas = {schema["name"]: schema for schema in client.get_schemas_by_category("mcp", "anthropic")}

        added = await client.execute("mcp__good__add", CONTEXT, a=1, b=2)
        echoed = await client.execute("mcp__raw__echo", CONTEXT, text="hello")
        refused = await client.execute("mcp__good__visit", CONTEXT, place={"town": "Bonn"})
        either = await client.execute("mcp__raw__either", CONTEXT, a=None)
        neither = await client.execute("mcp__raw__either", CONTEXT, c=1)

        assert schemas["mcp__good__visit"]["input_schema"]["properties"]["place"] == {"$ref": "#/$defs/Place"}
        assert (added.output, added.metadata["structured"], added.metadata["server"]) == ("3", {"result": 3}, "good")
        assert echoed.output == "hello"
        assert refused.error == "Missing required parameter: place.city"
        assert either.output == '{"a": null}'
        assert neither.error_code == "VALIDATION_ERROR"
        assert schemas["mcp__raw__either"]["input_schema"] == {"type": "object", "properties": {}}


async def test_a_server_that_is_killed_in_a_call_costs_that_call_alone(fleet: Fleet, tmp_path: Path) -> None:
    worker = hosting_worker(
        fleet,
        {
            "good": started("good.py", walls="plain"),  # in namespaces its number is another
            "raw": started("raw.py", "plain"),
            "bad": started("raw.py", "broken"),
        },
    )
    mark = tmp_path / "mark"
    async with ExecutorClient(fleet.settings) as client:
        handle = await client.submit("mcp__good__wait", {"mark": str(mark)}, CONTEXT)
        await reached(lambda: mark.exists() and mark.read_text().startswith("began "), 60, "the call has not begun")
        server = int(mark.read_text().split()[1])

        os.kill(server, 9)
        lost = await handle.result(timeout=60)
        neighbour = await client.execute("mcp__raw__echo", CONTEXT, text="here")
        again = await client.execute("mcp__good__identity", CONTEXT)

        assert lost.error_code == "MCP_DISCONNECTED"
        assert "it was ended by SIGKILL" in str(lost.error)
        assert await handle.status() == ExecutionStatus.FAILED
        assert neighbour.output == "here"
        assert int(again.output) != server
    assert b"no licence for this machine" in worker.log.read_bytes()


async def test_a_cancel_reaches_the_server(fleet: Fleet, tmp_path: Path) -> None:
    hosting_worker(fleet, {"good": started("good.py", mounts=[f"{tmp_path}:rw"])})
    mark = tmp_path / "mark"
    async with ExecutorClient(fleet.settings) as client:
        handle = await client.submit("mcp__good__wait", {"mark": str(mark)}, CONTEXT)
        await reached(mark.exists, 60, "the call has not begun")

        await handle.cancel("enough")
        await handle.result(timeout=60)

        assert await handle.status() == ExecutionStatus.CANCELLED
        await reached(lambda: mark.read_text() == "stopped", 60, "the server goes on")


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_servers_are_gone_with_their_worker(fleet: Fleet, tmp_path: Path, end: str) -> None:
    pids = tmp_path / "pids"
    worker = hosting_worker(
        fleet,
        {
            "good": started("good.py", walls="plain"),
            "stubborn": started("raw.py", "stubborn", str(pids), walls="plain"),
        },
    )
    async with ExecutorClient(fleet.settings) as client:
        server = int((await client.execute("mcp__good__identity", CONTEXT)).output)
    stubborn, child = map(int, pids.read_text().split())
    assert all(map(is_alive, (server, stubborn, child)))

    getattr(worker, end)()

    await reached(lambda: not any(map(is_alive, (server, stubborn, child))), 60, "a server outlived its worker")


async def test_a_server_that_failed_to_start_is_told_of_until_it_serves(fleet: Fleet, tmp_path: Path) -> None:
    mark = tmp_path / "licence"
    hosting_worker(fleet, {"late": started("raw.py", "until", str(mark), mounts=[f"{tmp_path}:ro"])})
    why = "it ended with code 3; it last wrote: no licence for this machine"
    async with ExecutorClient(fleet.settings) as client:
        refused = await client.execute("mcp__late__echo", CONTEXT, text="here")
        said = {one: await asyncio.to_thread(shown, fleet, *one.split()) for one in ("doctor", "tools", "top --once")}

        mark.touch()
        await until_found(client, "mcp__late__echo")
        answered = await client.execute("mcp__late__echo", CONTEXT, text="here")

    assert refused.error_code == "TOOL_NOT_FOUND"
    assert "Unknown tool: mcp__late__echo. The MCP server 'late' on " in str(refused.error)
    assert str(refused.error).endswith(why)
    assert all(why in text for text in said.values()), said
    assert answered.output == "here"


async def test_tools_that_a_server_gets_while_it_serves_can_be_called(fleet: Fleet) -> None:
    hosting_worker(fleet, {"raw": started("raw.py", "plain")})
    async with ExecutorClient(fleet.settings) as client:
        await client.execute("mcp__raw__change", CONTEXT)
        await until_found(client, "mcp__raw__fresh")

        assert (await client.execute("mcp__raw__fresh", CONTEXT, text="new")).output == "new"
        assert (await client.execute("mcp__raw__hang", CONTEXT, mark="x")).error_code == "MCP_TOOL_GONE"

        async def states() -> list[tuple[str, int]]:
            await client.catalogue.refresh()
            return [(one.status, one.tools) for one in client.catalogue.servers()]

        await reached(states, 60, "its state is not told", when=lambda found: found == [("serving", 3)])


def test_a_configuration_that_cannot_be_used_is_refused(fleet: Fleet) -> None:
    with pytest.raises(AssertionError, match='server "bad": give it either a "command"'):
        hosting_worker(fleet, {"bad": {}})

    assert fleet.workers[0].process.wait() == 78


async def test_progress_that_a_server_tells_is_that_of_the_call(fleet: Fleet) -> None:
    hosting_worker(fleet, {"good": started("good.py")})
    async with ExecutorClient(fleet.settings) as client:
        handle = await client.submit("mcp__good__count", {"steps": 3}, CONTEXT)
        async with asyncio.timeout(30):
            told = [event async for event in handle.events() if isinstance(event, Progress)]

        assert (await handle.result()).success
    assert (told[-1].done, told[-1].total, told[-1].message) == (3, 3, "step 3")
    assert len(told) >= 2
