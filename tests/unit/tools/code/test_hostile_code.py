"""The code tools on what may be made to harm them: endless parsing, huge trees, files in motion, an index that others use or spoil."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forge_tools import ExecutionContext
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools import CodebaseMap, FindReferences, SearchCode, SymbolInfo
from forge_tools.tools.builtin import Deadline
from forge_tools.tools.code import codebase
from forge_tools.tools.code.facts import facts_of
from tests.unit.tools.code.projects import write
from tests.waiting import wait_until

ENDLESS = "a<\n"
"""Each of these opens type arguments of Java once more: the time to parse grows with the square of their number."""

CHILD = """
import asyncio, sys
from pathlib import Path
from forge_tools import ExecutionContext
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools import CodebaseMap
from forge_tools.tools.code import codebase
codebase.SLOW_SECONDS = 0.1
REACH.set(Reach(cache=Path(sys.argv[1])))
result = asyncio.run(CodebaseMap().execute(ExecutionContext(working_dir=sys.argv[2], timeout=60)))
print(result.metadata["total"], result.metadata["index"]["parsed"])
"""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    token = REACH.set(Reach(cache=tmp_path / "cache"))
    yield tmp_path / "cache"
    REACH.reset(token)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


async def answer(tool: type[Any], folder: Path, timeout: float = 60, **options: Any) -> dict[str, Any]:
    result = await tool().execute(ExecutionContext(working_dir=str(folder), timeout=timeout), **options)
    assert result.success, result.error
    return {**result.metadata, "output": result.output}


def child(cache: Path, project: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, cache, project], stdout=subprocess.PIPE, text=True)


def settled(project: Path) -> None:
    """Let what was just written seem old, so that it is known again by what `fstat` says."""
    for path in project.rglob("*.*"):
        os.utime(path, ns=(1, 1))


async def test_what_takes_long_to_parse_is_parsed_once(
    cache: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codebase, "SLOW_SECONDS", 0.02)
    write(project, {"Bad.java": ENDLESS * 5000, "a.py": "def a(): ...\n"})

    first = await answer(CodebaseMap, project)
    second = await answer(FindReferences, project, symbol="a")

    skipped = {"Bad.java": "too slow to parse"}
    assert (first["index"]["skipped"], first["index"]["parsed"], first["total"]) == (skipped, 2, 1)
    assert (second["index"]["skipped"], second["index"]["parsed"]) == (skipped, 0)
    write(project, {"Bad.java": "class Good {}\n// " + "a" * 9000})
    assert (await answer(SearchCode, project, query="Good"))["total"] == 1


async def test_a_file_whose_parser_was_killed_is_not_parsed_again(cache: Path, project: Path) -> None:
    write(project, {"Bad.java": ENDLESS * 100_000, "a.py": "def a(): ...\n"})
    killed = child(cache, project)

    def since() -> float | None:
        if not (kept := next(cache.glob("code-*.db"), None)):
            return None
        with closing(sqlite3.connect(f"file:{kept}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT since FROM skipped").fetchall()
        return rows[0][0] if rows else None

    def is_begun() -> bool:
        try:
            return (begun := since()) is not None and begun < time.time()
        except sqlite3.OperationalError:  # its tables are just being made
            return False

    wait_until(is_begun, 30)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()

    after = await answer(SymbolInfo, project, symbol="a")
    assert after["index"]["skipped"] == {"Bad.java": "too slow to parse"}


async def test_fifty_thousand_files_are_answered_in_time_and_as_far_as_there_was_any(
    cache: Path, project: Path
) -> None:
    write(project, {"one.py": "def one(): ...\n"})
    settled(project)
    for number in range(50):
        (project / f"f{number}").mkdir()
        for other in range(1000):
            os.link(project / "one.py", project / f"f{number}/{other}.py")

    started = time.monotonic()
    some = await answer(SearchCode, project, timeout=1.5, query="one")

    assert time.monotonic() - started < 10
    assert some["index"]["partial"]
    assert "time ran out" in some["output"]
    assert 0 < some["index"]["files"] < 50_001
    assert some["index"]["parsed"] == 1


async def test_twenty_megabytes_on_a_line_are_not_even_read(cache: Path, project: Path) -> None:
    (project / "line.js").write_text("var a=1;" * 2_500_000)

    assert (await answer(SearchCode, project, query="a"))["index"]["skipped"] == {"line.js": "larger than 1 MiB"}


async def test_a_file_in_motion_is_read_as_it_was_at_some_moment_and_at_last_as_it_is(
    cache: Path, project: Path
) -> None:
    write(project, {"a.py": "def old(): ...\n"})
    is_over = threading.Event()

    def rewrite() -> None:
        for number in range(1_000_000):
            if is_over.is_set():
                return
            (project / "new").write_text(f"def name{number % 7}(): ...\n" * (number % 5 + 1))
            (project / "new").replace(project / "a.py")

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(20):
            seen = await answer(SearchCode, project, query="name", limit=10)
            assert len({hit["name"] for hit in seen["hits"]}) <= 1
    finally:
        is_over.set()
        writer.join()
    write(project, {"a.py": "def last(): ...\n"})
    assert (await answer(SearchCode, project, query="last"))["total"] == 1
    assert (await answer(SearchCode, project, query="name"))["total"] == 0


def test_a_file_that_changes_between_two_looks_is_parsed_again(cache: Path, project: Path) -> None:
    write(project, {"a.py": "x = 1\n" * 9, "b.py": "x = 1\n", "c.py": "x = 1\n"})
    workspace = Workspace(project)
    sources = codebase.read(workspace, ".", Deadline(60)).sources.values()

    write(project, {"a.py": 'y = """\nx\n"""\n', "c.py": "x = 1\n\0"})
    (project / "b.py").unlink()

    [(source, text)] = codebase.texts_of(workspace, sources)
    assert (source.path, text, source.facts) == ("a.py", 'y = """\nx\n"""\n', facts_of(text, source.language))
    assert source.facts.starts == (0,)


async def test_two_processes_build_one_index_and_a_third_one_finds_it(cache: Path, project: Path) -> None:
    write(project, {f"m{n}.py": f"def f{n}(): ...\n# " + "x" * 9000 for n in range(40)})
    settled(project)

    said = [one.communicate(timeout=60)[0].split() for one in [child(cache, project), child(cache, project)]]

    assert [total for total, _ in said] == ["40", "40"]
    third = await answer(CodebaseMap, project)
    assert (third["total"], third["index"]["parsed"], third["index"]["skipped"]) == (40, 0, {})


@pytest.mark.parametrize("damage", ["[1]", "[[[]], [], []]", "no json"])
async def test_facts_that_somebody_spoiled_are_worked_out_again(damage: str, cache: Path, project: Path) -> None:
    write(project, {"a.py": "def a(): ...\n"})
    await answer(SearchCode, project, query="a")
    with closing(sqlite3.connect(next(cache.glob("code-*.db")), isolation_level=None)) as connection:
        connection.execute("UPDATE facts SET facts = ?", [damage])

    again = await answer(SearchCode, project, query="a")
    assert (again["total"], again["index"]["parsed"]) == (1, 1)
    assert (await answer(SearchCode, project, query="a"))["index"]["parsed"] == 0
