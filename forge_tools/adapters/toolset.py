"""The tools offered to a model, and the calls of one of its messages: run together, answered in order."""

import asyncio
import base64
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict

from forge_tools.adapters.arguments import read, without_nulls
from forge_tools.artifacts.media import OCTETS
from forge_tools.artifacts.reader import seen
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, ToolNotFoundError
from forge_tools.model import (
    CallOptions,
    ExecutionContext,
    Media,
    ToolCategory,
    ToolParameter,
    ToolResult,
    ToolSpec,
    artifact_id,
)
from forge_tools.model.content import CONTENT
from forge_tools.model.tools import ARTIFACT_PATTERN
from forge_tools.schema import shown, suggestion

PDF = "application/pdf"

READER = "Read"
"""ReadArtifact replaces this tool for models that are not offered it, and so cannot read files."""

NAME = "ReadArtifact"

_DESCRIPTION = (
    "Continue reading an output that was too long to be shown: it names artifact://... and says where the omitted part "
    "begins, such as offset=8197."
)
_HANDLE = ToolParameter(
    name="artifact",
    type="string",
    description="The handle, artifact:// and 32 hexadecimal digits, as the shortened output names it.",
    keywords={"pattern": ARTIFACT_PATTERN},
)
_KEPT = ("offset", "limit", "tail", "column")
"""The parameters of Read that select the page."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model requested it.

    `arguments` is JSON text or an object. `problem` says why it must not run, and what to do instead.
    """

    id: str
    name: str
    arguments: Any
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A part and its bytes, as messages carry them."""

    part: Media
    data: bytes

    @property
    def mime_type(self) -> str:
        return self.part.mime_type or OCTETS

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()

    @property
    def url(self) -> str:
        return f"data:{self.mime_type};base64,{self.base64}"

    @property
    def is_image(self) -> bool:
        return self.part.type == "image"

    @property
    def is_pdf(self) -> bool:
        return self.part.mime_type == PDF


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call, for the model. `seen` maps handles to the bytes of parts that fit into a message."""

    call: ToolCall
    result: ToolResult
    seen: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def media(self) -> list["Shown"]:
        """The images, sounds and PDF files that can be shown to a model, beside the text that has a line for each."""
        parts = [part for part in self.result.content if isinstance(part, Media)] if self.seen else []
        return [Shown(part, self.seen[part.uri]) for part in parts if part.uri is not None and part.uri in self.seen]

    @property
    def is_error(self) -> bool:
        return not self.result.success

    @property
    def text(self) -> str:
        """The output, as JSON if it is data, or `Error: ...`; with the handle of what was cut. Encodable as UTF-8."""
        text = self.result.to_text() or "(no output)"
        if self.result.error_code == ErrorCode.VALIDATION_ERROR and isinstance(self.result.error_details, list):
            text = "\n".join(f"Error: {problem}" for problem in self.result.error_details) or text
        if hint := self.result.metadata.get("hint"):
            text = f"{text} ({hint})"
        if (artifact := self.result.metadata.get("artifact")) and str(artifact) not in text:
            holds = self.result.metadata.get("artifact_holds", "whole output")
            text = f"{text}\n[{artifact} has the {holds}: pass that to Read or Grep instead of a path.]"
        if CONTENT in self.result.metadata:
            for part in self.result.content:
                text = text.replace(part.line, part.description, 1) if isinstance(part, Media) else text
        return text.encode(errors="backslashreplace").decode()


class Executor(Protocol):
    """Runs tools by name, and lists them: a ToolExecutor in this process, or an ExecutorClient of workers."""

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        context: ExecutionContext | None = None,
        options: CallOptions | None = None,
    ) -> ToolResult:
        """Call a tool; an invalid call, or an error while it runs, gives a failed result."""
        ...

    def specs(self) -> list[ToolSpec]:
        """Return the tools as data, without I/O."""
        ...


