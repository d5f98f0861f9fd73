"""ToolFactory: creates tools with their configuration and their dependencies."""

import inspect
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar, cast

from forge_tools.errors import ConfigurationError
from forge_tools.schema import clean_text, suggestion
from forge_tools.tool.base import BaseTool
from forge_tools.tool.decorator import FunctionTool
from forge_tools.tool.signatures import asked_types

T = TypeVar("T")


class ToolFactory:
    """Creates tools, and gives each what its constructor, or its function, requests by type.

    Called without arguments it creates all that were added, so a reference may name it like a tool.
    """

    def __init__(self) -> None:
        self._providers: dict[Any, Callable[..., Any]] = {}
        self._recipes: list[Callable[[], BaseTool]] = []
        self._made: dict[tuple[int, Any], Any] = {}
        self._lock = threading.RLock()  # reentrant: a provider may need what another one makes

    def provide(self, kind: type[T], make: Callable[..., T]) -> Self:
        """Declare how to create a dependency of tools: once in a process, when it is first needed.

        `make` may depend on other types by annotation.
        """
        self._providers[kind] = make
        return self

    def add(self, tool: type[BaseTool] | Callable[..., Any], /, **configuration: Any) -> Self:
        """Add a tool for the next call to create: a class with its arguments, or a function with those of `@tool`."""
        self._recipes.append(partial(self.create, tool, **configuration))
        return self

    def create(self, tool: type[BaseTool] | Callable[..., Any], /, **configuration: Any) -> BaseTool:
        """Create one tool.

        Raises:
            ConfigurationError: naming what is missing, what nothing accepts, or what could not be created.
            InvalidToolError: the function cannot be a tool.
        """
        if isinstance(tool, BaseTool):
            raise ConfigurationError(
                f"{tool.spec.name} is already created. Add its class, or its function without @tool."
            )
        if not inspect.isclass(tool):
            given = {kind: partial(self._get, kind, ()) for kind in self._providers}
            return FunctionTool(tool, given, **configuration)
        kind, label = cast("type[BaseTool]", tool), tool.__name__
        if not issubclass(kind, BaseTool):
            raise ConfigurationError(f"The class {label} is not a BaseTool. Add a subclass of BaseTool, or a function.")
        arguments = self._arguments(kind.__init__, label, configuration, ())
        return _made(lambda: kind(**arguments), label)

    def __call__(self) -> list[BaseTool]:
        """Create all that were added, in that order."""
        return [create() for create in self._recipes]

    def _get(self, kind: Any, wanted_by: tuple[Any, ...]) -> Any:
        """Return what is provided for a type. A forked process makes its own: sockets and files do not survive it."""
        if kind in wanted_by:
            chain = " needs ".join(one.__name__ for one in (*wanted_by[wanted_by.index(kind) :], kind))
            raise ConfigurationError(f"{chain}: a provider cannot depend on itself.")
        key = os.getpid(), kind
        with self._lock:
            if key not in self._made:
                make, label = self._providers[kind], f"the provider of {kind.__name__}"
                arguments = self._arguments(make, label, {}, (*wanted_by, kind))
                self._made[key] = _made(lambda: make(**arguments), label)
            return self._made[key]

    def _arguments(
        self, call: Any, label: str, configuration: Mapping[str, Any], wanted_by: tuple[Any, ...]
    ) -> dict[str, Any]:
        formal = {name: one for name, one in _parameters(call, label).items() if name != "self"}
        strange = [name for name in configuration if name not in formal]
        if strange and not any(one.kind is one.VAR_KEYWORD for one in formal.values()):
            raise ConfigurationError(f"{label} takes no '{strange[0]}'{suggestion(strange[0], formal)}")
        arguments = dict(configuration)
        for name, one in formal.items():
            if name in arguments or one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD}:
                continue
            kind = next((kind for kind in asked_types(one.annotation) if kind in self._providers), None)
            if kind is not None:
                arguments[name] = self._get(kind, wanted_by)
            elif one.default is one.empty:
                provided = ", ".join(kind.__name__ for kind in self._providers) or "nothing"
                raise ConfigurationError(
                    f"{label} needs {one}, which is neither configured nor provided (provided: {provided}). "
                    f"Pass {name}= where the tool is added, or call provide() with its type."
                )
        return arguments


def _parameters(call: Any, label: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(call, eval_str=True).parameters
    except ValueError:  # written in C, without a signature
        return {}
    except (NameError, TypeError, SyntaxError) as error:
        raise ConfigurationError(f"{label} has an annotation that cannot be resolved: {error}.") from error


def _made(make: Callable[[], T], label: str) -> T:
    try:
        return make()
    except Exception as error:
        what = clean_text(f"{type(error).__name__}: {error}")[:300]
        raise ConfigurationError(f"{label} could not be created: {what}") from error
