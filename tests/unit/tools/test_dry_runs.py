"""Dry runs: they say what would happen, fail as the call would fail, and touch nothing."""

import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.files import etag_of
from forge_tools.tool.base import BaseTool
from forge_tools.tools.file.delete import Delete
from forge_tools.tools.file.edit import Edit
from forge_tools.tools.file.glob import Glob
from forge_tools.tools.file.grep import Grep
from forge_tools.tools.file.list_directory import ListDirectory
from forge_tools.tools.file.read import Read
from forge_tools.tools.file.write import Write

Call = Callable[..., Awaitable[ToolResult]]
Put = Callable[[str, bytes], Path]

FINE: list[tuple[type[BaseTool], dict[str, Any]]] = [
    (Write, {"file_path": "f", "content": "new\n"}),
    (Write, {"file_path": "f", "content": "one\ntwo\n"}),
    (Write, {"file_path": "f", "content": "one\ntwo\n", "executable": True}),
    (Write, {"file_path": "a/b/new", "content": "new\n"}),
    (Write, {"file_path": "link", "content": "new\n", "if_match": etag_of(b"one\ntwo\n")}),
    (Edit, {"file_path": "f", "old_string": "one", "new_string": "1"}),
    (Edit, {"file_path": "crlf", "old_string": "a\nb", "new_string": "a\nB"}),
    (Edit, {"file_path": "a/new", "old_string": "", "new_string": "x"}),
    (Delete, {"file_path": "f"}),
    (Delete, {"file_path": "link"}),
    (Delete, {"file_path": "d", "recursive": True}),
    (Delete, {"file_path": "no", "missing_ok": True}),
    (ListDirectory, {"path": ".", "depth": 3}),
    (Read, {"file_path": "crlf"}),
    (Glob, {"pattern": "**"}),
    (Grep, {"pattern": "o", "output_mode": "content"}),
]
WRONG: list[tuple[type[BaseTool], dict[str, Any]]] = [
    (Write, {"file_path": "d", "content": "x"}),
    (Write, {"file_path": "f/x", "content": "x"}),
    (Write, {"file_path": "../x", "content": "x"}),
    (Write, {"file_path": "out", "content": "x"}),
    (Write, {"file_path": ".git/config", "content": "x"}),
    (Write, {"file_path": "dangling/x", "content": "x"}),
    (Write, {"file_path": "f", "content": "x", "if_match": "b2:00"}),
    (Write, {"file_path": "f", "content": "x", "if_none_match": "*"}),
    (Write, {"file_path": "n/f", "content": "x", "create_dirs": False}),
    (Write, {"file_path": "f", "content": "\ud800"}),
    (Write, {"file_path": "fifo", "content": "x"}),
    (Edit, {"file_path": "f", "old_string": "o", "new_string": "x"}),
    (Edit, {"file_path": "f", "old_string": "three", "new_string": "x"}),
    (Edit, {"file_path": "f", "old_string": "one", "new_string": "one"}),
    (Edit, {"file_path": "nothing", "old_string": "one", "new_string": "x"}),
    (Edit, {"file_path": "f"}),
    (Delete, {"file_path": "d"}),
    (Delete, {"file_path": "no"}),
    (Delete, {"file_path": "."}),
    (Delete, {"file_path": "f", "if_match": "b2:00"}),
    (ListDirectory, {"path": "f"}),
    (ListDirectory, {"path": "out"}),
    (Read, {"file_path": "fifo"}),
    (Read, {"file_path": "out"}),
    (Glob, {"pattern": "[z-a]"}),
    (Glob, {"pattern": "*", "path": "out"}),
    (Grep, {"pattern": "("}),
    (Grep, {"pattern": "x", "path": "no-such"}),
]


@pytest.fixture(autouse=True)
def filled(ws: Path, write: Put) -> Path:
    write("f", b"one\ntwo\n")
    write("crlf", b"a\r\nb\r\n")
    write("d/e/g", b"g")
    write(".git/config", b"")
    (ws / "link").symlink_to("f")
    (ws / "out").symlink_to("../secret")
    (ws / "dangling").symlink_to("nowhere")
    os.mkfifo(ws / "fifo")
    return ws


def fingerprint(ws: Path) -> str:
    """Everything about the tree that a call could have touched."""
    seen = []
    for path in sorted([ws.parent, *ws.parent.rglob("*")]):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        seen.append((str(path), status.st_mode, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, data))
    return hashlib.sha256(repr(seen).encode()).hexdigest()


@pytest.mark.parametrize(("tool", "arguments"), FINE, ids=lambda value: getattr(value, "name", None))
async def test_what_would_happen_is_said_and_then_happens(
    ws: Path, caller: Callable[[BaseTool], Call], tool: type[BaseTool], arguments: dict[str, Any]
) -> None:
    call, before = caller(tool()), fingerprint(ws)
    dry = await call({"dry_run": True, "execution_id": "0197"}, **arguments)
    assert dry.success, dry.error
    assert dry.output.startswith("[Dry Run] ")
    assert fingerprint(ws) == before
    real = await call(**arguments)
    assert real.success
    facts = {name: value for name, value in dry.metadata.items() if name != "dry_run"}
    assert {name: real.metadata[name] for name in facts} == facts
    assert real.output.partition("\n")[2] in dry.output
    assert (fingerprint(ws) == before) == (not real.metadata.get("changed") and "executable" not in arguments)


@pytest.mark.parametrize(("tool", "arguments"), WRONG, ids=lambda value: getattr(value, "name", None))
async def test_what_would_fail_fails_in_the_same_words(
    ws: Path, caller: Callable[[BaseTool], Call], tool: type[BaseTool], arguments: dict[str, Any]
) -> None:
    call, before = caller(tool()), fingerprint(ws)
    dry, real = await call({"dry_run": True}, **arguments), await call(**arguments)
    assert not real.success
    assert (dry.success, dry.error, dry.error_code) == (False, real.error, real.error_code)
    assert fingerprint(ws) == before