class BlockingExecutor(Protocol):
    """An executor with blocking calls, such as SyncExecutorClient: each runs in a thread; cancelling does not stop it."""

    def call(
        self, name: str, arguments: Mapping[str, Any], context: ExecutionContext | None = None, **options: Any
    ) -> ToolResult:
        """Run a tool with its arguments as one object."""
        ...

    def specs(self) -> list[ToolSpec]:
        """Return the tools as data."""
        ...


class Choice(TypedDict, total=False):
    """The keywords of Toolset besides `concurrency`, for functions that create one."""

    categories: Iterable[ToolCategory | str]
    tags: Iterable[str]
    names: Iterable[str]
    context: ExecutionContext | None
    options: CallOptions | None
    artifacts: bool


class Toolset:
    """The tools of an executor that a model is offered, and the only way its calls are answered.

    `categories`, `tags` and `names` narrow the choice; tools that are not offered do not run either. Calls run in
    `context`, by default that of the executor; those of one message run at the same time, at most `concurrency` of
    them, so 1 means one after the other. With `artifacts`, a model that is not offered Read gets ReadArtifact, which
    only reads the rest of outputs that were too long.
    """

    def __init__(
        self,
        executor: Executor | BlockingExecutor,
        *,
        categories: Iterable[ToolCategory | str] = (),
        tags: Iterable[str] = (),
        names: Iterable[str] = (),
        context: ExecutionContext | None = None,
        options: CallOptions | None = None,
        concurrency: int | None = None,
        artifacts: bool = False,
    ) -> None:
        """Choose among the available tools; an ExecutorClient must be connected.

        Raises:
            ToolNotFoundError: when no tool has a given name.
            ValueError: for an unknown category.
        """
        self._executor = executor
        self._context = context
        self._options = options
        self._concurrency = concurrency
        self._artifacts = artifacts
        self._categories = frozenset(ToolCategory(category) for category in categories)
        self._tags = frozenset(tags)
        self._names = frozenset(names)
        self._require(self._names)

    def specs(self) -> list[ToolSpec]:
        """Return the tools offered, as the executor has them now."""
        known = self._executor.specs()
        reader = self._reader(known)
        offered = [spec for spec in known if self._offers(spec)]
        return offered if reader is None else [*offered, reader]

    async def answer(self, calls: Sequence[ToolCall]) -> list[Answer]:
        """Run the calls of one message together; answers come in the order of the calls, including failures.

        Raises:
            ConfigurationError: when the executor is not connected.
        """
        known = self._executor.specs()
        named = by_name(known)
        reader = self._reader(known)
        slots = asyncio.Semaphore(self._concurrency or max(1, len(calls)))

        async def result_of(call: ToolCall) -> ToolResult:
            async with slots:
                is_reader = reader is not None and call.name == reader.name
                return await (self._read_on(call) if is_reader else self._result(call, named.get(call.name)))

        results = await asyncio.gather(*map(result_of, calls), return_exceptions=True)
        settled = [_settled(result) for result in results]
        return [Answer(call, one, await seen(one, _can_be_shown)) for call, one in zip(calls, settled, strict=True)]

    async def _result(self, call: ToolCall, spec: ToolSpec | None) -> ToolResult:
        if call.problem is not None:
            return _refusal(call.problem)
        if not (self._offers(spec) if spec else self._offers_all):
            return self._unknown(call.name, _refusal(f"Unknown tool: {shown(call.name)}", ErrorCode.TOOL_NOT_FOUND))
        arguments = read(call.name, call.arguments)
        if isinstance(arguments, str):
            return _refusal(arguments)
        result = await self._run(call.name, arguments if spec is None else without_nulls(arguments, spec))
        return result if result.error_code != ErrorCode.TOOL_NOT_FOUND else self._unknown(call.name, result)

    async def _read_on(self, call: ToolCall) -> ToolResult:
        given = call.problem or read(call.name, call.arguments)
        if not isinstance(given, str):
            given = _arguments_of_read(given)
        return _refusal(given) if isinstance(given, str) else await self._run(READER, given)

    def _reader(self, known: Sequence[ToolSpec]) -> ToolSpec | None:
        if not self._artifacts or any(spec.name == READER and self._offers(spec) for spec in known):
            return None
        return _artifact_reader(known)

    async def _run(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        run: Any = self._executor.call
        result: ToolResult
        if inspect.iscoroutinefunction(run):
            result = await run(name, arguments, self._context, self._options)
        else:
            options = {} if self._options is None else {"options": self._options}
            result = await asyncio.to_thread(run, name, arguments, self._context, **options)
        return result

    @property
    def _offers_all(self) -> bool:
        """Whether the choice is unrestricted; an executor may know tools that appeared after its `specs` were read."""
        return not (self._categories or self._tags or self._names)

    def _offers(self, spec: ToolSpec) -> bool:
        return (
            (not self._categories or spec.category in self._categories)
            and (not self._tags or not self._tags.isdisjoint(spec.tags))
            and (not self._names or not self._names.isdisjoint((spec.name, *spec.aliases)))
        )

    def _unknown(self, name: str, result: ToolResult) -> ToolResult:
        """Suggest only tools that are offered."""
        hint = suggestion(name, [spec.name for spec in self.specs()]).strip(" ()")
        return result.model_copy(update={"metadata": result.metadata | {"hint": hint or None}})

    def _require(self, names: Iterable[str]) -> None:
        known = by_name(self._executor.specs()) if names else {}
        for name in sorted(set(names) - known.keys()):
            hint = suggestion(name, sorted(known))
            raise ToolNotFoundError(name, f"there is no such tool{hint}; it cannot be offered")


def by_name(specs: Sequence[ToolSpec]) -> dict[str, ToolSpec]:
    """Return the tools by name and alias; a name takes precedence over another tool's alias, as in executors."""
    return {alias: spec for spec in specs for alias in spec.aliases} | {spec.name: spec for spec in specs}


def _can_be_shown(part: Media) -> bool:
    return part.type in {"image", "audio"} or part.mime_type == PDF


def _settled(result: ToolResult | BaseException) -> ToolResult:
    """Turn executor errors into results for the model; errors that the author must fix are raised."""
    if isinstance(result, ForgeError) and not isinstance(result, ConfigurationError):
        return ToolResult.fail(result.message, error_code=result.code)
    if isinstance(result, BaseException):
        raise result
    return result


def _refusal(error: str, code: str = ErrorCode.VALIDATION_ERROR) -> ToolResult:
    return ToolResult.fail(error, error_code=code)


def _artifact_reader(specs: Iterable[ToolSpec]) -> ToolSpec | None:
    """Return ReadArtifact derived from the Read among `specs`; None without Read, or if that name is taken."""
    named = {spec.name: spec for spec in specs}
    if READER not in named or NAME in named:
        return None
    read = named[READER]
    paging = tuple(one for one in read.parameters if one.name in _KEPT)
    return read.model_copy(
        update={"name": NAME, "description": _DESCRIPTION, "aliases": (), "parameters": (_HANDLE, *paging)}
    )


def _arguments_of_read(arguments: Mapping[str, Any]) -> dict[str, Any] | str:
    """Turn arguments of ReadArtifact into those of Read, or say what is wrong: they must not reach a file."""
    if strange := sorted(arguments.keys() - {_HANDLE.name, *_KEPT}):
        return f"Unknown parameter of {NAME}: {shown(strange[0])}. It takes {_HANDLE.name}, {', '.join(_KEPT)}."
    handle = arguments.get(_HANDLE.name)
    if not isinstance(handle, str) or artifact_id(handle) is None:
        return f"{_HANDLE.name} must be a handle, artifact:// and 32 hexadecimal digits, not {shown(str(handle))}."
    return {"file_path": handle, **{name: arguments[name] for name in _KEPT if name in arguments}}
