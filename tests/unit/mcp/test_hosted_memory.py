"""What is remembered about servers."""

from pathlib import Path

import pytest
from mcp.types import Tool

from forge_tools.mcp.hosted.configuration import Server
from forge_tools.mcp.hosted.servers import Memory

SERVER = Server(name="s", command="x", env={"TOKEN": "secret"}, args=("-y",))
TOOL = Tool.model_validate(
    {"name": "t", "inputSchema": {"type": "object", "x-own": [1]}, "annotations": {"readOnlyHint": True}}
)


def test_tools_are_remembered_whole(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "mcp")
    memory.keep(SERVER, [TOOL])

    assert Memory(tmp_path / "mcp").find(SERVER) == [TOOL]
    assert [path.suffix for path in (tmp_path / "mcp").iterdir()] == [".json"]


def test_a_server_that_is_started_in_another_way_is_another(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep(SERVER, [TOOL])

    assert memory.find(SERVER.model_copy(update={"args": ("-n",)})) == []
    assert memory.find(SERVER.model_copy(update={"name": "other"})) == []


def test_no_secret_is_written(tmp_path: Path) -> None:
    Memory(tmp_path).keep(SERVER, [TOOL])

    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_damaged_file_is_no_memory(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep(SERVER, [TOOL])
    next(tmp_path.iterdir()).write_text('[{"name": ')

    assert memory.find(SERVER) == []


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()

    Memory(tmp_path / "file").keep(SERVER, [TOOL])

    assert "are not kept" in caplog.text
