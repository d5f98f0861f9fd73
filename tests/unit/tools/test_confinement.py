"""Every file tool and every hostile path: nothing outside is read, listed, made, changed, deleted or hinted at."""

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths import confinement
from forge_tools.tool.base import BaseTool
from forge_tools.tools.file.delete import Delete
from forge_tools.tools.file.edit import Edit
from forge_tools.tools.file.glob import Glob
from forge_tools.tools.file.grep import Grep
from forge_tools.tools.file.list_directory import ListDirectory
from forge_tools.tools.file.read import Read
from forge_tools.tools.file.write import Write
from tests.waiting import within

Call = Callable[..., Awaitable[ToolResult]]

CANARY = "canary-7f3a"
TOOLS: list[tuple[type[BaseTool], dict[str, Any]]] = [
    (Read, {}),
    (Write, {"content": "harm"}),
    (Edit, {"old_string": CANARY, "new_string": "harm"}),
    (Edit, {"old_string": "", "new_string": "harm"}),
    (Delete, {"recursive": True}),
    (Delete, {"recursive": True, "missing_ok": True}),
    (ListDirectory, {"depth": 10}),
    (Glob, {"pattern": "**"}),
    (Grep, {"pattern": "."}),
    (Grep, {"pattern": ".", "output_mode": "content", "respect_ignore": False}),
]
LOOK_INTO_FOLDERS = (ListDirectory, Glob, Grep)
OUTSIDE = [
    "..", "../", "../..", "../../../../../../etc/passwd", "../evil", "../evil/", "../evil/file", "../evil/new", "../evil/new/er",
    "../ws-evil", "../ws-evil/file", "../no-such", "../no/such", "d/../../evil/file", "d/./../../evil/new", "d//..//..//evil/file",
    "/", "//", "/etc", "/etc/passwd", "//etc/passwd", "/./etc/passwd", "/proc/self/root/etc/passwd", "/proc/self/environ",
    "/proc/1/root", "/proc/self/cwd", "/proc/self/fd/0", "/dev/zero", "/dev/stdin", "/dev/null", "/tmp", "/no/such", "{ws}/../evil/file",
    "{ws}/../evil/new", "{ws}-evil/file", "{ws}/../ws-evil/file", "{ws}/d/../../evil/file", "{parent}", "{parent}/evil/file",
    "dir-out", "dir-out/", "dir-out/file", "dir-out/new", "dir-out/new/er", "dir-absolute/file", "dir-absolute/new", "file-out",
    "file-absolute", "chain", "chain/file", "dangling-out", "dangling-absolute", "root/etc/passwd", "root/proc/self/root/etc", "magic",
    "magic/file", "d/up/evil/file", "d/up/up", "inside/../../evil/file", "dir-out/../ws/f", "dir-out/../evil/file", "zero", "tmp/x",
]  # fmt: skip
ODD = ["", "\0", "a\0b", "x" * 256, "y/" * 2500, "\ud800", "circle", "circle/x", "f/", "f/.", "f/x", "f/../f", "d/..", ".", "./", "F",
       "f ", "f.", " f", "fifo", "socket", "~", "~/x", "$HOME", "file:///etc/passwd", "C:\\x", "..\\evil\\file", "d/\u2025/evil",
       "．．/evil/file", "hard"]  # fmt: skip


