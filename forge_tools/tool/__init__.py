"""Where tools come from: functions, factories, installed packages and import strings. No code here runs a call."""

from forge_tools.errors import ToolFailure
from forge_tools.tool.decorator import FunctionTool, tool
from forge_tools.tool.dependencies import Depends, Setting, engine
from forge_tools.tool.factory import ToolFactory
from forge_tools.tool.loading import admit, load_engine, load_project, load_settings, load_tools, require_walled

__all__ = [
    "Depends",
    "FunctionTool",
    "Setting",
    "ToolFactory",
    "ToolFailure",
    "admit",
    "engine",
    "load_engine",
    "load_project",
    "load_settings",
    "load_tools",
    "require_walled",
    "tool",
]
