"""The names of `forge_tools.tool.base`: what every tool declares (spec S3)."""

from forge_tools.tool.base import (
    BaseTool,
    Capabilities,
    ExecutionContext,
    ToolCategory,
    ToolExecution,
    ToolParameter,
    ToolResult,
    ToolSpec,
)

__all__ = [
    "BaseTool",
    "Capabilities",
    "ExecutionContext",
    "ToolCategory",
    "ToolExecution",
    "ToolParameter",
    "ToolResult",
    "ToolSpec",
]
