"""Read, Write, Edit and Glob beside the reference MCP filesystem server, a call by turns."""

import asyncio

from benchmarks.corpus import make_corpus
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.filesystem_server import running
from benchmarks.pairs import by_turns
from benchmarks.scene import Scene, succeeded
from forge_tools.base import BaseTool
from forge_tools.records import ExecutionContext
from forge_tools.tools import Edit, Glob, Read, Write

LINES = "a line of an ordinary length, with words in it\n" * 200
SEARCHES = 5


def beside(scene: Scene) -> Readings:
    return asyncio.run(_beside(scene))


async def _beside(scene: Scene) -> Readings:
    corpus = make_corpus(scene.folder / "corpus", scene.sizes.corpus_files)
    folder = scene.folder / "served"
    folder.mkdir(exist_ok=True)
    (folder / "read").write_text(LINES)
    numbers = iter(range(1 << 30))

    async def ours(tool: BaseTool, where: object, **arguments: object) -> None:
        succeeded(await tool.execute(ExecutionContext(working_dir=str(where), timeout=60), **arguments))

    async with running(folder) as server, running(corpus) as searching:

        async def write(is_ours: bool) -> None:
            text = f"{next(numbers)}\n{'x' * 1000}"
            if is_ours:
                await ours(Write(), folder, file_path="ours", content=text)
            else:
                await server.call("write_file", path=str(folder / "theirs"), content=text)

        async def edit(is_ours: bool) -> None:
            old, new = ("x" * 10, "y" * 10) if next(numbers) % 4 < 2 else ("y" * 10, "x" * 10)
            path = folder / ("edited" if is_ours else "their-edited")
            path.write_text(f"{old}\n{LINES}")
            if is_ours:
                await ours(Edit(), folder, file_path=path.name, old_string=old, new_string=new)
            else:
                await server.call("edit_file", path=str(path), edits=[{"oldText": old, "newText": new}])

        readings = await by_turns(
            {
                "read": lambda: ours(Read(), folder, file_path="read"),
                "their_read": lambda: server.call("read_text_file", path=str(folder / "read")),
                "write": lambda: write(is_ours=True),
                "their_write": lambda: write(is_ours=False),
                "edit": lambda: edit(is_ours=True),
                "their_edit": lambda: edit(is_ours=False),
            },
            scene.sizes.tool_calls,
        )
        return readings | await by_turns(
            {
                "glob": lambda: ours(Glob(), corpus, pattern="**/*.py", limit=10_000),
                "their_glob": lambda: searching.call(
                    "search_files", path=str(corpus), pattern="**/*.py", excludePatterns=["**/node_modules/**"]
                ),
            },
            min(SEARCHES, scene.sizes.tool_pairs),
        )


MEASURE = Measure(
    name="tools-server",
    sides={"ours": beside},
    rows=[
        Row(title=title, unit="ms", key=key, ours="ours", raw="ours", raw_key=f"their_{key}", bar=bar)
        for title, key, bar in (
            ("Read 200 lines (MCP filesystem server)", "read", Bar("ratio", "at most", 0.3)),
            ("Write 1 KB, ours durable (MCP filesystem server)", "write", Bar("ratio", "at most", 0.6)),
            ("Edit a small file, ours durable (MCP filesystem server)", "edit", Bar("ratio", "at most", 0.6)),
            ("Glob **/*.py, {corpus_files:,} files (MCP filesystem server)", "glob", Bar("ratio", "at most", 0.1)),
        )
    ],
)
