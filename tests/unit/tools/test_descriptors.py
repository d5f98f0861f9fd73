"""Calls release their workspace when they end, however they end, not when the garbage collector runs."""

import gc
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS

Run = Callable[..., Awaitable[ToolResult]]

FAILING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Read", {"file_path": "gone"}),
    ("Read", {"file_path": ".env"}),
    ("Read", {"file_path": "binary"}),
    ("Write", {"file_path": "/etc/x", "content": ""}),
    ("Write", {"file_path": "file", "content": "", "if_match": "stale"}),
    ("Edit", {"file_path": "file", "old_string": "nothing like it", "new_string": ""}),
    ("Edit", {"file_path": "file", "old_string": "x", "new_string": ""}),
    ("Edit", {"file_path": "gone", "old_string": "x", "new_string": ""}),
    ("Delete", {"file_path": "gone"}),
    ("Delete", {"file_path": ".env"}),
    ("ListDirectory", {"path": "gone"}),
    ("ListDirectory", {"path": "file"}),
    ("Glob", {"pattern": "*", "path": "gone"}),
    ("Glob", {"pattern": "["}),
    ("Grep", {"pattern": "(", "path": "file"}),
    ("Grep", {"pattern": "x", "path": "gone"}),
    ("Bash", {"command": "true", "cwd": "gone"}),
)
SUCCEEDING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Read", {"file_path": "file"}),
    ("Write", {"file_path": "new", "content": "x"}),
    ("ListDirectory", {"path": "."}),
    ("Glob", {"pattern": "*"}),
    ("Grep", {"pattern": "x"}),
    ("Bash", {"command": "exit 3"}),
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    for name, content in {"file": b"x\nx\n", ".env": b"k", "binary": bytes(99)}.items():
        (tmp_path / name).write_bytes(content)
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    executor = ToolExecutor(registry, reach=Reach(root=tmp_path), history_limit=0)

    async def call(name: str, parameters: dict[str, Any], **context: Any) -> ToolResult:
        return await executor.execute(name, ExecutionContext(working_dir=".", **context), **parameters)

    yield call
    gc.enable()


async def growth(count: int, body: Callable[[], Awaitable[object]]) -> int:
    """How many descriptors more there are after so many runs, with the collector switched off."""
    for _ in range(3):
        await body()
    gc.collect()
    gc.disable()
    before = descriptors()
    for _ in range(count):
        await body()
    return descriptors() - before


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize(("name", "parameters"), FAILING)
async def test_a_failed_call_leaves_no_descriptor_open(name: str, parameters: dict[str, Any], run: Run) -> None:
    assert not (await run(name, parameters)).success
    assert await growth(120, lambda: run(name, parameters)) < 5


@pytest.mark.parametrize(("name", "parameters"), SUCCEEDING)
async def test_nor_does_one_that_succeeds(name: str, parameters: dict[str, Any], run: Run) -> None:
    result = await run(name, parameters)
    assert result.error is None
    assert await growth(30, lambda: run(name, parameters)) < 5


async def test_nor_does_one_that_runs_out_of_time(run: Run) -> None:
    assert await growth(20, lambda: run("Bash", {"command": "sleep 9"}, timeout=0.05)) < 5
