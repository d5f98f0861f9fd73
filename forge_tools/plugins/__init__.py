"""Where tools come from: functions, factories, installed packages and import strings. Nothing here runs a call."""

from forge_tools.dependencies import Depends
from forge_tools.plugins.factory import ToolFactory
from forge_tools.plugins.functions import FunctionTool, tool
from forge_tools.plugins.loading import admit, load_project, load_tools

__all__ = ["Depends", "FunctionTool", "ToolFactory", "admit", "load_project", "load_tools", "tool"]