@pytest.fixture(params=["kernel", "walk"])
def place(request: pytest.FixtureRequest, ws: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with every way out, confined by the kernel or step by step."""
    if request.param == "walk":
        monkeypatch.setattr(confinement, "kernel_confines", lambda: False)
    parent = ws.parent
    for name in ("evil", "ws-evil"):
        (parent / name).mkdir()
        (parent / name / "file").write_text(CANARY)
    (ws / "d").mkdir()
    (ws / "f").write_text("inside")
    links = {
        "dir-out": "../evil", "dir-absolute": f"{parent}/evil", "file-out": "../evil/file", "file-absolute": f"{parent}/evil/file",
        "chain": "dir-out", "dangling-out": "../evil/new", "dangling-absolute": f"{parent}/evil/new", "root": "/", "d/up": "../..",
        "magic": "/proc/self/cwd", "inside": "d", "circle": "circle", "zero": "/dev/zero", "tmp": "/tmp",
    }  # fmt: skip
    for name, target in links.items():
        (ws / name).symlink_to(target)
    os.mkfifo(ws / "fifo")
    os.link(ws / "f", ws / "hard")
    return ws


def outside(ws: Path) -> list[tuple[str, bytes]]:
    files = [path for path in ws.parent.rglob("*") if path.is_file() and not path.is_relative_to(ws)]
    return sorted((str(path), path.read_bytes()) for path in files)


@pytest.mark.parametrize("is_dry", [False, True], ids=["real", "dry"])
@pytest.mark.parametrize(("tool", "options"), TOOLS, ids=lambda value: getattr(value, "name", None))
async def test_nothing_outside_is_touched_or_told_of(
    place: Path, caller: Callable[[BaseTool], Call], tool: type[BaseTool], options: dict[str, Any], is_dry: bool
) -> None:
    call, before = caller(tool()), outside(place)
    name = "path" if tool in LOOK_INTO_FOLDERS else "file_path"
    for pattern in OUTSIDE:
        path = pattern.format(ws=place, parent=place.parent)
        if tool is Delete and (place / path.rstrip("/")).is_symlink():
            continue  # the link itself lies inside, and it is what would be deleted
        result = await call({"dry_run": is_dry}, **{name: path}, **options)
        told = f"{result.output}{result.error}{result.error_details}{result.metadata}"
        assert CANARY not in told, path
        assert not result.success, path
        assert result.error_code in {"PATH_OUTSIDE_WORKSPACE", "PATH_PROTECTED"}, (path, result.error)
        said = result.error.removeprefix("Path is outside the workspace: ").partition(" is the workspace itself")[0]
        assert os.path.normpath(place / said) == os.path.normpath(place / path), (path, result.error)
    assert outside(place) == before


@pytest.mark.parametrize(("tool", "options"), TOOLS, ids=lambda value: getattr(value, "name", None))
async def test_odd_paths_are_refused_or_meant_as_they_stand(
    place: Path, caller: Callable[[BaseTool], Call], tool: type[BaseTool], options: dict[str, Any]
) -> None:
    call, before = caller(tool()), outside(place)
    name = "path" if tool in LOOK_INTO_FOLDERS else "file_path"
    for path in ODD:
        result = await call(**{name: path}, **options)
        assert CANARY not in f"{result.output}{result.error}"
        assert result.success or not result.error.startswith("Unexpected"), (path, result.error)
        assert result.success or str(place) not in result.error, (path, result.error)
    assert outside(place) == before


async def test_links_and_fifos_that_come_and_go_lead_no_tool_out(
    place: Path, caller: Callable[[BaseTool], Call]
) -> None:
    calls, before, stop = (
        [(caller(tool()), tool, options) for tool, options in TOOLS],
        outside(place),
        threading.Event(),
    )
    (place / "d/file").write_text("inside")
    (place / "flip").symlink_to("d")  # or a tool that is first makes a folder of that name

    def flip() -> None:
        time_left = within(60, "nobody stops the swaps")
        while not stop.is_set() and next(time_left):
            (place / "next").symlink_to(random.choice(("../evil", "d", "d", f"{place.parent}/evil")))
            (place / "next").replace(place / "flip")
            os.mkfifo(place / "pipe")
            (place / "pipe").replace(place / f"d/{random.choice(('file', 'new'))}")

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(40):
            for call, tool, options in calls:
                path = (
                    {"path": "flip"}
                    if tool in LOOK_INTO_FOLDERS
                    else {"file_path": random.choice(("flip/file", "flip/new"))}
                )
                result = await asyncio.wait_for(call(**path, **options), 20)
                assert CANARY not in f"{result.output}{result.error}"
                assert result.success or not result.error.startswith("Unexpected"), result.error
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
    assert outside(place) == before
