"""The names of `forge_tools.tool.executor`: the only way to run tools in process (spec S3)."""

from forge_tools.tool.executor import CallOptions, ToolExecutor

__all__ = ["CallOptions", "ToolExecutor"]
