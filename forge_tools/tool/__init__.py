"""Where tools come from: functions, factories, installed packages and import strings. No code here runs a call."""

import sys
from types import ModuleType
from typing import NoReturn

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


class _Package(ModuleType):
    """What `from forge_tools import tool` gets, because a package is an attribute of the one around it."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{__name__} is a package. The decorator is in it: from {__name__} import tool")


sys.modules[__name__].__class__ = _Package
