"""Registries: the available tools, by name and alias."""

import inspect
import logging
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from forge_tools.errors import DuplicateToolError, InvalidCallError, InvalidToolError, ToolError, ToolNotFoundError
from forge_tools.model.calls import COUNT, ExecutionContext, is_count, is_duration, unlike
from forge_tools.model.tools import Schema, ToolCategory, ToolSpec
from forge_tools.schema import KNOWN_TYPES, Validator, clean_text, encode_json, providers, suggestion
from forge_tools.tool.base import BaseTool

_logger = logging.getLogger("forge_tools.tools")

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PARAMETER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VERSION = re.compile(r"\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?")
_MAX_DEFINITION_BYTES = 1_000_000

SLOW_SECONDS = 20.0
"""After this long in `initialize_all` the log names the tool that it waits for: whoever gives up on it cannot know."""


class ScopedRegistry:
    """The tools of one executor, worker or test. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tools: dict[str, BaseTool] = {}
        self._aliases: dict[str, str] = {}
        self._initialized: dict[str, BaseTool] = {}

    def register(self, tool: BaseTool, *, replace: bool = False, strict: bool = False) -> None:
        """Add a tool; `replace` overwrites one of the same name with a warning (contradiction C02).

        Raises:
            DuplicateToolError: when the name or an alias is taken.
            InvalidToolError: when a provider or the runtime would refuse the definition (contradiction C44); with
                `strict` also for what otherwise only causes a warning (contradiction C16).
        """
        self.register_many([tool], replace=replace, strict=strict)

    def register_many(self, tools: Iterable[BaseTool], *, replace: bool = False, strict: bool = False) -> None:
        """Add all the tools, or none if one of them is refused (contradiction C34)."""
        wanted = list(tools)
        for tool in wanted:
            check_definition(tool, strict=strict)
        with self._lock:
            before = self._tools.copy(), self._aliases.copy()
            try:
                for tool in wanted:
                    self._require_free(tool.spec, replace=replace)
                    self._add(tool)
            except ToolError:
                self._tools, self._aliases = before
                raise

    def deregister(self, name: str) -> bool:
        """Remove the tool of that name or alias; return whether there was one."""
        with self._lock:
            tool = self._tools.pop(self._aliases.get(name, name), None)
            if tool is None:
                return False
            self._initialized.pop(tool.spec.name, None)
            self._aliases = {alias: target for alias, target in self._aliases.items() if target in self._tools}
        _logger.debug("Deregistered tool: %s", tool.spec.name, extra={"tool": tool.spec.name})
        return True

    def get(self, name: str) -> BaseTool | None:
        """Return the tool of that name or alias, or None."""
        # No lock: each of these reads is atomic, and every call begins with them.
        tool = self._tools.get(name)
        return self._tools.get(self._aliases.get(name, name)) if tool is None else tool

    def get_or_raise(self, name: str) -> BaseTool:
        """Return the tool of that name or alias.

        Raises:
            ToolNotFoundError: naming the closest match.
        """
        if (tool := self.get(name)) is None:
            raise ToolNotFoundError(name, f"Tool not found{suggestion(name, self.list_names())}")
        return tool

    def exists(self, name: str) -> bool:
        """Return whether there is a tool of that name or alias."""
        return self.get(name) is not None

    def list_all(self) -> list[BaseTool]:
        """Return the tools in the order of registration."""
        with self._lock:
            return list(self._tools.values())

    def list_names(self, *, sort: bool = True) -> list[str]:
        """Return the names without aliases, sorted or in the order of registration (contradiction C01)."""
        names = [tool.spec.name for tool in self.list_all()]
        return sorted(names) if sort else names

    def list_by_category(self, category: ToolCategory) -> list[BaseTool]:
        """Return the tools of a category in the order of registration."""
        return [tool for tool in self.list_all() if tool.spec.category == category]

    def count(self) -> int:
        """Return how many tools there are."""
        return len(self._tools)

    def clear(self) -> None:
        """Remove every tool."""
        with self._lock:
            self._tools, self._aliases, self._initialized = {}, {}, {}

    def get_declarations(self) -> list[Schema]:
        """Return the tools in Gemini's format: one object with all `functionDeclarations` (spec S1-28)."""
        return [{"functionDeclarations": [providers.render(tool.spec, "gemini") for tool in self.list_all()]}]

    async def initialize_all(self, context: ExecutionContext) -> None:
        """Initialize each tool once, in the order of registration; if one fails, shut down all.

        Raises:
            ToolError: naming the tool that could not start.
        """
        name = ""

        def tell() -> None:
            _logger.warning("The initialize() of a tool takes long", extra={"tool": name, "seconds": SLOW_SECONDS})

        alarm = threading.Timer(SLOW_SECONDS, tell)  # a task would not run if the hook blocks
        alarm.daemon = True
        with suppress(RuntimeError):  # no more threads: the tools matter more
            alarm.start()
        try:
            for tool in self.list_all():
                name = tool.spec.name
                if self._initialized.get(name) is tool:
                    continue
                try:
                    await tool.initialize(context)
                except Exception as error:
                    await self.shutdown_all()
                    raise ToolError(name, f"cannot be initialized: {clean_text(str(error))}") from error
                self._initialized[name] = tool
        finally:
            alarm.cancel()

    async def shutdown_all(self) -> None:
        """Shut down each tool, in the order of registration; a failure is logged and does not stop the others."""
        for tool in self.list_all():
            try:
                await tool.shutdown()
            except Exception:  # the others must be shut down too
                _logger.exception("Tool %s failed to shut down", tool.spec.name, extra={"tool": tool.spec.name})
        self._initialized.clear()

    # Other names that the specification has for them.
    unregister = deregister
    has = exists
    get_all = list_all
    get_names = list_names

    def _require_free(self, spec: ToolSpec, *, replace: bool) -> None:
        for name in (spec.name, *spec.aliases):
            holder = self.get(name)
            if holder is None or (replace and holder.spec.name == spec.name):
                continue
            definition = getattr(holder, "__wrapped__", type(holder))
            origin = f"{definition.__module__}.{definition.__qualname__}"
            taken = "Tool" if name == holder.spec.name == spec.name else f"Tool name '{name}' of {holder.spec.name}"
            raise DuplicateToolError(
                spec.name, f"{taken} already registered, by {origin}. Rename it, or deregister the other first."
            )

    def _add(self, tool: BaseTool) -> None:
        name = tool.spec.name
        if name in self._tools:
            _logger.warning("Replacing tool: %s", name, extra={"tool": name})
            self._aliases = {alias: target for alias, target in self._aliases.items() if target != name}
        self._tools[name] = tool
        self._aliases.update(dict.fromkeys(tool.spec.aliases, name))
        _logger.debug("Registered tool: %s", name, extra={"tool": name})


