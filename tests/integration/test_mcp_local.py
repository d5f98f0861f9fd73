"""`forge-tools mcp --local`: standard output carries only the protocol, whatever tools in the same process do."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client, MCPError
from mcp.types import INVALID_PARAMS, ResourceLink, TextContent, TextResourceContents

from tests.fleet import ROOT
from tests.mcp_process import McpEndpoint, McpProcess, parameters
from tests.noisy_tools import WAYS
from tests.waiting import is_alive, reached, wait_until

HARMLESS = ("print", "print without a flush", "the original stream", "descriptor", "child", "shell", "c", "flushed c")
LOCAL = ("--local", "--tools", "tests.noisy_tools:TOOLS")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
    return {**kept, "FORGE_WORKSPACE": str(tmp_path), "FORGE_HOME": str(tmp_path / "home")}


@pytest.fixture
def server(environment: dict[str, str], tmp_path: Path) -> Iterator[McpProcess]:
    server = McpProcess(environment, tmp_path, *LOCAL)
    yield server.greet()
    server.stop()


def test_noise_goes_to_the_error_stream(server: McpProcess) -> None:
    for way in (*HARMLESS, "log", "handler", "input"):
        assert server.call("Noisy", way=way)["content"][0]["text"] == f"made: {way}"

    assert server.hang_up() == []
    said = server.errors()
    for noise in ("while it was imported", "printed", "to __stdout__", "forged", "from a child", "from a shell"):
        assert noise in said


def test_log_records_go_to_the_error_stream(server: McpProcess) -> None:
    server.call("Noisy", way="raise")
    server.hang_up()

    said = server.errors()
    assert "ERROR forge_tools.tools: Unexpected error in Noisy" in said
    assert "ZeroDivisionError" in said[said.index("Traceback") :]


def test_a_client_that_does_not_read_the_error_stream_is_answered_all_the_same(
    environment: dict[str, str], tmp_path: Path
) -> None:
    unread, errors = os.pipe()
    server = McpProcess(environment, tmp_path, *LOCAL, stderr=errors)
    os.close(errors)
    try:
        server.greet()
        for way in ("log", "child") * 500:
            assert server.call("Noisy", way=way)["content"][0]["text"] == f"made: {way}"
        assert server.hang_up() == []
        with os.fdopen(unread, "rb") as said:
            assert b"logged" in said.read()
    finally:
        server.stop()


def test_a_parameter_of_the_wrong_kind_is_named(server: McpProcess) -> None:
    error = server.answer(server.begin("tools/call", {"name": "Noisy", "arguments": [1]}))["error"]

    assert error["code"] == INVALID_PARAMS
    assert error["message"].startswith("Invalid request parameters: ")
    assert "arguments: Input should be" in error["message"]


async def test_what_was_too_long_is_read_on_while_the_server_lives(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    async with Client(parameters({**environment, "TMPDIR": str(tmp_path / "tmp")}, "--local")) as agent:
        result = await agent.call_tool("Bash", {"command": "seq 1 60000"})
        link = next(block for block in result.content if isinstance(block, ResourceLink))
        whole = (await agent.read_resource(link.uri)).contents[0]
        page = (await agent.read_resource(f"{link.uri}?offset=30001&limit=2")).contents[0]
        read = await agent.call_tool("Read", {"file_path": str(link.uri), "offset": 30001, "limit": 1})

    assert isinstance(whole, TextResourceContents)
    assert whole.text.splitlines() == [str(number) for number in range(1, 60_001)]
    assert isinstance(page, TextResourceContents)
    assert page.text == "30001\n30002\n"
    assert isinstance(read.content[0], TextContent)
    assert read.content[0].text.startswith(" 30001\t30001\n")
    assert list((tmp_path / "tmp").glob("forge-mcp-*")) == []


def test_what_a_killed_server_kept_goes_when_another_one_starts(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    kept = {**environment, "TMPDIR": str(tmp_path / "tmp")}
    killed, living = (McpProcess(kept, tmp_path, "--local").greet() for _ in range(2))
    folders = set((tmp_path / "tmp").glob("forge-mcp-*"))
    killed.stop()
    another = McpProcess(kept, tmp_path, "--local").greet()
    try:
        left = set((tmp_path / "tmp").glob("forge-mcp-*"))
        assert (len(folders), len(left), len(left & folders)) == (2, 2, 1)
        assert living.call("Bash", command="seq 1 60000")["content"][-1]["type"] == "resource_link"
    finally:
        another.stop()
        living.stop()


@pytest.mark.parametrize("way", ["raise", "exit", "interrupt"])
def test_what_a_tool_raises_is_a_failed_result(server: McpProcess, way: str) -> None:
    assert server.call("Noisy", way=way)["isError"]
    assert server.call("Noisy", way="print")["content"][0]["text"] == "made: print"


@pytest.mark.parametrize("way", ["crash", "abort"])
def test_a_tool_that_ends_the_process_leaves_whole_lines_behind(server: McpProcess, way: str) -> None:
    server.begin("tools/call", {"name": "Noisy", "arguments": {"way": "print"}})
    server.begin("tools/call", {"name": "Noisy", "arguments": {"way": way}})
    server.process.wait(60)

    assert all(message["jsonrpc"] == "2.0" for message in server.hang_up())


def test_a_tool_that_blocks_delays_no_answer_of_the_server_nor_its_end(server: McpProcess) -> None:
    server.begin("tools/call", {"name": "Noisy", "arguments": {"way": "block"}})
    assert server.ask("ping") == {}
    assert len(server.ask("tools/list")["tools"]) > 1
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


def test_the_end_of_input_stops_what_tools_have_started(server: McpProcess, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    server.begin("tools/call", {"name": "Bash", "arguments": {"command": f"echo $$ > {mark}; sleep 60"}})
    wait_until(lambda: mark.exists() and mark.read_text().strip(), 40, "it never started")
    pid = int(mark.read_text())
    server.hang_up()

    assert server.process.returncode == 0
    wait_until(lambda: not is_alive(pid), 40, "its child lives on")


async def test_built_in_tools_work_for_the_official_client(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("first\nsecond\n")
    async with Client(parameters(environment, "--local", "--categories", "file")) as agent:
        names = {tool.name for tool in (await agent.list_tools()).tools}
        found = await agent.call_tool("Grep", {"pattern": "second"})
        outside = await agent.call_tool("Read", {"file_path": "/etc/passwd"})

    assert {"Read", "Grep"} <= names
    assert "Bash" not in names
    assert "notes.txt" in str(found.content)
    assert outside.is_error


def test_the_configuration_in_the_documentation_starts_a_server(environment: dict[str, str], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "mcp.md").read_text()
    said = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])["mcpServers"]["forge"]
    assert said["command"].endswith("forge-tools")
    assert set(said["env"]) == {"FORGE_WORKSPACE"}, "the workspace says which stack is meant"
    server = McpProcess(environment, tmp_path, *said["args"][1:], "--local")
    try:
        names = {tool["name"] for tool in server.greet().ask("tools/list")["tools"]}
    finally:
        server.stop()

    assert said["args"][0] == "mcp"
    assert {"Bash", "Read"} <= names


def test_a_wrong_command_line_says_so_on_the_error_stream(environment: dict[str, str], tmp_path: Path) -> None:
    for words, code, said in (
        (("--local", "--tools", "no_such_module:TOOLS"), 78, "no_such_module"),
        (("--http", "0.0.0.0:0"), 78, "FORGE_MCP_TOKEN"),
        ((), 69, "forge"),
    ):
        server = McpProcess(environment, tmp_path, *words)
        try:
            assert server.process.wait(60) == code, server.errors()
            assert server.hang_up() == []
            assert said in server.errors()
        finally:
            server.stop()


def test_json_errors_do_not_get_onto_the_wire(environment: dict[str, str], tmp_path: Path) -> None:
    server = McpProcess(environment, tmp_path, "--output", "json")
    try:
        assert server.process.wait(60) != 0
        assert server.hang_up() == []
    finally:
        server.stop()


def test_help_does_without_the_sdk(environment: dict[str, str]) -> None:
    program = (
        "import sys; from forge_tools.cli import main\n"
        "try: main(['mcp', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('mcp' in sys.modules or 'uvicorn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


WAYS_TESTED = {*HARMLESS, "log", "handler", "input", "raise", "exit", "interrupt", "crash", "abort", "block"}


def test_every_way_is_tried() -> None:
    assert WAYS.keys() == WAYS_TESTED


async def test_an_endpoint_that_ends_tells_those_who_listen_and_wait(
    environment: dict[str, str], tmp_path: Path
) -> None:
    endpoint = McpEndpoint(environment, tmp_path, "--local")
    try:
        async with Client(endpoint.url) as agent, agent.listen(tools_list_changed=True) as news:
            waiting = asyncio.ensure_future(agent.call_tool("Bash", {"command": "touch begun; sleep 60"}))
            await reached((tmp_path / "begun").exists)
            endpoint.process.terminate()

            assert [event async for event in news] == []  # and no SubscriptionLost
            with pytest.raises(MCPError, match="the server is ending"):
                await waiting
        assert await asyncio.to_thread(endpoint.process.wait, 30) == 0
    finally:
        endpoint.stop()

    assert "Traceback" not in endpoint.errors()
