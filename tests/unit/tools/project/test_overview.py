"""ProjectOverview: sections within one budget, and a repository read without running git."""

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.tools.project.overview import shared
from tests.unit.tools.repositories import ENVIRONMENT, git

Call = Callable[..., Awaitable[ToolResult]]
Fill = Callable[[dict[str, str | bytes]], None]
AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@b")


async def test_a_project_is_told_section_by_section(project: Fill, overview: Call) -> None:
    project({
        "README.md": "# Title\n\nWhat it is.\n", "src/core.py": "class Engine:\n    pass\n", "src/use.py": "Engine()\n",
        "tests/test_core.py": "def test_x(): ...\n", "pyproject.toml": '[project]\ndependencies = ["flask"]\n',
    })  # fmt: skip
    told = (await overview()).output
    assert told.startswith("## Readme\n[README.md:1; certain]\n# Title\nWhat it is.\n## Type\n")
    assert "- src/: sources (2 files, 32 bytes) [src/core.py:1; guess]" in told
    assert "- Engine (named in 2 files) [src/core.py:1; likely]" in told
    assert "- 1 test file [tests/test_core.py:1; likely]" in told
    assert "- flask [pyproject.toml:2; certain]" in told
    assert "- 5 files, 106 bytes, without ignored files" in told
    assert (await overview(sections=["size"])).output.startswith("## Size\n")
    assert (await overview(sections=["sizes"])).error_code == "VALIDATION_ERROR"


async def test_the_budget_holds_whatever_there_is(project: Fill, overview: Call) -> None:
    project({f"folder{number:03}/file{number}.py": f"def name{number}(): ...\n" for number in range(300)})
    project({"README.md": "word \n" * 200_000})
    for limit in (500, 2000, 12_000):
        seen = await overview(max_chars=limit)
        assert len(seen.output) <= limit
        assert "layout" in seen.metadata["next"]["sections"]
        assert "## Size\n- 301 files" in seen.output


@pytest.mark.parametrize("budget", [100, 130, 200, 500])
def test_what_a_short_section_leaves_goes_to_the_long_ones(budget: int) -> None:
    text, cut = shared({"a": ["short"], "b": ["long line"] * 30, "c": ["other"] * 3}, budget)
    assert len(text) <= budget
    assert "short" in text
    assert cut == (["b"] if budget < 400 else [])


async def test_git_is_read_and_never_run(project: Fill, overview: Call, ws: Path) -> None:
    project({"a.txt": "x\n", "README": b"caf\xe9\n"})
    git(ws, "init", "-q", "-b", "trunk")
    assert "no commit yet" in (await overview(sections=["git"])).output
    git(ws, "add", ".")
    git(ws, *AUTHOR, "commit", "-qm", "First thing")
    head = git(ws, "rev-parse", "HEAD").decode().strip()
    trap = ws.parent / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {ws.parent}/ran\n")
    trap.chmod(0o755)
    for setting in ("core.fsmonitor", "core.pager", "diff.external", "core.sshCommand", "diff.x.textconv"):
        git(ws, "config", setting, str(trap))
    told = (await overview(sections=["git", "readme"])).output
    assert "- branch trunk [.git/HEAD:1; certain]" in told
    assert f"- last commit {head[:12]} " in told
    assert "commit (initial): First thing [.git/logs/HEAD:1; likely]" in told
    assert "café" in told
    assert not (ws.parent / "ran").exists()
    subprocess.run(["git", "status"], cwd=ws, env=ENVIRONMENT, check=False, capture_output=True)
    assert (ws.parent / "ran").exists(), "the trap catches nothing"


async def test_repositories_of_every_form(project: Fill, overview: Call, ws: Path) -> None:
    assert (await overview(sections=["git"])).output == ""
    project({"a.txt": "x\n"})
    git(ws, "init", "-q", "-b", "trunk")
    git(ws, "add", ".")
    git(ws, *AUTHOR, "commit", "-qm", "one")
    git(ws, "pack-refs", "--all")
    head = git(ws, "rev-parse", "HEAD").decode()[:12]
    assert f"last commit {head}" in (await overview(sections=["git"])).output
    git(ws, "checkout", "-q", "--detach")
    assert "detached head" in (await overview(sections=["git"])).output
    git(ws, "clone", "-q", "--bare", ".", "bare")
    assert "a bare repository" in (await overview(path="bare", sections=["git"])).output
    git(ws, "worktree", "add", "-q", "tree")
    assert "worktree or submodule" in (await overview(path="tree", sections=["git"])).output


async def test_what_a_repository_says_is_not_believed(project: Fill, overview: Call, ws: Path) -> None:
    project({".git/HEAD": "ref: refs/../../../secret\n", ".git/logs/HEAD": b"\xff" * 1000})
    assert "hit outside" not in (await overview(sections=["git"])).output
    (ws / "README.md").symlink_to("../secret")
    assert "hit outside" not in (await overview()).output
