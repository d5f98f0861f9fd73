"""The tools offered to a model, and the calls of one of its messages: run together, answered in order."""

import asyncio
import base64
import inspect
import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypedDict

from forge_tools.artifacts.media import OCTETS
from forge_tools.artifacts.reader import seen
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, ToolNotFoundError
from forge_tools.model.artifacts import artifact_id
from forge_tools.model.calls import CallOptions, ExecutionContext, ToolResult
from forge_tools.model.content import CONTENT, Media
from forge_tools.model.tools import ARTIFACT_PATTERN, Schema, ToolCategory, ToolParameter, ToolSpec
from forge_tools.schema import shown, suggestion
from forge_tools.schema.providers import input_schema

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
    description="The handle, artifact:// and 32 or 64 hexadecimal digits, as the shortened output names it.",
    keywords={"pattern": ARTIFACT_PATTERN},
)
_SHOWN_CHARS = 200
"""How many characters of malformed arguments are shown to the model again."""

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
        if CONTENT in self.result.metadata:  # each line gets its handle; equal lines get theirs in order
            for part in self.result.content:
                text = text.replace(part.line, part.description, 1) if isinstance(part, Media) else text
        return text.encode(errors="backslashreplace").decode()


class Executor(Protocol):
    """Runs tools by name, and lists them: a ToolExecutor in this process, or an ExecutorClient of workers.

    The calls of a SyncExecutorClient block: each runs in a thread, and cancelling does not stop it.
    """

    def call(
        self, name: str, arguments: Mapping[str, Any], context: ExecutionContext | None = None
    ) -> Awaitable[ToolResult] | ToolResult:
        """Call a tool, with the keyword `options` if the Toolset has some; an invalid call or an error is a failed result."""
        ...

    def specs(self) -> list[ToolSpec]:
        """Return the tools as data, without I/O."""
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

    `categories`, `tags` and `names`, each of which may be a single one, narrow the choice; tools that are not offered do
    not run either. Calls run in `context`, by default that of the executor; those of one message run at the same time,
    at most `concurrency` of them, so 1 means one after the other. With `artifacts`, a model that is not offered Read
    gets ReadArtifact, which only reads the rest of outputs that were too long.
    """

    def __init__(
        self,
        executor: Executor,
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
            ValueError: for an unknown category, or a `concurrency` under 1.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; give at least 1, or None for no limit.")
        self._executor = executor
        self._context = context
        self._options = options
        self._concurrency = concurrency
        self._artifacts = artifacts
        self._categories = frozenset(map(ToolCategory, _each(categories)))
        self._tags = frozenset(_each(tags))
        self._names = frozenset(_each(names))
        known = by_name(executor.specs()) if self._names else {}
        for name in sorted(self._names - known.keys()):
            hint = suggestion(name, sorted(known))
            raise ToolNotFoundError(name, f"there is no such tool{hint}; it cannot be offered")

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

        # Every call ends before an error is raised: none goes on unwatched.
        results = await asyncio.gather(*map(result_of, calls), return_exceptions=True)
        settled = [_settled(result) for result in results]
        return [Answer(call, one, await seen(one, _can_be_shown)) for call, one in zip(calls, settled, strict=True)]

    async def _result(self, call: ToolCall, spec: ToolSpec | None) -> ToolResult:
        if call.problem is not None:
            return ToolResult.fail(call.problem, error_code=ErrorCode.VALIDATION_ERROR)
        is_restricted = bool(self._categories or self._tags or self._names)
        if not self._offers(spec) if spec else is_restricted:  # an executor may know tools that came after its `specs`
            said = f"Unknown tool: {shown(call.name)}"
            return self._unknown(call.name, ToolResult.fail(said, error_code=ErrorCode.TOOL_NOT_FOUND))
        arguments = arguments_of(call.name, call.arguments)
        if isinstance(arguments, str):
            return ToolResult.fail(arguments, error_code=ErrorCode.VALIDATION_ERROR)
        result = await self._run(call.name, arguments if spec is None else _without_nulls(arguments, spec))
        return result if result.error_code != ErrorCode.TOOL_NOT_FOUND else self._unknown(call.name, result)

    async def _read_on(self, call: ToolCall) -> ToolResult:
        given = call.problem or arguments_of(call.name, call.arguments)
        if not isinstance(given, str):
            given = _arguments_of_read(given)
        if isinstance(given, str):
            return ToolResult.fail(given, error_code=ErrorCode.VALIDATION_ERROR)
        return await self._run(READER, given)

    def _reader(self, known: Sequence[ToolSpec]) -> ToolSpec | None:
        """Return ReadArtifact derived from a Read that is not offered; None without Read, or if that name is taken."""
        named = {spec.name: spec for spec in known}
        read = named.get(READER)
        if not self._artifacts or read is None or self._offers(read) or NAME in named:
            return None
        paging = tuple(one for one in read.parameters if one.name in _KEPT)
        changes = {"name": NAME, "description": _DESCRIPTION, "aliases": (), "parameters": (_HANDLE, *paging)}
        return read.model_copy(update=changes)

    async def _run(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        run: Any = self._executor.call
        options = {} if self._options is None else {"options": self._options}
        if not inspect.iscoroutinefunction(run):
            run = partial(asyncio.to_thread, run)
        result: ToolResult = await run(name, arguments, self._context, **options)
        return result

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


def _each(given: Iterable[str]) -> Iterable[str]:
    return (given,) if isinstance(given, str) else given


def by_name(specs: Sequence[ToolSpec]) -> dict[str, ToolSpec]:
    """Return the tools by name and alias; a name takes precedence over another tool's alias, as in executors."""
    return {alias: spec for spec in specs for alias in spec.aliases} | {spec.name: spec for spec in specs}


