"""Requirements of the MCP server: only messages on standard output, everything else on the error stream (S2-19, S2-23..25)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mcp_process import McpProcess

NOISE = {"print": "printed", "descriptor": "to descriptor 1", "child": "from a child", "log": "logged"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[McpProcess]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
    environment = {**kept, "FORGE_WORKSPACE": str(tmp_path), "FORGE_HOME": str(tmp_path / "home")}
    server = McpProcess(environment, tmp_path, "--local", "--tools", "tests.noisy_tools:TOOLS", debug=True)
    yield server.greet()
    server.stop()


@pytest.mark.spec("S2-24", "S2-25")
def test_every_line_of_standard_output_is_a_message_whatever_a_tool_prints(server: McpProcess) -> None:
    answers = [server.call("Noisy", way=way) for way in NOISE]  # each line up to the answer is read as a message

    assert [answer["content"][0]["text"] for answer in answers] == [f"made: {way}" for way in NOISE]
    assert server.hang_up() == []


@pytest.mark.spec("S2-19", "S2-23")
def test_what_is_printed_and_logged_goes_to_the_error_stream(server: McpProcess) -> None:
    for way in NOISE:
        server.call("Noisy", way=way)
    server.hang_up()

    said = server.errors()
    assert [noise for way, noise in NOISE.items() if way != "descriptor" and noise not in said] == []
