"""Tools of servers that are reached over HTTP: our own, and one with sessions that it forgets."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.mcp.hosted.configuration import Server
from forge_tools.tool.base import ExecutionContext
from tests.hosting import Host
from tests.mcp_process import McpEndpoint
from tests.mcp_servers.sessions import SessionServer

CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
def sessions() -> Iterator[SessionServer]:
    with SessionServer() as server:
        yield server


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[McpEndpoint]:
    environment = {**os.environ, "FORGE_MCP_TOKEN": "open sesame", "FORGE_WORKSPACE": str(tmp_path)}
    endpoint = McpEndpoint(environment, tmp_path, "--local", "--categories", "file")
    yield endpoint
    endpoint.stop()


async def test_tools_of_our_own_server_are_hosted_with_its_token(host: Host, ours: McpEndpoint, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    executor = await host.start(Server(name="forge", url=ours.url, headers={"Authorization": "Bearer open sesame"}))

    result = await executor.execute("mcp__forge__Read", CONTEXT, file_path="notes.txt")

    assert "hello" in result.output
    can = {spec.name: spec.capabilities for spec in executor.specs()}
    assert (can["mcp__forge__Read"].idempotent, can["mcp__forge__Write"].writes_files) == (True, True)


async def test_a_refusal_is_told_with_its_status(
    host: Host, ours: McpEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    executor = await host.start(Server(name="forge", url=ours.url, headers={"Authorization": "Bearer wrong"}))

    assert executor.specs() == []
    assert "HTTP 401" in "".join(str(vars(record).get("reason")) for record in caplog.records)


async def test_a_server_that_is_gone_is_missed_in_the_call(host: Host, ours: McpEndpoint) -> None:
    executor = await host.start(Server(name="forge", url=ours.url, headers={"Authorization": "Bearer open sesame"}))
    ours.stop()

    results = [await executor.execute("mcp__forge__ListDirectory", CONTEXT) for _ in range(3)]

    assert {result.error_code for result in results} == {"MCP_DISCONNECTED"}
    assert all("All connection attempts failed" in str(result.error) for result in results)


async def test_nobody_there_is_said_without_the_secrets_of_the_url(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    executor = await host.start(Server(name="nobody", url="http://u:hush@127.0.0.1:9/mcp?key=hush"))

    assert executor.specs() == []
    assert "All connection attempts failed" in host.states()["nobody"].why
    assert "hush" not in str([host.states(), *(vars(record) for record in caplog.records)])


async def test_a_session_that_was_forgotten_is_begun_again(host: Host, sessions: SessionServer) -> None:
    executor = await host.start(Server(name="s", url=sessions.url, headers={"X-Key": "k"}))

    results = [await executor.execute(f"mcp__s__{name}", CONTEXT) for name in ("count", "forget", "count", "count")]

    assert [result.output for result in results] == ["1", "2", "3", "4"]
    assert [method for method, _ in sessions.seen].count("initialize") == 2
    assert all(headers.get("X-Key") == "k" or headers.get("x-key") == "k" for _, headers in sessions.seen)


async def test_calls_that_meet_a_forgotten_session_together_share_the_next(host: Host, sessions: SessionServer) -> None:
    executor = await host.start(Server(name="s", url=sessions.url))
    await executor.execute("mcp__s__forget", CONTEXT)

    results = await asyncio.gather(*(executor.execute("mcp__s__count", CONTEXT) for _ in range(20)))

    assert sorted(int(result.output) for result in results) == list(range(2, 22))


async def test_a_connection_that_breaks_in_the_call_leaves_the_outcome_unknown(
    host: Host, sessions: SessionServer
) -> None:
    executor = await host.start(Server(name="s", url=sessions.url))

    lost = await executor.execute("mcp__s__break", CONTEXT)
    after = await executor.execute("mcp__s__count", CONTEXT)

    assert (lost.error_code, "retryable" in lost.metadata) == ("MCP_DISCONNECTED", False)
    assert "Whether the call took effect is unknown" in str(lost.error)
    assert after.output == "1"


async def test_the_session_is_ended_with_the_worker(host: Host, sessions: SessionServer) -> None:
    await host.start(Server(name="s", url=sessions.url))
    assert len(sessions.sessions) == 1

    await host.stop()

    assert sessions.sessions == set()


async def test_a_long_event_arrives_whole_and_one_over_the_limit_is_named(host: Host, tmp_path: Path) -> None:
    tools = tmp_path / "large.py"
    tools.write_text(
        "from forge_tools import ExecutionContext, File\nfrom forge_tools.tool import tool\n\n\n"
        '@tool\nasync def large(size: int, context: ExecutionContext) -> File:\n    """Return so many bytes."""\n'
        '    context.progress(1)  # so the answer is an event\n    return File(b"\\0" * size)\n'
    )
    endpoint = McpEndpoint({**os.environ, "FORGE_WORKSPACE": str(tmp_path)}, tmp_path, "--local", "--tools", str(tools))
    try:
        executor = await host.start(Server(name="s", url=endpoint.url), max_message_bytes=3_000_000)
        fits, exceeds = [await executor.execute("mcp__s__large", CONTEXT, size=n) for n in (1_500_000, 2_500_000)]
    finally:
        endpoint.stop()

    assert [part.size for part in fits.files] == [1_500_000], fits.error
    assert "3000000 byte limit" in str(exceeds.error)