def arguments_of(name: str, given: Any) -> dict[str, Any] | str:
    """Parse a call's arguments, or say what is wrong; models send any text, or nothing if there are no parameters."""
    arguments = given = {} if given is None else given
    if isinstance(given, str | bytes):
        try:
            arguments = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "nested too deeply"
            sent = repr(given[:_SHOWN_CHARS])
            return f"The arguments of {shown(name)} are not valid JSON ({why}): {sent}. Send one object."
    if not isinstance(arguments, Mapping):
        sent = repr(arguments)[:_SHOWN_CHARS]
        return f"The arguments of {shown(name)} must be one JSON object with names as keys, not {sent}."
    return dict(arguments)


def _can_be_shown(part: Media) -> bool:
    return part.type in {"image", "audio"} or part.mime_type == PDF


def _settled(result: ToolResult | BaseException) -> ToolResult:
    """Turn executor errors into results for the model; errors that the author must fix are raised."""
    if isinstance(result, ForgeError) and not isinstance(result, ConfigurationError):
        return ToolResult.fail(result.message, error_code=result.code)
    if isinstance(result, BaseException):
        raise result
    return result


def _arguments_of_read(arguments: Mapping[str, Any]) -> dict[str, Any] | str:
    """Turn arguments of ReadArtifact into those of Read, or say what is wrong: they must not reach a file."""
    if strange := sorted(arguments.keys() - {_HANDLE.name, *_KEPT}):
        return f"Unknown parameter of {NAME}: {shown(strange[0])}. It takes {_HANDLE.name}, {', '.join(_KEPT)}."
    handle = arguments.get(_HANDLE.name)
    if not isinstance(handle, str) or artifact_id(handle) is None:
        given = shown(str(handle))
        return f"{_HANDLE.name} must be a handle, artifact:// and 32 or 64 hexadecimal digits, not {given}."
    return {"file_path": handle, **{name: arguments[name] for name in _KEPT if name in arguments}}


def _without_nulls(arguments: dict[str, Any], spec: ToolSpec) -> dict[str, Any]:
    """Drop nulls inside objects if they represent an optional member, as strict schemas make models do.

    The executor already treats null parameters as absent (contradiction C38).
    """
    if spec.input_schema is not None:
        pruned: dict[str, Any] = _pruned(arguments, input_schema(spec))
        return pruned
    for parameter in spec.parameters:
        if isinstance(given := arguments.get(parameter.name), dict | list):
            arguments[parameter.name] = _pruned(given, parameter.to_json_schema())
    return arguments


def _pruned(value: Any, schema: Schema) -> Any:
    schema = next((part for part in schema.get("anyOf") or () if _has_the_members_of(part, value)), schema)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_pruned(item, schema["items"]) for item in value]
    declared = schema.get("properties")
    if not isinstance(value, dict) or not declared:
        return value
    required = schema.get("required") or ()
    return {
        name: _pruned(member, declared.get(name, {}))
        for name, member in value.items()
        if member is not None or name in required or name not in declared or _takes_null(declared[name])
    }


def _has_the_members_of(schema: Schema, value: Any) -> bool:
    """Whether a list or an object follows this alternative: strict schemas require all of its members."""
    if isinstance(value, dict):
        return value.keys() <= (schema.get("properties") or {}).keys()
    return isinstance(value, list) and "items" in schema


def _takes_null(schema: Schema) -> bool:
    if "const" in schema or "enum" in schema:
        return None in schema.get("enum", [schema.get("const")])
    types = schema.get("type")
    if types is None and "anyOf" in schema:
        return any(_takes_null(part) for part in schema["anyOf"])
    return types is None or types == "null" or (isinstance(types, list) and "null" in types)
