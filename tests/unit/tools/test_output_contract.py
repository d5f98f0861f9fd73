"""What every output promises: its limit, valid Unicode, a mark iff something is missing, and the way to all of it."""

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.tool.content import MARKER_CHARS
from tests.unit.tools.every_tool import FINE, executor, fill
from tests.waiting import within

READING = {"Read", "Grep", "Glob", "ListDirectory"}
PAGED = [call for call in FINE if call[0] in {"Read", "Grep", "Glob"} and call[1].get("file_path") != "wide.txt"]
RAW = {"file_path": "long.txt", "line_numbers": False}


def name_of(call: object) -> str:
    tool, arguments = call
    return f"{tool}-{'-'.join(map(str, arguments.values()))}"


class World:
    """A fresh workspace for each call that changes it, so that one call can be made many times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._is_used = True

    async def call(self, tool: str, arguments: dict[str, Any], limit: int = 10_000_000, **more: Any) -> ToolResult:
        if self._is_used:
            self._number += 1
            root = self._folder / str(self._number)
            fill(root)
            self._executor = executor(root, self._folder / "kept")
        self._is_used = tool not in READING
        context = ExecutionContext(working_dir=".", max_output_size=limit)
        return await self._executor.execute(tool, context, **(arguments | more))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("call", FINE, ids=name_of)
async def test_an_output_keeps_its_limit_and_says_what_is_missing(
    world: World, call: tuple[str, dict[str, Any]]
) -> None:
    whole = await world.call(*call)
    assert whole.success, whole.error
    length = len(whole.output)
    for limit in (0, 1, 64, 1000, length - 1, length, length + 1):
        result = await world.call(*call, limit=limit)
        assert result.success, result.error
        assert len(result.output) <= max(limit, MARKER_CHARS), (limit, result.output)
        assert result.output.encode().decode() == result.output
        if result.output == whole.output:
            assert bool(result.metadata.get("truncated")) == bool(whole.metadata.get("truncated"))
        else:
            assert result.metadata["truncated"], (limit, result.output)
            assert any(mark in result.output for mark in ("omitted", "continue with", "shown", "…")) or call[1] == RAW
            assert result.metadata.get("next") or "use column=" in result.output or call[0] == "ListDirectory"


@pytest.mark.parametrize("limit", [400, 1000, 5000])
@pytest.mark.parametrize("call", PAGED, ids=name_of)
async def test_pages_one_after_the_other_are_the_whole(
    world: World, call: tuple[str, dict[str, Any]], limit: int
) -> None:
    whole = await world.call(*call)
    records: list[str] = []
    following: dict[str, Any] | None = {}
    time_left = within(60, "the pages do not end")
    while following is not None and next(time_left):
        arguments = call[1] if "offset" not in following else {k: v for k, v in call[1].items() if k != "tail"}
        page = await world.call(call[0], arguments, limit=limit, **following)
        assert page.success, page.error
        assert len(page.output) <= limit
        records += records_of(page)
        following = page.metadata.get("next")
    assert records == records_of(whole)


@pytest.mark.parametrize("limit", [400, 1000, 5000])
async def test_the_pieces_of_a_long_line_are_the_line(world: World, limit: int) -> None:
    pieces: list[str] = []
    following: dict[str, Any] = {"offset": 1}
    time_left = within(60, "the pages do not end")
    while following.get("offset") == 1 and next(time_left):
        page = await world.call("Read", {"file_path": "wide.txt", "limit": 1}, limit=limit, **following)
        assert len(page.output) <= limit
        pieces.append(records_of(page)[0].partition("\t")[2].partition("… [+")[0])
        following = page.metadata.get("next") or {}
    assert "".join(pieces) == "\U0001f600 wide " * 900


def records_of(result: ToolResult) -> list[str]:
    """The lines of an output without its notes, and without the marks between groups, which pages have between them."""
    lines = result.output.split("\n")
    notes = takewhile(lambda line: line.startswith("[") and line.endswith("]"), reversed(lines))
    return [line for line in lines[: len(lines) - len(list(notes))] if line != "--"]
