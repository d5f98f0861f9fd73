"""The tool calls of one model message: in as the provider gave them, run together, answered in order."""

import asyncio
import inspect
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forge_tools.adapters.face import Executor
from forge_tools.adapters.reading_on import READER, arguments_of_read, artifact_reader
from forge_tools.errors import ConfigurationError, ErrorCode, ForgeError, ToolNotFoundError
from forge_tools.records import CallOptions, ExecutionContext, Schema, ToolCategory, ToolResult, ToolSpec
from forge_tools.validation import shown, suggestion

UNREADABLE = "INVALID_JSON"
"""Under which arguments that are no object of JSON go back to the model: providers refuse a history with such."""

_EXCERPT = 200
"""Characters of malformed arguments that a model is shown again."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a model asked for it.

    `arguments` is JSON text or an object. `problem` says why it must not run, and what to do instead.
    """

    id: str
    name: str
    arguments: Any
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call, as a model is told."""

    call: ToolCall
    result: ToolResult

    @property
    def is_error(self) -> bool:
        return not self.result.success

    @property
    def text(self) -> str:
        """The output, JSON where it is data, or `Error: ...`; with the handle of what was cut. Encodable as UTF-8."""
        text = self.result.to_text() or "(no output)"
        if self.result.error_code == ErrorCode.VALIDATION_ERROR and isinstance(self.result.error_details, list):
            text = "\n".join(f"Error: {problem}" for problem in self.result.error_details) or text
        if hint := self.result.metadata.get("hint"):
            text = f"{text} ({hint})"
        if (artifact := self.result.metadata.get("artifact")) and str(artifact) not in text:
            text = f"{text}\n[The whole output is kept as {artifact}: give that to Read or Grep in place of a path.]"
        return text.encode(errors="backslashreplace").decode()


class BlockingExecutor(Protocol):
    """An executor whose calls block, such as a SyncExecutorClient: each runs in a thread, and cancelling leaves it be."""

    def call(
        self, name: str, arguments: Mapping[str, Any], context: ExecutionContext | None = None, **options: Any
    ) -> ToolResult:
        """Run a tool with its arguments as one object."""
        ...

    def specs(self) -> list[ToolSpec]:
        """The tools as data."""
        ...


class Toolset:
    """The tools of an executor that a model is offered, and the one way its calls are answered.

    `categories`, `tags` and `names` narrow the choice; what is not offered is not run either. Calls run in `context`,
    by default that of the executor, those of one message at the same time; with `concurrency` at most so many, so that
    1 means one after the other. With `artifacts`, a model that is not offered Read gets ReadArtifact, which reads on in
    outputs that were too long, and nothing else.
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
        """Choose among the tools there are; an ExecutorClient must be connected.

        Raises:
            ToolNotFoundError: when a name is that of no tool.
            ValueError: for a category that is none.
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
        """The tools offered, as the executor has them now."""
        known = self._executor.specs()
        reader = self._reader(known)
        offered = [spec for spec in known if self._offers(spec)]
        return offered if reader is None else [*offered, reader]

    async def answer(self, calls: Sequence[ToolCall]) -> list[Answer]:
        """Run the calls of one message together; answers come in the order of the calls, failures among them.

        Raises:
            ConfigurationError: when the executor is not connected.
        """
        known = self._executor.specs()
        by_name = {name: spec for spec in known for name in (*spec.aliases, spec.name)}
        reader = self._reader(known)
        slots = asyncio.Semaphore(self._concurrency or max(1, len(calls)))

        async def result_of(call: ToolCall) -> ToolResult:
            async with slots:
                if reader is not None and call.name == reader.name:
                    return await self._read_on(call)
                return await self._result(call, by_name.get(call.name))

        results = await asyncio.gather(*map(result_of, calls), return_exceptions=True)
        return [Answer(call, _settled(result)) for call, result in zip(calls, results, strict=True)]

    async def _result(self, call: ToolCall, spec: ToolSpec | None) -> ToolResult:
        if call.problem is not None:
            return _refusal(call.problem)
        if not (self._offers(spec) if spec else self._offers_all):
            return self._unknown(call.name, _refusal(f"Unknown tool: {shown(call.name)}", ErrorCode.TOOL_NOT_FOUND))
        arguments = _read(call)
        if isinstance(arguments, ToolResult):
            return arguments
        if spec is not None:
            arguments = _without_nulls(arguments, spec)
        result = await self._run(call.name, arguments)
        return result if result.error_code != ErrorCode.TOOL_NOT_FOUND else self._unknown(call.name, result)

    async def _read_on(self, call: ToolCall) -> ToolResult:
        arguments = _read(call) if call.problem is None else _refusal(call.problem)
        if isinstance(arguments, ToolResult):
            return arguments
        given = arguments_of_read(arguments)
        return _refusal(given) if isinstance(given, str) else await self._run(READER, given)

    def _reader(self, known: Sequence[ToolSpec]) -> ToolSpec | None:
        if not self._artifacts or any(spec.name == READER and self._offers(spec) for spec in known):
            return None
        return artifact_reader(known)

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
        """Whether there is no choice to keep to; an executor may know of tools that came after its `specs` were read."""
        return not (self._categories or self._tags or self._names)

    def _offers(self, spec: ToolSpec) -> bool:
        return (
            (not self._categories or spec.category in self._categories)
            and (not self._tags or not self._tags.isdisjoint(spec.tags))
            and (not self._names or not self._names.isdisjoint((spec.name, *spec.aliases)))
        )

    def _unknown(self, name: str, result: ToolResult) -> ToolResult:
        """Suggest only what is offered."""
        hint = suggestion(name, [spec.name for spec in self.specs()]).strip(" ()")
        return result.model_copy(update={"metadata": result.metadata | {"hint": hint or None}})

    def _require(self, names: Collection[str]) -> None:
        known = {name for spec in self._executor.specs() for name in (spec.name, *spec.aliases)} if names else set()
        for name in sorted(set(names) - known):
            raise ToolNotFoundError(
                name, f"there is no such tool{suggestion(name, sorted(known))}; it cannot be offered"
            )


def sendable(arguments: Any) -> dict[str, Any]:
    """Make of arguments, as a model gave them, what a request takes: an object without NaN and infinities."""
    if arguments is None:
        return {}
    given = arguments
    if isinstance(arguments, str):
        try:
            given = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return {UNREADABLE: arguments}
    if not isinstance(given, Mapping):
        return {UNREADABLE: arguments}
    try:
        json.dumps(given, allow_nan=False)
    except ValueError:
        return {UNREADABLE: arguments if isinstance(arguments, str) else json.dumps(given)}
    return dict(given)


def sendable_text(arguments: Any) -> str:
    """Make text of what a request takes; arguments that it would take stay as they are."""
    sent = sendable(arguments)
    is_fine = isinstance(arguments, str) and arguments.strip() and UNREADABLE not in sent
    return arguments if is_fine else json.dumps(sent)


def _settled(result: ToolResult | BaseException) -> ToolResult:
    """Tell the model what the executor could not do; what the author must mend is raised."""
    if isinstance(result, ForgeError) and not isinstance(result, ConfigurationError):
        return ToolResult.fail(result.message, error_code=result.code)
    if isinstance(result, BaseException):
        raise result
    return result


def _read(call: ToolCall) -> dict[str, Any] | ToolResult:
    """Read arguments; models send all kinds of text, and nothing at all for tools without parameters."""
    arguments = call.arguments
    if isinstance(arguments, str | bytes) or arguments is None:
        try:
            arguments = json.loads(arguments) if arguments and arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "nested too deeply"
            sent = repr(call.arguments[:_EXCERPT])
            return _refusal(f"The arguments of {shown(call.name)} are not valid JSON ({why}): {sent}. Send one object.")
    if not isinstance(arguments, Mapping):
        sent = repr(arguments)[:_EXCERPT]
        return _refusal(f"The arguments of {shown(call.name)} must be one JSON object with names as keys, not {sent}.")
    return dict(arguments)


def _refusal(error: str, code: str = ErrorCode.VALIDATION_ERROR) -> ToolResult:
    return ToolResult.fail(error, error_code=code)


def _without_nulls(arguments: dict[str, Any], spec: ToolSpec) -> dict[str, Any]:
    """Leave out nulls inside objects where they stand for an optional member, as strict schemas make models do.

    Those of parameters themselves the executor takes for absent already (contradiction C38).
    """
    if spec.input_schema is not None:
        pruned: dict[str, Any] = _pruned(arguments, spec.input_schema)
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
    """Whether this is the alternative that a list or an object follows: strict ones name all members of theirs."""
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
