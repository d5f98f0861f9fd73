"""What was asked of the MCP client: it says what it could not read, and reads on (S2-26 to S2-28)."""

import asyncio
import logging
import sys

import pytest

from forge_tools.base import ExecutionContext
from forge_tools.executor import ToolExecutor
from forge_tools.mcp.hosting.configuration import Server
from forge_tools.mcp.hosting.offering import tools_of
from forge_tools.registry import ScopedRegistry
from tests.fleet import ROOT

NOISY = str(ROOT / "tests" / "mcp_servers" / "raw.py")
LOGGER = "forge_tools.mcp.hosting.process"


async def outputs(*texts: str) -> list[object]:
    """What a server answers that prints garbage before each message."""
    registry = ScopedRegistry()
    server = Server(name="noisy", command=sys.executable, args=("-P", NOISY, "noisy"), cwd=ROOT)
    registry.register_many(await asyncio.to_thread(tools_of, [server], 1_000_000))
    executor = ToolExecutor(registry)
    context = ExecutionContext(working_dir=".")
    try:
        return [(await executor.execute("mcp__noisy__echo", context, text=text)).output for text in texts]
    finally:
        await executor.shutdown()


@pytest.mark.spec("S2-26", "S2-28")
async def test_what_cannot_be_parsed_is_logged_with_its_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOGGER):
        await outputs("one")

    told = [vars(record) for record in caplog.records if record.name == LOGGER]
    assert {(entry["levelname"], entry["server"]) for entry in told} == {("WARNING", "noisy")}
    assert {"DEBUG: about to answer", "{not json}"} <= {entry.get("line") for entry in told}


@pytest.mark.spec("S2-27")
async def test_the_messages_behind_it_are_read() -> None:
    assert await outputs("one", "two", "three") == ["one", "two", "three"]
