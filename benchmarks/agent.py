"""The built-in tools, called by name through an executor in this process, as an agent without workers does."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.scene import succeeded
from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS


class Agent:
    """Calls tools in a folder, with a `Reach`; a failed call raises."""

    def __init__(self, folder: Path, *, timeout: float = 100, max_output_size: int = 100_000, **reached: Any) -> None:
        registry = ScopedRegistry()
        registry.register_many([tool() for tool in BUILTINS])
        self._executor = ToolExecutor(registry, reach=Reach(hostname="benchmark", **reached))
        self._context = ExecutionContext(
            working_dir=str(folder), timeout=timeout, max_output_size=max_output_size, agent_id="benchmark"
        )

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        result = await self.ended(tool, **arguments)
        succeeded(result)
        return result

    async def ended(self, tool: str, **arguments: Any) -> ToolResult:
        """Do the same, but return a failed result, too."""
        result = await self._executor.execute(tool, self._context, **arguments)
        self._executor.clear_executions()
        return result


@contextmanager
def without_the_disk() -> Iterator[None]:
    """Make nothing in this process wait for the disk, so that only the work itself is measured."""
    with patch.object(os, "fsync", lambda _: None):
        yield
