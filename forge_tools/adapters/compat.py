"""The tools of any executor for callers that expect text: functions of arguments, and calls that a person may confirm."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from forge_tools.adapters.toolset import Answer, Executor, ToolCall, Toolset, arguments_of, by_name
from forge_tools.errors import ErrorCode, ToolError, ToolNotFoundError
from forge_tools.langchain import run_in_thread
from forge_tools.model.calls import CallOptions, ExecutionContext
from forge_tools.model.tools import Schema, ToolSpec
from forge_tools.schema import shown, suggestion
from forge_tools.schema.providers import render
from forge_tools.secrets.detection import as_shown
from forge_tools.tool.base import brief

Arguments = Mapping[str, Any] | str | None
"""An object, or the JSON text of one."""

Confirm = Callable[[str], bool | Awaitable[bool]]
"""Asks a person whether a call may run; receives a sentence that says what it may do, and with which arguments."""

_EFFECTS = {
    "writes_files": "write files",
    "executes_commands": "execute commands",
    "accesses_network": "reach the network",
}
"""The capabilities that require confirmation."""

_UNAVAILABLE = frozenset({ErrorCode.STORAGE_UNAVAILABLE, ErrorCode.SHELL_HOST_UNAVAILABLE})
"""Failures of the infrastructure beneath tools, reported in its own words."""


class TextTools:
    """Tools that answer with text (spec S1-53..56), and tools as functions (spec S2-08..13).

    execute_tool = TextTools(executor).execute_tool
    print(await execute_tool("Write", {"file_path": "a.txt", "content": "a"}, confirm))

    Calls run in `context`, by default that of the executor. An executor that is not connected raises
    ConfigurationError.
    """

    def __init__(
        self, executor: Executor, *, context: ExecutionContext | None = None, options: CallOptions | None = None
    ) -> None:
        self._toolset = Toolset(executor, context=context, options=options)
        self._changes_nothing = context is not None and context.dry_run

    def declarations(self, format: str = "openai") -> list[Schema]:
        """Return the tools in a provider's format.

        Raises:
            ValueError: for an unknown format.
        """
        return [render(spec, format) for spec in self._toolset.specs()]

    async def execute_tool(self, name: str, args: Arguments = None, confirm: Confirm | None = None) -> str:
        """Run a tool and return its output, as JSON if it is data, or `Error: ...`.

        `confirm` is asked before tools that write files, execute commands or reach the network, and before tools for
        which this is unknown. If it answers anything but True, the call does not run. Its exceptions propagate.
        """
        call = self.prepare(name, args)
        if confirm is not None and call.question is not None:
            answer = confirm(call.question)
            if (await answer if inspect.isawaitable(answer) else answer) is not True:
                return call.refusal
        return await self.run(call)

    def function(self, name: str) -> Callable[[Arguments], Awaitable[str]]:
        """Return a tool as a function from arguments to text: like `ToolExecutor.function`, for any executor.

        Raises:
            ToolNotFoundError: when there is no such tool. The function raises ToolError, with a message fit to be shown.
        """
        known = by_name(self._toolset.specs())
        if name not in known:
            raise ToolNotFoundError(name, f"not found: there is no such tool{suggestion(name, sorted(known))}")
        tool = known[name].name

        async def run(arguments: Arguments) -> str:
            return await self.run_or_raise(self.prepare(tool, arguments))

        return run

    def functions(self) -> dict[str, Callable[[Arguments], Awaitable[str]]]:
        return {spec.name: self.function(spec.name) for spec in self._toolset.specs()}

    def prepare(self, name: str, args: Arguments) -> "TextCall":
        """Inspect a call before it runs."""
        spec, arguments = by_name(self._toolset.specs()).get(name), arguments_of(name, args)
        if isinstance(arguments, str):
            return _refused(name, spec, f"must be one JSON object with names as keys, not {brief(args)}.")
        try:
            question = None if self._changes_nothing else _question(name, spec, arguments)
        except RecursionError:
            return _refused(name, spec, "are nested too deeply to be displayed. Flatten them.")
        return TextCall(ToolCall("", name, arguments), spec, question)

    async def run(self, call: "TextCall") -> str:
        """Run a prepared call; every outcome is text."""
        try:
            return await self.run_or_raise(call)
        except ToolError as error:
            return f"Error: {error.message}"

    async def run_or_raise(self, call: "TextCall") -> str:
        """Run a prepared call.

        Raises:
            ToolError: when it fails.
        """
        [answer] = await self._toolset.answer([call.asked])
        if answer.is_error:
            raise ToolError(call.asked.name, _problem(answer, call.spec))
        return answer.text if answer.result.to_text() else ""  # adapters write "(no output)"; here text is unchanged


class SyncTextTools:
    """`TextTools` without `await`, usable inside a running event loop: for a ToolExecutor or a SyncExecutorClient.

    Calls run on their own thread; `confirm` is asked on the caller's.
    """

    def __init__(
        self, executor: Executor, *, context: ExecutionContext | None = None, options: CallOptions | None = None
    ) -> None:
        self._tools = TextTools(executor, context=context, options=options)

    def declarations(self, format: str = "openai") -> list[Schema]:
        return self._tools.declarations(format)

    def execute_tool(self, name: str, args: Arguments = None, confirm: Callable[[str], bool] | None = None) -> str:
        call = self._tools.prepare(name, args)
        if confirm is not None and call.question is not None and confirm(call.question) is not True:
            return call.refusal
        return run_in_thread(lambda: self._tools.run(call))

    def function(self, name: str) -> Callable[[Arguments], str]:
        run = self._tools.function(name)
        return lambda arguments: run_in_thread(lambda: run(arguments))

    def functions(self) -> dict[str, Callable[[Arguments], str]]:
        return {name: self.function(name) for name in self._tools.functions()}


class TextCall(NamedTuple):
    """A call before it runs; `question` is what to ask a person, None if no confirmation is needed."""

    asked: ToolCall
    spec: ToolSpec | None
    question: str | None

    @property
    def refusal(self) -> str:
        return f"Error: {shown(self.asked.name)} was not run: the call was not confirmed."


def _refused(name: str, spec: ToolSpec | None, why: str) -> TextCall:
    return TextCall(ToolCall("", name, {}, f"The arguments of {shown(name)} {why}"), spec, None)


def _question(name: str, spec: ToolSpec | None, arguments: dict[str, Any]) -> str | None:
    """Ask with all the arguments, on one line: a person must not confirm arguments that were cut off."""
    if spec is None:
        return f"It is not known here what {shown(name)} may do. Run it with {arguments!r}?"
    effects = [words for flag, words in _EFFECTS.items() if getattr(spec.capabilities, flag)]
    if not effects:
        return None
    return f"{spec.name} may {' and '.join(effects)}. Run it with {as_shown(spec, arguments)!r}?"


def _problem(answer: Answer, spec: ToolSpec | None) -> str:
    """Say what went wrong, for people: what is unavailable for now, or what the tool takes (spec S2-20, S2-21)."""
    result = answer.result
    if result.error_code != ErrorCode.VALIDATION_ERROR:
        text = answer.text.removeprefix("Error: ")
        return f"Service unavailable: {text}" if result.error_code in _UNAVAILABLE else text
    text = "\n".join(map(str, result.metadata.get("errors") or [result.error]))
    if spec is None:
        return text
    required = [f"{p.name} ({p.type}: {p.description.rstrip('.')})" for p in spec.declared if p.required]
    optional = [p.name for p in spec.declared if not p.required]
    told = f"{text}\n{spec.name} requires {', '.join(required) or 'no parameters'}."
    return f"{told} Optional: {', '.join(optional)}." if optional else told
