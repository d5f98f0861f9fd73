"""Tools in this very process: no stack, no record."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from forge_tools.base import BaseTool
from forge_tools.config import Settings
from forge_tools.executor import ToolExecutor
from forge_tools.plugins import load_tools
from forge_tools.records import ToolSpec
from forge_tools.registry import ScopedRegistry
from forge_tools.sandbox.configured import reach_of
from forge_tools.sandbox.reach import Artifacts


def local_tools(references: Sequence[str]) -> list[BaseTool]:
    """Load built-ins, plugins and `references`, which may be modules of the current folder.

    Raises:
        ConfigurationError: naming the reference and what to do.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, as a worker does, so that it shadows nothing
    return load_tools(references)


def find_spec(specs: Iterable[ToolSpec], name: str) -> ToolSpec | None:
    """The tool that is called by that name or alias."""
    return next((spec for spec in specs if name in (spec.name, *spec.aliases)), None)


def local_executor(tools: Sequence[BaseTool], settings: Settings, artifacts: Artifacts | None = None) -> ToolExecutor:
    """An executor over these tools, confined to the workspace as a worker is."""
    registry = ScopedRegistry()
    registry.register_many(tools)
    return ToolExecutor(registry, max_timeout=settings.max_timeout, reach=reach_of(settings, artifacts=artifacts))
