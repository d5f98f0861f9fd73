"""Where tools come from: built-ins, entry points, and the user's references to modules, files and packages."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import entry_points as installed_entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.model.tools import ToolCategory
from forge_tools.project import FILE, TABLE, find_project, is_path
from forge_tools.schema import clean_text, shown, suggestion
from forge_tools.secrets.detection import SecretSource
from forge_tools.setting_types import CATEGORY, QUEUE
from forge_tools.tool.base import BaseTool
from forge_tools.tool.dependencies import engine
from forge_tools.tool.factory import ToolFactory
from forge_tools.tool.failures import diagnosis_of

GROUP = "forge_tools.tools"
_BUILTINS = "forge_tools.tools:BUILTINS"
_HOSTED = ("mcp__",)


def load_tools(references: Sequence[str] = (), *, builtins: bool = True, entry_points: bool = True) -> list[BaseTool]:
    """Create the tools of this host: built-ins, then installed plugins, then `references`.

    A reference is a module, a package, or the path of either, and means all their tools; or `module:attribute`, which
    names a BaseTool subclass, an instance, a list or tuple of either, or a function without arguments that returns one
    of these. A class that several sources name is created once.

    Raises:
        ConfigurationError: naming the reference, what was found there, and how to fix it.
    """
    sources = [(_BUILTINS, "the built-in tools")] if builtins else []
    if entry_points:
        plugins = sorted(installed_entry_points(group=GROUP), key=lambda plugin: (plugin.name, plugin.value))
        sources += [(plugin.value, f"the plugin '{plugin.name}' of {_package(plugin)}") for plugin in plugins]
    return _created([*sources, *((reference, f"'{shown(reference)}'") for reference in references)])


def load_project(settings: Settings, references: Sequence[str] = ()) -> list[BaseTool]:
    """Create the user's tools: those named in the settings, for example in pyproject.toml, and then `references`.

    Modules are also looked for in the project and in the current folder, after all others, so that they shadow none.

    Raises:
        ConfigurationError: as in `load_tools`, naming the file or setting with the reference.
    """
    _find_modules_of(settings)
    project = find_project(settings.project) if settings.tools else None
    is_projects = project is not None and project.tools == settings.tools
    setting = f"[{TABLE}] of {settings.project / FILE}" if is_projects else "FORGE_TOOLS"
    named = [(reference, f"'{shown(reference)}' in {setting}") for reference in settings.tools]
    return _created([*named, *((one, f"'{shown(one)}'") for one in references if one not in settings.tools)])


def load_engine(settings: Settings) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return what creates the engine of this host, as the `overrides` of an executor; empty if none is configured.

    Raises:
        ConfigurationError: the setting names no function.
    """
    if not settings.engine:
        return {}
    _find_modules_of(settings)
    name, _, attribute = settings.engine.partition(":")
    if not name or not attribute:
        raise ConfigurationError(
            f"FORGE_ENGINE '{shown(settings.engine)}' must be module:function, as in mytools:make."
        )
    make = _attribute(_module(name, "FORGE_ENGINE"), attribute, "FORGE_ENGINE")
    if not callable(make):
        raise ConfigurationError(
            f"FORGE_ENGINE: {shown(settings.engine)} is not a function. Name one that makes the engine."
        )
    return {engine: make}


