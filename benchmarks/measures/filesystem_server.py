"""Read, Write, Edit and Glob beside the reference MCP filesystem server, call by call in turns.

The server is called over its standard input and output, the only way: by a few lines that write and read JSON, which is
as fast as possible, and for one row by the official client, which is what an agent in Python uses. Our tools are called through an
executor in the agent's process, which validates, limits and records each call. Read also counts and hashes the file, which the
server does not. Write and Edit lock the folder, look whether the file has changed, and wait for the disk twice, for the bytes and
for the name; the server writes beside the file and renames, without waiting.
"""

import asyncio
import os
from collections import Counter
from itertools import count
from pathlib import Path

from benchmarks.agent import Agent, without_the_disk
from benchmarks.corpus import make_corpus
from benchmarks.figures import Bar, LeftOutError, Measure, Readings, Row
from benchmarks.mcp_server import McpServer, install, running
from benchmarks.pairs import Work, by_turns
from benchmarks.scene import Scene

LINES = "a line of an ordinary length, with words in it\n" * 200
SEARCHES = 5


def beside(scene: Scene) -> Readings:
    return asyncio.run(_beside(scene))


def by_the_official_client(scene: Scene) -> Readings:
    try:
        from mcp import Client, StdioServerParameters  # an extra
        from mcp.client.stdio import stdio_client
    except ImportError:
        raise LeftOutError("its official client is not installed: pip install mcp") from None
    folder = scene.folder / "served"
    folder.mkdir(exist_ok=True)
    (folder / "read").write_text(LINES)
    agent, server = Agent(folder), StdioServerParameters(command="node", args=[str(install("filesystem")), str(folder)])

    async def run() -> Readings:
        with Path(os.devnull).open("w") as nowhere:  # it logs at each start that it runs
            async with Client(stdio_client(server, errlog=nowhere), mode="legacy") as client:
                works = {
                    "read": lambda: agent.call("Read", file_path="read"),
                    "their_read": lambda: client.call_tool("read_text_file", {"path": str(folder / "read")}),
                }
                return await by_turns(works, scene.sizes.tool_calls)

    return asyncio.run(run())


async def _beside(scene: Scene) -> Readings:
    corpus = make_corpus(scene.folder / "corpus", scene.sizes.corpus_files)
    folder = scene.folder / "served"
    folder.mkdir(exist_ok=True)
    (folder / "read").write_text(LINES)
    agent, searcher = Agent(folder), Agent(corpus, max_output_size=5_000_000)
    program = ["node", str(install("filesystem"))]
    async with running([*program, str(folder)]) as server, running([*program, str(corpus)]) as searching:
        works = {
            "read": lambda: agent.call("Read", file_path="read"),
            "their_read": lambda: server.call("read_text_file", path=str(folder / "read")),
            **_writes(agent, server, folder),
            **_edits(agent, server, folder),
        }
        readings = await by_turns(works, scene.sizes.tool_calls)
        searches = {
            "glob": lambda: searcher.call("Glob", pattern="**/*.py", limit=10_000),
            "their_glob": lambda: searching.call(
                "search_files", path=str(corpus), pattern="**/*.py", excludePatterns=["**/node_modules/**"]
            ),
        }
        return readings | await by_turns(searches, min(SEARCHES, scene.sizes.tool_pairs))


def _writes(agent: Agent, server: McpServer, folder: Path) -> dict[str, Work]:
    """Write another text each time, over the one before."""
    numbers = count()

    async def ours(name: str) -> None:
        await agent.call("Write", file_path=name, content=f"{next(numbers)}\n{'x' * 1000}")

    async def theirs() -> None:
        await server.call("write_file", path=str(folder / "theirs"), content=f"{next(numbers)}\n{'x' * 1000}")

    return {"write": lambda: ours("ours"), "write_unsynced": _unsynced(lambda: ours("unsynced")), "their_write": theirs}


def _edits(agent: Agent, server: McpServer, folder: Path) -> dict[str, Work]:
    """Change the first line and back again."""
    words = ("x" * 10, "y" * 10)
    turns = Counter[str]()
    for name in ("edited", "edited-unsynced", "their-edited"):
        (folder / name).write_text(f"{words[0]}\n{LINES}")

    def turned(name: str) -> tuple[str, str]:
        turns[name] += 1
        return words if turns[name] % 2 else (words[1], words[0])

    async def ours(name: str) -> None:
        old, new = turned(name)
        await agent.call("Edit", file_path=name, old_string=old, new_string=new)

    async def theirs() -> None:
        old, new = turned("their-edited")
        edits = [{"oldText": old, "newText": new}]
        await server.call("edit_file", path=str(folder / "their-edited"), edits=edits)

    unsynced = _unsynced(lambda: ours("edited-unsynced"))
    return {"edit": lambda: ours("edited"), "edit_unsynced": unsynced, "their_edit": theirs}


def _unsynced(work: Work) -> Work:
    async def run() -> None:
        with without_the_disk():
            await work()

    return run


BARS = {
    "read": ("Read 200 lines (MCP filesystem server)", Bar("ratio", "at most", 0.3)),
    "write": ("Write 1 KB, ours durable (MCP filesystem server)", Bar("ratio", "at most", 0.6)),
    "write_unsynced": ("Write 1 KB, neither waiting for the disk (MCP filesystem server)", None),
    "edit": ("Edit a small file, ours durable (MCP filesystem server)", Bar("ratio", "at most", 0.6)),
    "edit_unsynced": ("Edit a small file, neither waiting for the disk (MCP filesystem server)", None),
    "glob": ("Glob **/*.py, {corpus_files:,} files (MCP filesystem server)", Bar("ratio", "at most", 0.1)),
}

MEASURE = Measure(
    name="tools-server",
    sides={"ours": beside, "official": by_the_official_client},
    rows=[
        Row(
            title="Read 200 lines (MCP filesystem server, by the official client)",
            unit="ms",
            key="read",
            ours="official",
            raw="official",
            raw_key="their_read",
            bar=BARS["read"][1],
        ),
        *(
            Row(title=title, unit="ms", key=key, ours="ours", raw="ours", raw_key=f"their_{key.split('_')[0]}", bar=bar)
            for key, (title, bar) in BARS.items()
        ),
    ],
)