class ToolRegistry(ScopedRegistry):
    """The registry of the process: every construction returns the same object (contradiction C06)."""

    _instance: ClassVar["ToolRegistry | None"] = None
    _creation: ClassVar[threading.Lock] = threading.Lock()

    def __new__(cls) -> "ToolRegistry":
        with ToolRegistry._creation:
            if ToolRegistry._instance is None:
                instance = super().__new__(cls)
                ScopedRegistry.__init__(instance)
                ToolRegistry._instance = instance
            return ToolRegistry._instance

    def __init__(self) -> None:
        """Leave the shared object as it is."""

    @classmethod
    def reset(cls) -> None:
        """Discard the object and its tools; the next construction starts empty. For tests."""
        with ToolRegistry._creation:
            ToolRegistry._instance = None


def check_definition(tool: object, *, strict: bool = False) -> None:
    """Refuse a tool that a provider or the runtime would refuse later.

    Raises:
        InvalidToolError: saying what is wrong, and what is allowed.
    """
    if not isinstance(tool, BaseTool):
        made = f"{tool.__name__}()" if inspect.isclass(tool) else "an instance of a BaseTool subclass"
        raise InvalidToolError(clean_text(repr(tool)[:64]), f"is not a tool. Register {made}.")
    spec = tool.spec
    for problem in (_naming_problem(spec), _calling_problem(tool), _limit_problem(spec), _schema_problem(spec)):
        if problem:
            raise InvalidToolError(clean_text(spec.name), problem)
    for doubt in _doubts(spec):
        if strict:
            raise InvalidToolError(spec.name, doubt)
        _logger.warning("Tool %s: %s", spec.name, doubt, extra={"tool": spec.name})