def load_settings(tools: Sequence[BaseTool], secrets: SecretSource) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Read the settings and secrets that tools need by name, as the `overrides` of an executor.

    Raises:
        ConfigurationError: naming each tool with what it lacks, and how to fix it.
    """
    found, missing = dict[Callable[..., Any], Callable[..., Any]](), list[str]()
    for tool in tools:
        for named in tool.named_settings:
            try:
                value = named.read(secrets)
                found[named] = lambda value=value: value
            except ForgeError as error:
                missing.append(f"Tool {tool.spec.name} cannot be offered: {error.message}")
    if missing:
        raise ConfigurationError(" ".join(missing))
    return found


def require_walled(settings: Settings, tools: Sequence[BaseTool]) -> None:
    """Check that each name in `FORGE_WALLS_OF` is that of a tool (one of these, or of this host's others), category or queue.

    Raises:
        ConfigurationError: naming one that does not.
    """
    later = _HOSTED if settings.mcp_config is not None else ()  # known once their servers answer
    asked = [name for name in settings.walls_of if not name.startswith((QUEUE, *later))]
    if asked:
        where = "FORGE_WALLS_OF: "
        known = {tool.spec.name: tool.spec.walled_as for tool in (*tools, *load_tools())}
        categories = [name.removeprefix(CATEGORY) for name in asked if name.startswith(CATEGORY)]
        _require_known("category", categories, [category.value for category in ToolCategory], where)
        _require_known("tool", [name for name in asked if not name.startswith(CATEGORY)], sorted(known), where)
        for name in asked:
            if (other := known.get(name, name)) != name:
                raise ConfigurationError(f"{where}{name} has the walls of commands. Name {other} instead")


def admit(tools: Sequence[BaseTool], categories: Collection[str] | None = None) -> list[BaseTool]:
    """Keep the tools of these categories; None admits all.

    Raises:
        ConfigurationError: for an unknown category, or when nothing is left.
    """
    if categories is None:
        return list(tools)
    _require_known("category", categories, [category.value for category in ToolCategory])
    kept = [tool for tool in tools if tool.spec.category in categories]
    if tools and not kept:
        raise ConfigurationError(f"These categories admit none of the {len(tools)} tools.")
    return kept


def _package(plugin: Any) -> str:
    return f"package {plugin.dist.name}" if plugin.dist else "an unknown package"


def _find_modules_of(settings: Settings) -> None:
    for folder in (Path.cwd(), settings.project):
        _extend_path(folder)


def _extend_path(folder: Path) -> None:
    if (entry := str(folder)) not in sys.path:
        sys.path.append(entry)


def _created(sources: Sequence[tuple[str, str]]) -> list[BaseTool]:
    if sys.flags.optimize > 1:
        raise ConfigurationError(
            "Python was told to drop docstrings, which describe tools to models. "
            "Unset PYTHONOPTIMIZE, or set it to 1; start Python without -OO."
        )
    found: dict[Any, BaseTool] = {}
    for reference, source in sources:
        for item in _resolve(reference, source):
            key = item if inspect.isclass(item) else id(item)
            if key not in found:
                found[key] = item if isinstance(item, BaseTool) else _create(item, source)
    return list(found.values())


def _resolve(reference: str, source: str) -> list[Any]:
    name, colon, attribute = reference.partition(":")
    if not name or (colon and not attribute) or (name.startswith(".") and not is_path(name)):
        raise ConfigurationError(
            f"{source} is not a reference to tools. Write a module, a file or module:attribute, as in mytools:TOOLS."
        )
    module = _module(name, source)
    if not attribute:
        return _all_tools(module, source)
    return _candidates(_attribute(module, attribute, source), source)


def _module(name: str, source: str) -> ModuleType:
    return _import_path(Path(name), source) if is_path(name) else _import(name, source)


def _attribute(module: ModuleType, attribute: str, source: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{source}: {module.__name__} has no '{shown(attribute)}'{_hint(found, part)}.")
        found = getattr(found, part)
    return found


def _all_tools(module: ModuleType, source: str) -> list[Any]:
    """List the tools of a module, or of a package with all its modules; of classes only those defined there."""
    modules = [module, *_submodules(module, source)]
    names = {one.__name__ for one in modules}
    found: list[Any] = []
    classes: list[Any] = []
    for name, value in ((name, value) for one in modules for name, value in vars(one).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, BaseTool):
            found.append(value)
        elif isinstance(value, ToolFactory):
            found += _returned(value, source)
        elif isinstance(value, list | tuple) and value and all(map(_is_tool, value)):
            found += value
        elif _is_tool_class(value) and value.__module__ in names and not _is_base(value):
            classes.append(value)
    # A class whose author made an instance is not created once more, without arguments.
    instantiated = {type(one) for one in found}
    found += [one for one in classes if one not in instantiated]
    if not found:
        raise ConfigurationError(f"{source}: {module.__name__} has no tool. Decorate a function in it with @tool.")
    return found


def _submodules(package: ModuleType, source: str) -> Iterator[ModuleType]:
    for one in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        if not one.name.rpartition(".")[2].startswith(("test_", "conftest", "__main__")):
            module = _import(one.name, source)
            yield module
            yield from _submodules(module, source)


def _import_path(path: Path, source: str) -> ModuleType:
    """Import a file or a package folder under the name that its neighbours use."""
    place = path.resolve()
    if not place.exists():
        raise ConfigurationError(f"{source}: {place} does not exist.")
    root, parts = place.parent, [place.stem if place.is_file() else place.name]
    while (root / "__init__.py").is_file():
        root, parts = root.parent, [root.name, *parts]
    name = ".".join(parts).removesuffix(".__init__")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(
            f"{source}: {place.name} has a name that Python cannot import. Use letters, digits, '_'."
        )
    _extend_path(root)
    module = _import(name, source)
    found = Path(module.__file__) if module.__file__ else Path(next(iter(module.__path__)))
    if place not in (found.resolve(), found.resolve().parent):
        raise ConfigurationError(f"{source}: the name {name} is taken by {found}. Rename {place.name}.")
    return module


def _import(name: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script may call sys.exit() where it is imported
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(_missing(error.name, source)) from error
        raise ConfigurationError(f"{source}: importing {name} failed{_place(error)} with {_reason(error)}.") from error


def _place(error: BaseException) -> str:
    """Return where the author's code failed: file and line of a syntax error, else the last line that is theirs."""
    if isinstance(error, SyntaxError):
        return "" if error.filename is None else f" at {error.filename}:{error.lineno}"
    frame = diagnosis_of(error, None).frame
    return f" at {frame.file}:{frame.line}" if frame is not None and frame.own else ""


def _missing(name: str, source: str) -> str:
    here = Path.cwd()
    searched = {Path(entry or here).resolve() for entry in sys.path}
    state = "is" if here.resolve() in searched else "is not"
    return (
        f"{source}: there is no module '{name}'. The current folder {here} {state} on sys.path: "
        f"start in the folder that holds {name.replace('.', '/')}.py, give the path of the file, or name its folder in PYTHONPATH."
    )


def _hint(found: Any, missing: str) -> str:
    if close := suggestion(missing, [name for name in dir(found) if not name.startswith("_")]):
        return close
    tools = [name for name, value in vars(found).items() if _is_tool(value)]
    return f"; its tools are {', '.join(tools)}" if tools else ""


def _candidates(found: Any, source: str) -> list[Any]:
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


def _is_base(tool: type[BaseTool]) -> bool:
    # An incomplete class that nothing derives from is a tool that forgot a declaration: `_create` says which.
    return bool(tool.__abstractmethods__ and tool.__subclasses__())


def _create(tool: type[BaseTool], source: str) -> BaseTool:
    if missing := sorted(tool.__abstractmethods__):
        way_out = "Define them, or begin its name with _ if it is only a base for other classes."
        raise ConfigurationError(f"{source}: {tool.__name__} does not declare its {', '.join(missing)}. {way_out}")
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
    what = error.msg if isinstance(error, SyntaxError) else error  # its file and line are reported separately
    return clean_text(f"{type(error).__name__}: {what}")[:300].rstrip(".")  # the sentence around it adds the stop


def _no_tool(found: Any, what: str) -> str:
    kind = f"the class {found.__name__}" if inspect.isclass(found) else f"an object of type {type(found).__name__}"
    return (
        f"{what} {kind}. It must be a BaseTool subclass, an instance, a list or tuple of these, or a function for one."
    )


def _require_known(kind: str, asked: Collection[str], known: Sequence[str], where: str = "") -> None:
    for name in asked:
        if name not in known:
            there_are = f"There are: {', '.join(sorted(known)) or 'none'}."
            raise ConfigurationError(f"{where}There is no {kind} '{shown(name)}'{suggestion(name, known)}. {there_are}")
