"""The reference server for files, from npm: written by others, used if it can be installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from forge_tools.mcp.hosted.configuration import Server
from forge_tools.tool.base import ExecutionContext
from tests.hosting import Host

PACKAGE = "@modelcontextprotocol/server-filesystem"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server, installed into a folder of its own."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", "--prefix", str(folder))
    command = [npm, "install", *options, PACKAGE]
    try:
        installed = subprocess.run(command, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        pytest.skip("npm does not answer")
    if installed.returncode:
        pytest.skip(f"npm cannot install {PACKAGE}: {installed.stderr[-300:]}")
    return str(folder / "node_modules" / ".bin" / "mcp-server-filesystem")


@pytest.mark.timeout(150)
async def test_the_reference_server_for_files_is_hosted(program: str, tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "notes.txt").write_text("hello\n")
    path = {"PATH": os.environ["PATH"]}
    host = Host()
    executor = await host.start(Server(name="files", command=program, args=(str(folder),), env=path))
    context = ExecutionContext(working_dir=".")
    try:
        read = await executor.execute("mcp__files__read_text_file", context, path=str(folder / "notes.txt"))
        edits = [{"oldText": "hello", "newText": "goodbye"}]
        edited = await executor.execute("mcp__files__edit_file", context, path=str(folder / "notes.txt"), edits=edits)
        outside = await executor.execute("mcp__files__read_text_file", context, path="/etc/passwd")
        wrong = await executor.execute("mcp__files__edit_file", context, path="x", edits=[{"oldText": 3}])
        can = {spec.name: spec.capabilities for spec in executor.specs()}

        assert read.output == "hello\n"
        assert edited.success
        assert (folder / "notes.txt").read_text() == "goodbye\n"
        assert (outside.success, outside.error_code) == (False, "MCP_TOOL_ERROR")
        assert wrong.error_code == "VALIDATION_ERROR"
        assert can["mcp__files__read_text_file"].idempotent
        assert can["mcp__files__edit_file"].writes_files
    finally:
        await host.stop()