def _naming_problem(spec: ToolSpec) -> str | None:
    for name in (spec.name, *spec.aliases):
        if not _TOOL_NAME.fullmatch(name):
            return f"the name {clean_text(name)!r} must be 1 to 64 letters, digits, '_' or '-'"
    if not spec.description.strip():
        return "the description is empty. Describe in a sentence what the tool does."
    if not _VERSION.fullmatch(spec.version):
        return f"the version {clean_text(spec.version)!r} must look like 1.0.0"
    seen: set[str] = set()
    for name in (name for p in spec.declared for name in (p.name, *p.aliases)):
        if not _PARAMETER_NAME.fullmatch(name):
            return f"the parameter name {clean_text(name)!r} must be 1 to 64 letters, digits, '_', '.' or '-'"
        if name in seen:
            return f"the parameter name '{name}' is used twice"
        seen.add(name)
    return None


def _calling_problem(tool: BaseTool) -> str | None:
    """Find why `_execute` cannot be called with the declared parameters."""
    if not inspect.iscoroutinefunction(inspect.unwrap(tool._execute)):  # noqa: SLF001 the contract of subclasses
        return (
            "_execute is not an `async def`. Write one, which awaits and never blocks, or make a `def` a tool by @tool."
        )
    signature = inspect.signature(tool._execute).parameters.values()  # noqa: SLF001 the contract of subclasses
    by_name = {p.name: p.kind for p in signature if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in signature)
    context = next((p.name for p in signature if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}), None)
    for name in (p.name for p in tool.spec.parameters):
        if name == context and name in by_name:
            return f"the parameter '{name}' collides with _execute's own. Write `_execute(self, {name}, /, ...)`."
        if name not in by_name and not takes_any:
            return f"_execute takes no argument '{name}'. Add it, or take **kwargs."
    return None


def _limit_problem(spec: ToolSpec) -> str | None:
    """Find what would let no call of it through, or cannot be published."""
    if spec.timeout is not None and not (is_duration(spec.timeout) and spec.timeout):
        return unlike("timeout", spec.timeout, "a number of seconds above 0, and at most ten years")
    if spec.max_attempts is not None and not is_count(spec.max_attempts):
        return unlike("max_attempts", spec.max_attempts, COUNT)
    return None if spec.retry is None else spec.retry.flaw


def _schema_problem(spec: ToolSpec) -> str | None:
    try:
        encode_json(providers.input_schema(spec).get("properties"), "its parameters", _MAX_DEFINITION_BYTES)
        encode_json(spec.output_schema, "its output schema", _MAX_DEFINITION_BYTES)
        Validator.for_spec(spec)
    except InvalidToolError as error:
        return error.message
    except InvalidCallError as error:
        return f"the schema cannot be written as JSON: {error}"
    return None


def _doubts(spec: ToolSpec) -> list[str]:
    """List what works here but is probably a mistake."""
    doubts = [
        f"the type '{clean_text(p.type)}' of parameter '{p.name}' is not a JSON type, so its values are not checked"
        for p in spec.parameters
        if p.type not in KNOWN_TYPES and p.type != "any"
    ]
    default = Validator.for_spec(spec).default_error()
    return [*doubts, f"a default value is refused by its own parameter: {default}"] if default else doubts
