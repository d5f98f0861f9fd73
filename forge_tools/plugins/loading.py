"""Where tools come from: built-ins, entry points and import strings."""

import importlib
import inspect
import sys
from collections.abc import Collection, Sequence
from importlib.metadata import entry_points as installed_entry_points
from pathlib import Path
from typing import Any

from forge_tools.base import BaseTool
from forge_tools.errors import ConfigurationError
from forge_tools.plugins.factory import ToolFactory
from forge_tools.records import ToolCategory
from forge_tools.validation import clean_text, shown, suggestion

GROUP = "forge_tools.tools"
_BUILTINS = "forge_tools.tools:BUILTINS"


def load_tools(references: Sequence[str] = (), *, builtins: bool = True, entry_points: bool = True) -> list[BaseTool]:
    """Create the tools of this host: built-ins, then installed plugins, then `references`.

    A reference `module:attribute` names a BaseTool subclass, an instance, a list or tuple of either, or a function
    without arguments that returns one of these. A class that several sources name is created once.

    Raises:
        ConfigurationError: naming the reference, what was found there, and the way out.
    """
    sources = [(_BUILTINS, "the built-in tools")] if builtins else []
    if entry_points:
        plugins = sorted(installed_entry_points(group=GROUP), key=lambda plugin: (plugin.name, plugin.value))
        sources += [(plugin.value, f"the plugin '{plugin.name}' of {_package(plugin)}") for plugin in plugins]
    sources += [(reference, f"'{shown(reference)}'") for reference in references]
    found: dict[Any, BaseTool] = {}
    for reference, source in sources:
        for item in _candidates(_resolve(reference, source), source):
            key = item if inspect.isclass(item) else id(item)
            if key not in found:
                found[key] = item if isinstance(item, BaseTool) else _create(item, source)
    return list(found.values())


def admit(
    tools: Sequence[BaseTool], categories: Collection[str] | None = None, names: Collection[str] | None = None
) -> list[BaseTool]:
    """Keep the tools of these categories and of these names or aliases; None admits all.

    Raises:
        ConfigurationError: for a category or a name there is not, or when nothing is left.
    """
    _require_known("category", categories, [category.value for category in ToolCategory])
    _require_known("tool", names, [name for tool in tools for name in (tool.spec.name, *tool.spec.aliases)])
    kept = [tool for tool in tools if _is_admitted(tool, categories, names)]
    if tools and not kept:
        raise ConfigurationError(f"None of the {len(tools)} tools is admitted by these categories and names together.")
    return kept


def _package(plugin: Any) -> str:
    return f"package {plugin.dist.name}" if plugin.dist else "an unknown package"


def _resolve(reference: str, source: str) -> Any:
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigurationError(f"{source} is no reference to tools. Write module:attribute, as in mytools:TOOLS.")
    found: Any = _import(module_name, source)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{source}: {module_name} has no '{shown(attribute)}'{_hint(found, part)}.")
        found = getattr(found, part)
    return found


def _import(name: str, source: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(_missing(error.name, source)) from error
        raise ConfigurationError(f"{source}: importing {name} failed with {_reason(error)}.") from error


def _missing(name: str, source: str) -> str:
    here = Path.cwd()
    searched = {Path(entry or here).resolve() for entry in sys.path}
    state = "is" if here.resolve() in searched else "is not"
    return (
        f"{source}: there is no module '{name}'. The current folder {here} {state} on sys.path: "
        f"start in the folder that holds {name.replace('.', '/')}.py, or name it in PYTHONPATH."
    )


def _hint(found: Any, missing: str) -> str:
    if close := suggestion(missing, [name for name in dir(found) if not name.startswith("_")]):
        return close
    tools = [name for name, value in vars(found).items() if _is_tool(value)]
    return f"; its tools are {', '.join(tools)}" if tools else ""


def _candidates(found: Any, source: str) -> list[Any]:
    """List the tools and tool classes that a reference stands for."""
    if not isinstance(found, list | tuple) and not _is_tool(found):
        if inspect.isclass(found) or not callable(found):
            raise ConfigurationError(_no_tool(found, f"{source} is"))
        found, source = _returned(found, source), f"What {source} returns"
    items = list(found) if isinstance(found, list | tuple) else [found]
    for item in items:
        if not _is_tool(item):
            raise ConfigurationError(_no_tool(item, f"{source} {'holds' if item is not found else 'is'}"))
    return items


def _is_tool(value: Any) -> bool:
    return isinstance(value, BaseTool) or _is_tool_class(value)


def _is_tool_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseTool)


def _create(tool: type[BaseTool], source: str) -> BaseTool:
    if missing := sorted(tool.__abstractmethods__):
        raise ConfigurationError(f"{source}: {tool.__name__} does not say its {', '.join(missing)}. Define them.")
    try:
        return tool()
    except Exception as error:
        way_out = "Name an instance, or a function without arguments that makes it."
        raise ConfigurationError(f"{source}: {tool.__name__}() failed with {_reason(error)}. {way_out}") from error


def _returned(factory: Any, source: str) -> Any:
    try:
        return factory()
    except Exception as error:
        hint = "" if isinstance(factory, ToolFactory) else " To make it a tool, decorate it with @tool."
        raise ConfigurationError(
            f"{source}: calling it without arguments failed with {_reason(error)}.{hint}"
        ) from error


def _reason(error: BaseException) -> str:
    return clean_text(f"{type(error).__name__}: {error}")[:300]


def _no_tool(found: Any, what: str) -> str:
    kind = f"the class {found.__name__}" if inspect.isclass(found) else f"an object of type {type(found).__name__}"
    return (
        f"{what} {kind}. It must be a BaseTool subclass, an instance, a list or tuple of these, or a function for one."
    )


def _require_known(kind: str, asked: Collection[str] | None, known: Sequence[str]) -> None:
    for name in asked or ():
        if name not in known:
            there_are = f"There are: {', '.join(sorted(known)) or 'none'}."
            raise ConfigurationError(f"There is no {kind} '{shown(name)}'{suggestion(name, known)}. {there_are}")


def _is_admitted(tool: BaseTool, categories: Collection[str] | None, names: Collection[str] | None) -> bool:
    if categories is not None and tool.spec.category not in categories:
        return False
    return names is None or any(name in names for name in (tool.spec.name, *tool.spec.aliases))
