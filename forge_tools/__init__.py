"""A task-queue-backed distributed tool runner for AI agents.

The names below belong to the modules that define them, and are loaded on first use: importing one loads no other.
"""

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes milliseconds

if TYPE_CHECKING:
    from forge_tools.client import Call, ExecutorClient, Handle, SyncExecutorClient
    from forge_tools.config import Settings
    from forge_tools.errors import ErrorCode, ForgeError, ToolError, ToolFailure
    from forge_tools.model import Audio, File, Image, Link, Text
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
    from forge_tools.tool.executor import CallOptions, ToolExecutor
    from forge_tools.tool.registry import ScopedRegistry, ToolRegistry

__all__ = [
    "Audio",
    "BaseTool",
    "Call",
    "CallOptions",
    "Capabilities",
    "ErrorCode",
    "ExecutionContext",
    "ExecutorClient",
    "File",
    "ForgeError",
    "Handle",
    "Image",
    "Link",
    "ScopedRegistry",
    "Settings",
    "SyncExecutorClient",
    "Text",
    "ToolCategory",
    "ToolError",
    "ToolExecution",
    "ToolExecutor",
    "ToolFailure",
    "ToolParameter",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
]

__version__ = "0.2.0"

_ELSEWHERE = {
    **dict.fromkeys(("Call", "ExecutorClient", "Handle", "SyncExecutorClient"), "forge_tools.client"),
    **dict.fromkeys(("CallOptions", "ToolExecutor"), "forge_tools.tool.executor"),
    **dict.fromkeys(("ErrorCode", "ForgeError", "ToolError", "ToolFailure"), "forge_tools.errors"),
    **dict.fromkeys(("ScopedRegistry", "ToolRegistry"), "forge_tools.tool.registry"),
    **dict.fromkeys(("Audio", "File", "Image", "Link", "Text"), "forge_tools.model"),
    "Settings": "forge_tools.config",
}
"""The modules of the names that are not in `forge_tools.tool.base`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_ELSEWHERE.get(name, "forge_tools.tool.base")), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
