"""The names of `forge_tools.tool.executor`: the one way to run them in process (spec S3)."""

from forge_tools.tool.executor import CallOptions, ToolExecutor

__all__ = ["CallOptions", "ToolExecutor"]
