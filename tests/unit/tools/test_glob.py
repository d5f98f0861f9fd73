"""Glob on real files: what is found, in which order, and the message when nothing is."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.paths.refusals import unescape_path
from forge_tools.tools.file.glob import Glob
from forge_tools.tools.file.grep import Grep
from tests.descriptors import descriptors
from tests.unit.tools.repositories import listed_by_git, make_repository
from tests.waiting import reached, within

Call = Callable[..., Awaitable[ToolResult]]
Write = Callable[[str, bytes], Path]


@pytest.fixture
def glob(caller: Callable[[Glob], Call]) -> Call:
    return caller(Glob())


@pytest.fixture
def tree(write: Write, ws: Path) -> Path:
    names = (
        "a.py", "B.PY", "src/b.py", "src/deep/c.ts", "src/deep/er/d.tsx", ".hidden/h.py", "gen_x.py", "build/o.py", "x.log",
        "keep.log", "app/[id]/page.tsx", "sp ace/{y}.md", "-n", "node_modules/m/index.js",
    )  # fmt: skip
    for name in names:
        write(name, b"")
    write(".gitignore", b"gen_*\nbuild/\n*.log\n!keep.log\nnode_modules\n")
    write(".git/config", b"")
    (ws / "link.py").symlink_to("a.py")
    (ws / "out").symlink_to("..")
    return ws


def lines(result: ToolResult) -> list[str]:
    assert result.success, result.error
    return result.output.split("\n")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "*.py"}, ["a.py", "link.py"]),
        ({"pattern": "**/*.py"}, [".hidden/h.py", "a.py", "link.py", "src/b.py"]),
        ({"pattern": "**/**/*.py", "hidden": False}, ["a.py", "link.py", "src/b.py"]),
        ({"pattern": "src/**"}, ["src/b.py", "src/deep/c.ts", "src/deep/er/d.tsx"]),
        ({"pattern": "./src/*.py"}, ["src/b.py"]),
        ({"pattern": "src/**/*.{ts,tsx}"}, ["src/deep/c.ts", "src/deep/er/d.tsx"]),
        ({"pattern": "{src,app}/**/{c,page}.*"}, ["app/[id]/page.tsx", "src/deep/c.ts"]),
        ({"pattern": "app/[id]/page.tsx"}, ["app/[id]/page.tsx"]),
        ({"pattern": "app/\\[id\\]/*"}, ["app/[id]/page.tsx"]),
        ({"pattern": "sp ace/*"}, ["sp ace/{y}.md"]),
        ({"pattern": "sp ace/{y}.md"}, ["sp ace/{y}.md"]),
        ({"pattern": "-*"}, ["-n"]),
        ({"pattern": "*.log"}, ["keep.log"]),
        ({"pattern": "*.log", "respect_ignore": False}, ["keep.log", "x.log"]),
        ({"pattern": "*.py", "case_sensitive": False}, ["B.PY", "a.py", "link.py"]),
        ({"pattern": "*", "path": "build"}, ["build/o.py"]),
        ({"pattern": "src/*", "type": "directory"}, ["src/deep"]),
        ({"pattern": "**", "type": "directory", "path": "src"}, ["src/deep", "src/deep/er"]),
        ({"pattern": "src/*", "type": "any"}, ["src/b.py", "src/deep"]),
        ({"pattern": "**/*.{py,tsx}", "exclude": ["/src", "{h,link}.*"]}, ["a.py", "app/[id]/page.tsx"]),
        ({"pattern": "out/*"}, []),
        ({"pattern": ".git/**", "respect_ignore": False}, []),
    ],
)
async def test_what_matches_is_found(glob: Call, tree: Path, arguments: dict, found: list[str]) -> None:
    result = await glob(**arguments)
    assert [line for line in lines(result) if not line.startswith("No ")] == found
    assert result.metadata["total_records"] == len(found)


async def test_everything_is_what_git_lists(glob: Call, ws: Path) -> None:
    make_repository(ws, 7)
    shown = map(unescape_path, lines(await glob(pattern="**")))
    assert sorted(shown) == listed_by_git(ws)


async def test_pages_follow_one_another_and_say_how_many_there_are(glob: Call, write: Write) -> None:
    for number in range(25):
        write(f"d{number % 3}/{number:02}", b"")
    got, arguments = [], {"offset": 0}
    time_left = within(60, "the pages do not end")
    while arguments is not None and next(time_left):
        result = await glob(pattern="**", limit=4, **arguments)
        got += [line for line in lines(result) if not line.startswith("[")]
        assert result.metadata["total_records"] == 25
        arguments = result.metadata.get("next")
    assert got == sorted(f"d{number % 3}/{number:02}" for number in range(25))
    assert lines(await glob(pattern="**", limit=4))[-1] == "[1-4 of 25 files; continue with offset=4]"
    assert lines(await glob(pattern="**", offset=30)) == ["[nothing after offset 30: there are 25 files]"]


async def test_names_are_in_the_order_of_a_walk_on_every_host(glob: Call, write: Write) -> None:
    for name in ("a/z", "a-b", "a.py", "a0/x", "A", "é", "~"):
        write(name, b"")
    assert lines(await glob(pattern="**")) == ["A", "a/z", "a-b", "a.py", "a0/x", "~", "é"]


async def test_the_newest_comes_first_where_asked(glob: Call, write: Write) -> None:
    for age, name in enumerate(("new", "d/newer", "old")):
        os.utime(write(name, b""), ns=(0, 10**18 - [1, 0, 2][age]))
    assert lines(await glob(pattern="**", sort="mtime")) == ["d/newer", "new", "old"]
    assert lines(await glob(pattern="**", sort="mtime", limit=1))[0] == "d/newer"


async def test_the_budget_cuts_between_paths(glob: Call, write: Write) -> None:
    for number in range(100):
        write(f"file-{number:03}", b"")
    result = await glob({"max_output_size": 400}, pattern="*")
    assert len(result.output) <= 400
    assert result.metadata["next"] == {"offset": len(lines(result)) - 1}


async def test_nothing_found_says_what_would_find_something(
    glob: Call, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.tools.file.glob.HINT_SECONDS", 30.0)  # how busy this machine is does not matter
    for pattern, said in (
        ("c.ts", "No files match 'c.ts' in the working directory. '**/c.ts' would match 1 file."),
        ("gen_*", "1 file hidden by ignore rules (respect_ignore=false shows them)."),
        ("SRC/*", "case_sensitive=false would match 1 file."),
        ("src", "type=directory would match 1 folder."),
    ):
        assert said in (await glob(pattern=pattern)).output
    assert lines(await glob(pattern="nowhere", path="src")) == ["No files match 'nowhere' in src."]


async def test_a_hint_may_hold_braces(glob: Call, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.tools.file.glob.HINT_SECONDS", 30.0)  # how busy this machine is does not matter
    (tree / "deep").mkdir()
    (tree / "deep/only.qq").touch()
    assert "'**/*.{qq,zz}' would match 1 file." in (await glob(pattern="*.{qq,zz}")).output


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ({"pattern": "[ab"}, "INVALID_GLOB", "unclosed '[' at position 1"),
        ({"pattern": "{a"}, "INVALID_GLOB", "unclosed '{' at position 1"),
        ({"pattern": "[z-a]"}, "INVALID_GLOB", "bad character range"),
        ({"pattern": "../*"}, "INVALID_GLOB", "Pass the folder to start from as path"),
        ({"pattern": "!*.py"}, "INVALID_GLOB", "as exclude"),
        ({"pattern": "./"}, "INVALID_GLOB", "names nothing"),
        ({"pattern": "a\nb"}, "INVALID_GLOB", "cannot contain a line break"),
        ({"pattern": "a\0b"}, "VALIDATION_ERROR", "NUL character"),
        ({"pattern": "*", "exclude": ["\ud800"]}, "VALIDATION_ERROR", "surrogate"),
        ({"pattern": "*", "exclude": ["x"] * 51}, "VALIDATION_ERROR", "the limit is 50"),
        ({"pattern": "*", "path": "a.py"}, "NOT_A_DIRECTORY", "a.py is a file"),
        ({"pattern": "*", "path": "out"}, "PATH_OUTSIDE_WORKSPACE", "outside the workspace: out"),
        ({"pattern": "/etc/*"}, "PATH_OUTSIDE_WORKSPACE", "outside the workspace: /etc"),
        ({"pattern": "*", "path": "nope"}, "FILE_NOT_FOUND", "File not found: nope"),
        ({"pattern": "*", "glob": "x"}, "VALIDATION_ERROR", "Unknown parameter"),
    ],
)
async def test_what_cannot_be_found_is_said(glob: Call, tree: Path, arguments: dict, code: str, says: str) -> None:
    result = await glob(**arguments)
    assert result.error_code == code
    assert says in result.error


async def test_an_absolute_pattern_is_taken_inside_the_workspace(glob: Call, tree: Path) -> None:
    assert lines(await glob(pattern=f"{tree}/src/**/*.ts")) == ["src/deep/c.ts"]
    assert lines(await glob(pattern=f"{tree}/src/b.py")) == ["src/b.py"]


async def test_paths_are_relative_to_the_working_directory(glob: Call, tree: Path) -> None:
    assert lines(await glob({"working_dir": "src/deep"}, pattern="*")) == ["c.ts"]
    assert lines(await glob({"working_dir": "src/deep"}, pattern="*.py", path="..")) == ["../b.py"]


async def test_odd_names_are_shown_on_one_line(glob: Call, write: Write) -> None:
    for name in ("bad\udcff.txt", "new\nline.txt", "e\u0301.txt"):
        write(name, b"")
    assert lines(await glob(pattern="*.txt")) == ["bad\\xff.txt", "e\u0301.txt", "new\\nline.txt"]


async def test_a_search_that_takes_too_long_answers_with_what_it_has(glob: Call, ws: Path) -> None:
    for number in range(3000):
        (ws / f"{number:04}").mkdir()
    result = await glob({"timeout": 0.02}, pattern="**", type="directory")
    assert result.metadata.get("partial") or result.error_code == "TIMEOUT"
    if result.success:
        assert "stopped early" in result.output
        assert "total_records" not in result.metadata


async def test_folders_that_vanish_meanwhile_harm_nothing(glob: Call, ws: Path) -> None:
    for number in range(200):
        (ws / f"d{number}/e").mkdir(parents=True)
    stop = asyncio.Event()

    async def flip() -> None:
        time_left = within(60, "nobody stops the swaps")
        while not stop.is_set() and next(time_left):
            for number in range(200):
                (ws / f"d{number}/e").rename(ws / f"e{number}")
                (ws / f"e{number}").rename(ws / f"d{number}/e")
            await asyncio.sleep(0)

    flipping = asyncio.create_task(flip())
    results = [await glob(pattern="**", type="directory") for _ in range(20)]
    stop.set()
    await flipping
    assert all(result.success and "d0" in lines(result) for result in results)


async def test_dry_run_finds(glob: Call, tree: Path) -> None:
    assert lines(await glob({"dry_run": True}, pattern="src/*")) == ["[Dry Run] src/b.py"]


async def test_nothing_stays_open(glob: Call, caller: Callable[..., Call], tree: Path) -> None:
    grep = caller(Grep())
    calls = [lambda: glob(pattern="**"), lambda: glob(pattern="nowhere"), lambda: grep(pattern="x", path="a.py"),
             lambda: grep(pattern="x"), lambda: grep(pattern="x", path="src", respect_ignore=False)]  # fmt: skip
    for call in calls:  # what a first call opens for all later ones, the launcher's socket for one
        await call()
    before = descriptors()
    for call in calls * 3:
        assert (await call()).success
    # The thread that did the work may still be about to let go of its workspace.
    await reached(lambda: not descriptors() - before)
