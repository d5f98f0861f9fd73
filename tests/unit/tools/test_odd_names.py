"""What any tool prints as a path, every tool takes as one, and finds the same file."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tools.model import ExecutionContext
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.paths.refusals import MAX_NAME_BYTES, Protection, escape_path, unescape_path
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tool.base import BaseTool
from forge_tools.tools.execution.bash import Bash
from forge_tools.tools.file.delete import Delete
from forge_tools.tools.file.edit import Edit
from forge_tools.tools.file.glob import Glob
from forge_tools.tools.file.grep import Grep
from forge_tools.tools.file.list_directory import ListDirectory
from forge_tools.tools.file.read import Read
from forge_tools.tools.file.write import Write
from tests.unit.tools.conftest import Call

PIECES = [
    "\\",
    "n",
    "x",
    "0",
    "a",
    "e",
    "u",
    "U",
    "é",
    "\n",
    "\t",
    "\x01",
    "\x7f",
    "\x85",
    "\xa0",
    "\u202e",
    "\U000e0001",
    "\udcff",
    "\udc80",
    " ",
    ":",
    "-",
]
NAMES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join)


def run(tool: BaseTool, **parameters: Any) -> Any:
    result = asyncio.run(tool.execute(ExecutionContext(working_dir=".", max_output_size=100_000), **parameters))
    assert result.success, result.error
    return result


def printed_names() -> list[list[str]]:
    """The files of the workspace, as each tool prints their paths."""
    entries = run(ListDirectory(), path=".", depth=2).metadata["entries"]
    return [
        run(Glob(), pattern="**").output.splitlines(),
        run(Grep(), pattern="file").output.splitlines(),
        [entry["path"] for entry in entries if entry["type"] == "file"],
    ]


@given(NAMES)
def test_a_name_is_printed_so_that_it_is_read_back(name: str) -> None:
    assert escape_path(name).isprintable()
    assert unescape_path(escape_path(name)) == name


@settings(max_examples=40)
@given(folder=NAMES, names=st.lists(NAMES, min_size=1, max_size=5, unique_by=os.fsencode))
def test_what_any_tool_prints_every_tool_opens(folder: str, names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        token = REACH.set(Reach(root=Path(root)))
        try:
            contents = make_files(Path(root, folder), names)
            for paths in printed_names():
                assert {run(Read(), file_path=path, line_numbers=False).output for path in paths} == contents
            for path in paths:
                run(Edit(), file_path=path, old_string="file", new_string="edited")
                run(Delete(), file_path=path)
            assert not os.listdir(Path(root, folder))
        finally:
            REACH.reset(token)


def make_files(folder: Path, names: list[str]) -> set[str]:
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_text(f"file {number}")
    return {f"file {number}" for number in range(len(names))}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain name", "plain name"),
        ("naïve 日本.txt", "naïve 日本.txt"),
        (r"C:\dir\file", r"C:\dir\file"),
        (r"\x41 \u0041 \xFF \.", r"\x41 \u0041 \xFF \."),
        (r"C:\new", r"C:\\new"),
        (r"\xff", r"\\xff"),
        (r"\\srv", r"\\\srv"),
        ("\udcff \x85 \u202e", r"\xff \u0085 \u202e"),
        ("\\\n", r"\\\n"),
    ],
)
def test_a_name_is_escaped_only_where_it_would_be_misread(name: str, shown: str) -> None:
    assert escape_path(name) == shown
    assert unescape_path(shown) == name


async def test_every_path_parameter_takes_a_folder_as_it_is_printed(
    ws: Path, caller: Callable[[BaseTool], Call]
) -> None:
    folder = ws / "new\nline\udcff"
    folder.mkdir()
    printed = (await caller(ListDirectory())()).metadata["entries"][0]["path"]
    await caller(Write())(file_path=f"{printed}/f", content="needle")
    assert (folder / "f").read_text() == "needle"
    assert (await caller(ListDirectory())(path=printed)).metadata["total_entries"] == 1
    assert (await caller(Glob())(pattern="*", path=f"{ws}/{printed}")).output == f"{printed}/f"
    assert (await caller(Grep())(pattern="needle", path=printed)).output == f"{printed}/f"
    ran = await caller(Bash())(command="cat f", cwd=printed)
    assert (ran.output, ran.metadata["cwd"]) == ("needle", printed)


async def test_the_longest_path_is_taken_as_it_is_printed(ws: Path, caller: Callable[[BaseTool], Call]) -> None:
    folder = "/".join(["\udcff" * MAX_NAME_BYTES] * 12)
    (ws / folder).mkdir(parents=True)
    assert (await caller(ListDirectory())(path=escape_path(folder))).metadata["total_entries"] == 0


async def test_a_protected_name_stays_protected_however_it_is_written(
    ws: Path, caller: Callable[[BaseTool], Call]
) -> None:
    (ws / "é").write_text("hidden")
    root = Root(ws, protection=Protection(secrets=["é"]))
    token = REACH.set(Reach(root=[root]))
    refused = [await caller(Read())(file_path=path) for path in ("é", r"\xc3\xa9", "\udcc3\udca9")]
    REACH.reset(token)
    assert [one.error_code for one in refused] == ["PATH_PROTECTED"] * 3
