"""What tools report, as clients of the official SDK receive it: on workers, in the server's own process, and as tasks."""

import asyncio
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.types import LOG_LEVEL_META_KEY, LoggingMessageNotificationParams, TextContent

from tests.fleet import Fleet
from tests.mcp_process import McpProcess, forked
from tests.mcp_tasks_client import TasksExtension

ERAS: list[ConnectMode] = ["legacy", "auto"]
TOOLS = "tests.telling_tools:TOOLS"

Told = list[tuple[float, float | None, str | None]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    valkey_server.flush()
    fleet = Fleet(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", kill_grace=1.0)
    fleet.start("async", concurrency=20, tools=TOOLS)
    fleet.start("process", tools=TOOLS)
    yield fleet
    fleet.stop()


def local_environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
    return {**kept, "FORGE_WORKSPACE": str(folder), "FORGE_HOME": str(folder / "home")}


async def told_of(agent: Client, tool: str, **arguments: Any) -> tuple[str, Told]:
    """The answer of a call, and the notifications before it."""
    told: Told = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    result = await agent.call_tool(tool, arguments, progress_callback=note)
    return "".join(block.text for block in result.content if isinstance(block, TextContent)), told


def check(told: Told, steps: int) -> None:
    """Whatever the protocol asks, and the last that the tool said."""
    assert all(earlier < later for (earlier, _, _), (later, _, _) in pairwise(told)), told
    assert abs(told[-1][0] - steps) < 0.01
    assert told[-1][1] == steps
    assert len({round(progress) for progress, _, _ in told}) >= 3
    assert any(f"step {step}" in str(message) for step in range(1, steps) for _, _, message in told)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", ["Count", "CountBlocking"])
async def test_progress_of_workers_is_told_in_rising_numbers(fleet: Fleet, era: ConnectMode, tool: str) -> None:
    async with Client(forked(fleet.environment()), mode=era) as agent:
        answer, told = await told_of(agent, tool, steps=6, pause=0.6)

    assert answer == "6"
    check(told, 6)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", ["Count", "CountBlocking"])
async def test_progress_of_this_process_is_told_too(tmp_path: Path, era: ConnectMode, tool: str) -> None:
    words = ("--local", "--tools", TOOLS)
    async with Client(forked(local_environment(tmp_path), *words), mode=era) as agent:
        answer, told = await told_of(agent, tool, steps=6, pause=0.6)

    assert answer == "6"
    check(told, 6)


async def test_a_call_without_a_token_is_told_nothing(fleet: Fleet) -> None:
    raw = McpProcess(fleet.environment(), fleet.folder).greet()
    try:
        id_ = raw.begin("tools/call", {"name": "Count", "arguments": {"steps": 2, "pause": 0.6}})
        first = await asyncio.to_thread(raw.read)
    finally:
        raw.stop()

    assert first["id"] == id_


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("is_local", [False, True], ids=["on a worker", "here"])
async def test_what_a_call_logs_is_told_from_the_level_on_that_the_client_wants(
    fleet: Fleet, tmp_path: Path, era: ConnectMode, is_local: bool
) -> None:
    words = ("--local", "--tools", TOOLS) if is_local else ()
    environment = local_environment(tmp_path) if is_local else fleet.environment()
    told: list[tuple[str, Any]] = []

    async def note(params: LoggingMessageNotificationParams) -> None:
        told.append((params.level, params.data))

    async with Client(forked(environment, *words), mode=era, logging_callback=note) as agent:
        await agent.call_tool("log_twice")
        assert told == []
        if era == "legacy":
            with pytest.warns(MCPDeprecationWarning):
                await agent.set_logging_level("warning")
            await agent.call_tool("log_twice")
        else:
            await agent.call_tool("log_twice", meta={LOG_LEVEL_META_KEY: "warning"})

    assert [level for level, _ in told] == ["warning"]
    assert told[0][1].endswith("for all")


async def test_many_calls_hear_of_their_own_progress(fleet: Fleet) -> None:
    async with Client(forked(fleet.environment()), mode="auto") as agent:
        counts = range(6, 12)
        answers = await asyncio.gather(*(told_of(agent, "Count", steps=count, pause=0.5) for count in counts))

    for count, (answer, told) in zip(counts, answers, strict=True):
        assert answer == str(count)
        check(told, count)


async def test_a_task_says_how_far_it_is(fleet: Fleet) -> None:
    tasks = TasksExtension()
    server = forked(fleet.environment(), "--task-after", "0.1")
    async with Client(server, mode="auto", extensions=[tasks]) as agent:
        answer, _ = await told_of(agent, "Count", steps=8, pause=0.6)

    assert answer == "8"
    assert any("of 8, step" in told["statusMessage"] for told in tasks.seen)


def test_a_poll_says_how_far_it_is(fleet: Fleet) -> None:
    raw = McpProcess(fleet.environment(), fleet.folder, "--background-tools").greet()
    try:
        made = raw.call("submit_tool", tool="Count", arguments={"steps": 60, "pause": 0.3})["structuredContent"]
        said = raw.call("poll_execution", execution_id=made["execution_id"], wait_seconds=5)["structuredContent"]
        raw.call("cancel_execution", execution_id=made["execution_id"])
    finally:
        raw.stop()

    assert " of 60, step " in said["said"]
