"""An execution that runs twice, also after a crash in the middle, does its work once and gives one answer."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.model.scope import CallScope
from forge_tools.sandbox.paths.files import etag_of
from forge_tools.tool.base import BaseTool
from forge_tools.tools.file.delete import Delete
from forge_tools.tools.file.edit import Edit
from forge_tools.tools.file.write import Write
from tests.fleet import ROOT, warm_worker

CALLS: dict[str, tuple[type[BaseTool], dict[str, Any], dict[str, bytes]]] = {
    "edit": (Edit, {"file_path": "f", "old_string": "a", "new_string": "aa"}, {"f": b"aa\n", "d/g": b"g"}),
    "write": (Write, {"file_path": "f", "content": "new\n", "if_match": "$etag"}, {"f": b"new\n", "d/g": b"g"}),
    "create": (Write, {"file_path": "n/f", "content": "new\n", "if_none_match": "*"},
               {"f": b"a\n", "d/g": b"g", "n/f": b"new\n"}),
    "delete": (Delete, {"file_path": "f"}, {"d/g": b"g"}),
    "tree": (Delete, {"file_path": "d", "recursive": True}, {"f": b"a\n"}),
}  # fmt: skip


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest, write: Callable[[str, bytes], Path]) -> str:
    fill(write)
    return str(request.param)


def fill(write: Callable[[str, bytes], Path]) -> None:
    write("f", b"a\n")
    write("d/g", b"g")


def files(ws: Path) -> dict[str, bytes]:
    found = {path.relative_to(ws).as_posix(): path.read_bytes() for path in ws.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".forge-journal/")}


def arguments(call: str) -> dict[str, Any]:
    return {name: etag_of(b"a\n") if value == "$etag" else value for name, value in CALLS[call][1].items()}


async def run(call: str, execution_id: str | None = "0197") -> ToolResult:
    context = ExecutionContext(working_dir=".").within(CallScope(execution_id=execution_id))
    return await CALLS[call][0]().execute(context, **arguments(call))


async def test_the_second_delivery_gets_the_first_answer(ws: Path, call: str) -> None:
    first, second = await run(call), await run(call)
    assert first.success
    assert (second.output, second.metadata.pop("replayed")) == (first.output, True)
    assert second.metadata == first.metadata
    assert files(ws) == CALLS[call][2]


async def test_another_execution_is_another_deed(ws: Path, call: str) -> None:
    await run(call)
    again = await run(call, "0198")
    assert "replayed" not in again.metadata
    assert not again.success


async def test_what_others_did_in_between_stays(ws: Path, call: str) -> None:
    first = await run(call)
    (ws / "d").mkdir(exist_ok=True)
    (ws / "f").write_bytes(b"theirs")
    (ws / "d/g").write_bytes(b"theirs")
    assert (await run(call)).output == first.output
    assert ((ws / "f").read_bytes(), (ws / "d/g").read_bytes()) == (b"theirs", b"theirs")


async def test_a_refusal_is_not_remembered(ws: Path, call: str) -> None:
    (ws / "f").unlink()
    (ws / "d/g").unlink()
    (ws / "d").rmdir()
    (ws / "n").write_text("in the way")
    refused = await run(call)
    assert not refused.success
    (ws / "n").unlink()
    (ws / "d").mkdir()
    (ws / "d/g").write_bytes(b"g")
    (ws / "f").write_bytes(b"a\n")
    assert (await run(call)).success
    assert files(ws) == CALLS[call][2]


DYING = """
import asyncio, json, os, sys
from pathlib import Path
from forge_tools.model import ExecutionContext
from forge_tools.model.scope import CallScope
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools.file import delete, edit, write
ws, tool, step, arguments = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
calls = 0
def dying(real):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), 9)
        return real(*arguments, **options)
    return call
REACH.set(Reach(root=Path(ws)))
tool = {"Edit": edit.Edit, "Write": write.Write, "Delete": delete.Delete}[tool]()
for name in ("mkdir", "fsync", "rename", "unlink", "rmdir", "fchmod", "write"):
    setattr(os, name, dying(getattr(os, name)))
context = ExecutionContext(working_dir=".").within(CallScope(execution_id="0197"))
print(asyncio.run(tool.execute(context, **arguments)).success)
"""


async def test_a_worker_that_is_killed_at_any_step_has_done_it_or_not(
    ws: Path, call: str, write: Callable[[str, bytes], Path]
) -> None:
    deaths = 0
    for step in range(1, 30):
        shutil.rmtree(ws)
        ws.mkdir()
        fill(write)
        words = ["-c", DYING, str(ws), CALLS[call][0].name, str(step), json.dumps(arguments(call))]
        done = warm_worker().run(words, cwd=ROOT, env=os.environ)
        again = await run(call)
        assert again.success, (step, again.error, os.listdir(ws))
        assert files(ws) == CALLS[call][2], step
        if "True" in done.stdout:
            break
        deaths += 1
    assert "True" in done.stdout, done.stderr
    assert deaths >= 3
