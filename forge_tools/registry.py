"""The names of `forge_tools.tool.registry`: which tools there are (spec S3)."""

from forge_tools.tool.registry import ScopedRegistry, ToolRegistry

__all__ = ["ScopedRegistry", "ToolRegistry"]
