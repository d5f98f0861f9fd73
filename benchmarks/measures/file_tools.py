"""Read, Write, Edit and ListDirectory beside the same done in plain Python, and what the confinement of an open costs."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.agent import Agent
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.pairs import MICROSECONDS, Work, by_turns, on_loop
from benchmarks.scene import Scene
from forge_tools.sandbox.paths.workspace import Workspace

LINE = b"x" * 490 + b" needle y\n"
SMALL = b"one line of text\n" * 60
OPENS = 500


def files(scene: Scene) -> Readings:
    """Run everything in turns, each tool with its plain equivalent."""
    folder = scene.folder / "file-tools"
    folder.mkdir(exist_ok=True)
    (folder / "read").write_bytes(b"a line of an ordinary length, with words in it\n" * 200)
    agent = Agent(folder)
    number = iter(range(1 << 30))

    def ours(tool: str, arguments: Callable[[], dict[str, Any]]) -> Work:
        async def run() -> None:
            await agent.call(tool, **arguments())

        return run

    works = {
        "read": ours("Read", lambda: {"file_path": "read"}),
        "plain_read": on_loop(lambda: (folder / "read").read_text().split("\n")),
        "write": ours("Write", lambda: {"file_path": "write", "content": f"{next(number)}\n{SMALL.decode()}"}),
        "plain_write": on_loop(lambda: _replace(folder / "plain", b"%d\n" % next(number) + SMALL)),
        "edit": ours("Edit", _turned(folder / "edit")),
        "plain_edit": on_loop(lambda: _edit(folder / "plain-edit")),
    }
    for name in ("edit", "plain-edit"):
        (folder / name).write_bytes(b"first\n" + SMALL)
    readings = asyncio.run(by_turns(works, scene.sizes.tool_calls))
    readings |= asyncio.run(_many_replacements(folder, scene, ours))
    readings |= asyncio.run(_listing(folder / "listed", scene))
    return readings | _confinement(folder, scene)


async def _many_replacements(
    folder: Path, scene: Scene, ours: Callable[[str, Callable[[], dict[str, Any]]], Work]
) -> dict[str, float]:
    """The word is replaced back and forth, so that each turn has as much to do as the one before."""
    words = [b"needle", b"thread!"]
    for name in ("large", "plain-large"):
        (folder / name).write_bytes(LINE * scene.sizes.replacements)
    turns = {"large": 0, "plain-large": 0}

    def pair(name: str) -> tuple[bytes, bytes]:
        turns[name] += 1
        return (words[0], words[1]) if turns[name] % 2 else (words[1], words[0])

    def arguments() -> dict[str, Any]:
        old, new = pair("large")
        return {"file_path": "large", "old_string": old.decode(), "new_string": new.decode(), "replace_all": True}

    def plain() -> None:
        old, new = pair("plain-large")
        _replace(folder / "plain-large", (folder / "plain-large").read_bytes().replace(old, new))

    return await by_turns({"large": ours("Edit", arguments), "plain_large": on_loop(plain)}, 4)


async def _listing(folder: Path, scene: Scene) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    for number in range(scene.sizes.listed):
        (folder / f"file-{number:05}.txt").touch()
    agent = Agent(folder, max_output_size=5_000_000)

    async def ours() -> None:
        await agent.call("ListDirectory", limit=10_000)

    def plain() -> None:
        with os.scandir(folder) as entries:
            sorted((entry.name, entry.stat().st_size) for entry in entries)

    return await by_turns({"list": ours, "plain_list": on_loop(plain)}, scene.sizes.tool_pairs)


def _confinement(folder: Path, scene: Scene) -> dict[str, float]:
    """Open hundreds of times per turn: one takes less time than reading the clock."""
    workspace, flags = Workspace(folder), os.O_RDONLY | os.O_CLOEXEC
    with workspace.open_root() as home:
        root = home.root
    plain = os.fspath(folder / "read")

    def confined() -> None:
        for _ in range(OPENS):
            root.open_to_read("read", "read").close()

    def bare() -> None:
        for _ in range(OPENS):
            os.close(os.open(plain, flags))

    took = asyncio.run(
        by_turns({"confined": on_loop(confined), "bare": on_loop(bare)}, scene.sizes.tool_pairs, MICROSECONDS)
    )
    return {"confinement": (took["confined"] - took["bare"]) / OPENS, "bare_open": took["bare"] / OPENS}


def _turned(path: Path) -> Callable[[], dict[str, Any]]:
    def arguments() -> dict[str, Any]:
        old, new = ("first", "second") if path.read_bytes().startswith(b"first") else ("second", "first")
        return {"file_path": path.name, "old_string": old, "new_string": new}

    return arguments


def _edit(path: Path) -> None:
    data = path.read_bytes()
    old, new = (b"first", b"second") if data.startswith(b"first") else (b"second", b"first")
    _replace(path, data.replace(old, new))


def _replace(path: Path, data: bytes) -> None:
    """Do what a careful script does: write and sync a file beside it, rename it, and sync the folder too."""
    beside = path.with_suffix(".tmp")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):
        os.fsync(folder)
    os.close(folder)


def _row(title: str, key: str, raw: str | None, bar: Bar | None, unit: str = "ms") -> Row:
    return Row(title=title, unit=unit, key=key, ours="ours", raw="ours" if raw else None, raw_key=raw, bar=bar)


MEASURE = Measure(
    name="tools-files",
    sides={"ours": files},
    rows=[
        _row("Read 200 lines", "read", "plain_read", Bar("value", "at most", 0.4)),
        _row("Write 1 KB, durable (the same by hand)", "write", "plain_write", None),
        _row("Edit a small file, durable (the same by hand)", "edit", "plain_edit", None),
        _row("Edit, {replacements:,} replacements, 500 B apart (bytes.replace, durable)", "large", "plain_large",
             Bar("ratio", "at most", 2)),
        _row("ListDirectory, {listed:,} entries (scandir and stat)", "list", "plain_list", Bar("ratio", "at most", 2)),
        _row("confinement of an open, beyond os.open", "confinement", None, Bar("value", "at most", 5), "us"),
    ],
)  # fmt: skip
