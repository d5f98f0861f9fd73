"""`@tool`: makes a tool of a typed function."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import is_dataclass
from traceback import walk_stack
from types import NoneType, TracebackType
from typing import (
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_origin,
    get_type_hints,
    overload,
)

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python

from forge_tools.errors import CallFailedError, ErrorCode, InvalidCallError, InvalidToolError, first_problem
from forge_tools.model.calls import ExecutionContext, RetryPolicy, ToolResult
from forge_tools.model.content import CONTENT, Json, Media, Part, Text, holds_parts
from forge_tools.model.tools import Capabilities, Lane, Tier, ToolCategory, ToolParameter
from forge_tools.schema import clean_text, shown, suggestion
from forge_tools.tool.base import BaseTool
from forge_tools.tool.docstrings import read_docstring
from forge_tools.tool.failures import frame_of
from forge_tools.tool.registry import check_definition
from forge_tools.tool.signatures import Signature, accepted, asked_types

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H_co = TypeVar("H_co", covariant=True)


class Caller(Protocol):
    """Runs a tool by its name: a client or an executor."""

    def call(
        self, name: str, parameters: Mapping[str, Any] | None = None, context: ExecutionContext | None = None, /
    ) -> Awaitable[ToolResult]: ...


class Submitter(Protocol[H_co]):
    """Accepts a call and returns a handle for it."""

    def submit(
        self, name: str, parameters: Mapping[str, Any] | None = None, context: ExecutionContext | None = None, /
    ) -> Awaitable[H_co]: ...


class Declaration(TypedDict, total=False):
    """What can be declared about a tool besides its function: attributes of a BaseTool, and sensitive parameters."""

    name: str
    description: str
    category: ToolCategory
    version: str
    tags: Sequence[str]
    aliases: Sequence[str]
    lane: Lane
    timeout: float
    max_attempts: int
    retry: RetryPolicy
    capabilities: Capabilities
    walls: Tier
    sensitive: Collection[str]


class FunctionTool(BaseTool, Generic[P, R]):
    """A function that agents call as a tool and programs as a plain function.

    `given` maps types to functions that create their values on the host: parameters annotated with such a type are hidden
    from callers, as are those annotated ExecutionContext.

    Raises:
        InvalidToolError: naming the function, what cannot be described to a model, and how to fix it.
    """

    name: str = ""
    description: str = ""
    category: ToolCategory = ToolCategory.OTHER
    parameters: tuple[ToolParameter, ...] = ()

    def __init__(
        self,
        function: Callable[P, R],
        /,
        given: Mapping[Any, Callable[[], Any]] | None = None,
        **declared: Unpack[Declaration],
    ) -> None:
        _require_function(function)
        _require_known(function.__name__, declared)
        functools.update_wrapper(self, function)
        self._function: Callable[..., Any] = function
        self._is_async = inspect.iscoroutinefunction(function)
        docs = read_docstring(function.__doc__)
        sensitive = declared.pop("sensitive", ())
        self._signature = Signature(
            function, docs, given=given, sensitive=[sensitive] if isinstance(sensitive, str) else sensitive
        )
        self.name = function.__name__
        self.description = docs.description
        self.lane = "async" if self._is_async else "process"
        self.parameters = self._signature.parameters
        self._dependencies = self._signature.dependencies  # BaseTool would look at `_execute`, which declares none
        for attribute, value in declared.items():
            setattr(self, attribute, value)
        self._returned = _structure(self._returns)
        if self._returned is not None:
            self.output_schema = self._returned.json_schema(mode="serialization")
        self._require_sound()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no validation, no limits, no record."""
        return cast("R", self._function(*args, **kwargs))

    @overload
    def on(self: "FunctionTool[P, Coroutine[Any, Any, T]]", client: Caller) -> Callable[P, Awaitable[T]]: ...

    @overload
    def on(self, client: Caller) -> Callable[P, Awaitable[R]]: ...

    def on(self, client: Caller) -> Callable[..., Awaitable[Any]]:
        """Return this function as run by a client or executor: same parameters, same return value.

        An ExecutionContext among the arguments becomes the context of the call.

        Raises:
            CallFailedError: when it is awaited and the call failed, or its output is not what the annotation promises.
        """

        async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            context, parameters = self._signature.as_parameters(args, kwargs)
            result = await client.call(self.name, parameters, context)
            return result if self._returns is ToolResult else await self._value(result)

        return call

    async def submit(self, client: Submitter[H_co], /, *args: P.args, **kwargs: P.kwargs) -> H_co:
        """Submit the call to a client and return its handle at once."""
        context, parameters = self._signature.as_parameters(args, kwargs)
        return await client.submit(self.name, parameters, context)

    async def _value(self, result: ToolResult) -> Any:
        """Return what the function returned: its output went through JSON, images, files and bytes became parts."""
        output, returns = result.unwrap(), self._returns
        if returns is NoneType:
            return None
        parts = [one for one in result.content if not isinstance(one, Text)] if CONTENT in result.metadata else []
        if isinstance(output, str) and parts and parts[0].line in output and returns is not str:
            value = _value_of(result.content, returns)
            if asked_types(returns) != (bytes,):
                return value
            return value.encode() if isinstance(value, str) else await value.bytes()
        try:
            return output if self._read is None else accepted(self._read, output)
        except ValidationError as error:
            cut = " It was longer than max_output_size." if result.metadata.get("truncated") is True else ""
            said = f"{self.name} ran, but its output is not what its annotation promises: {first_problem(error)}.{cut}"
            raise CallFailedError(said, ErrorCode.UNSTORABLE, result) from error

    @functools.cached_property
    def _read(self) -> TypeAdapter[Any] | None:
        """What reads an output; None if its annotation says nothing, or names what JSON cannot hold."""
        try:
            return None if self._returns is None or self._returns is Any else TypeAdapter(self._returns)
        except PydanticUserError:
            return None

    @functools.cached_property
    def _returns(self) -> Any:
        try:
            return get_type_hints(self._function, include_extras=True).get("return")
        except (NameError, AttributeError, TypeError, SyntaxError):  # known only to type checkers
            return None

    def __reduce__(self) -> str:
        """Pickle as functions do: by import path."""
        return self._function.__qualname__

    async def _execute(self, context: ExecutionContext, /, **values: Any) -> ToolResult:
        try:
            args, kwargs = self._signature.bind(context, values)
        except InvalidCallError as error:  # an error that only the annotations could detect
            return self._refusal(error.message, error.details)
        call = functools.partial(self._function, *args, **kwargs)
        if self._is_async:
            return self._result(await call())

        def run() -> Any:  # on its thread up to the result, since reading an iterator to its end may block too
            output = call()
            return output if inspect.isawaitable(output) else self._result(output)  # a `def` around an `async def`

        outcome = await in_thread(run)
        return self._result(await outcome) if inspect.isawaitable(outcome) else outcome

    def _result(self, output: Any) -> ToolResult:
        if isinstance(output, ToolResult):
            return output
        if self._returned is not None:
            try:
                output = self._returned.validate_python(output)
            except ValidationError as error:
                said = f"The tool ran, but its result does not match its annotation: {first_problem(error)}"
                return ToolResult.fail(clean_text(said), error_code=ErrorCode.UNSTORABLE)
        return ToolResult.ok(_as_json(output))

    async def _dry_run(self, context: ExecutionContext, /, **values: Any) -> ToolResult:
        try:
            self._signature.bind(context, values)
        except InvalidCallError as error:
            return self._refusal(error.message, error.details)
        return await super()._dry_run(context, **values)

    def _takes_extra(self) -> bool:
        return False

    def _require_sound(self) -> None:
        name = self._function.__name__
        if not self.description.strip():
            raise InvalidToolError(
                name,
                f"{_label(self._function)} has no docstring. Write one that says what it does, or pass description=.",
            )
        if self.lane == "async" and not self._is_async:
            raise InvalidToolError(
                name,
                f"{_label(self._function)} is a `def`, which would block the async lane. Write `async def`, or leave out "
                'lane="async".',
            )
        check_definition(self, strict=True)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(**declared: Unpack[Declaration]) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **declared: Unpack[Declaration]) -> Any:
    """Make a tool of a typed function: `@tool`, or `@tool(category=..., timeout=...)` with what to declare.

    Name, description, parameters and lane come from the function: a `def` runs in the process lane, an `async def` in
    the async lane. Its return value is the output, unless it is a ToolResult.

    Raises:
        InvalidToolError: naming the function, what cannot be described to a model, and how to fix it.
    """
    if function is None:
        return lambda function: FunctionTool(function, **declared)
    return FunctionTool(function, **declared)


def _require_function(function: Any) -> None:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        what = f"the class {function.__name__}" if inspect.isclass(function) else f"a {type(function).__name__}"
        raise InvalidToolError(
            shown(repr(function)),
            f"@tool takes a function or a bound method, not {what}. Write `def`, or subclass BaseTool.",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidToolError(
            function.__name__,
            f"{_label(function)} yields, but a call has one result. Return a list or the whole text, and report progress "
            "with `context.emit`.",
        )


def _require_known(name: str, declared: Mapping[str, Any]) -> None:
    known = Declaration.__annotations__
    for keyword in declared:
        if keyword not in known:
            raise InvalidToolError(name, f"@tool takes no '{shown(keyword)}'{suggestion(keyword, known)}")


def _label(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


async def in_thread(call: Callable[[], R]) -> R:
    """Run `call` on its own daemon thread, in a copy of this context; if cancelled it runs on and its result is dropped.

    The traceback of the cancel shows where it was.
    """
    # Not `asyncio.to_thread`: its threads are few, calls that never return would use them up, and a loop waits for them
    # when it ends.
    done = Future[tuple[Any, BaseException | None]]()  # as a value: a future cannot hold a StopIteration
    done.set_running_or_notify_cancel()
    context, ending = copy_context(), asyncio.wrap_future(done)

    def run() -> None:
        nonlocal done
        try:
            value = context.run(call)
        except BaseException as error:  # noqa: BLE001 raised again where it is awaited
            done.set_result((None, error))
        else:
            done.set_result((value, None))
        del done  # the frames of an error lead to this one, from where nothing may lead back to the error

    thread = threading.Thread(target=run, name="forge-function", daemon=True)
    thread.start()
    try:
        value, error = await ending
    except asyncio.CancelledError as cancelled:
        raise cancelled.with_traceback(_traceback_of(thread)) from None
    if error is not None:
        try:
            raise error
        finally:
            del error, ending  # likewise
    return cast("R", value)


def _traceback_of(thread: threading.Thread) -> TracebackType | None:
    """Return what the thread is running now, as if it were raised there."""
    frame, found = frame_of(thread), None
    for inner, line in walk_stack(frame) if frame else ():
        found = TracebackType(found, inner, inner.f_lasti, line)
    return found


def _structure(returns: Any) -> TypeAdapter[Any] | None:
    """Return what describes and checks values of a model, a dataclass or a TypedDict; None for anything else."""
    is_structure = inspect.isclass(returns) and (
        issubclass(returns, BaseModel) or is_dataclass(returns) or hasattr(returns, "__required_keys__")
    )
    if not is_structure or issubclass(returns, ToolResult | Media):
        return None
    try:
        adapter = TypeAdapter(returns)
        schema = adapter.json_schema(mode="serialization")
    except (PydanticUserError, ValueError):  # a field cannot be described in JSON
        return None
    return adapter if schema.get("type") == "object" else None


def _as_json(output: Any) -> Any:
    """Turn models, dataclasses, dates, sets and the like into JSON values; what JSON cannot hold stays as it is."""
    if output is None or type(output) in {str, int, float, bool}:
        return output
    if isinstance(output, Iterator):
        output = list(output)  # an exception here is the function's own error
    if holds_parts(output):
        return output
    try:
        found = to_jsonable_python(output)
    except ValueError:
        return output
    # Output whose keys would merge stays as it is: whoever encodes it refuses the keys, and drops none silently.
    return output if found != output and _merges_keys(output, found) else found  # mostly equal, which shows soon


def _value_of(content: Sequence[Part], returns: Any) -> Any:
    """Return parts as they were returned: in a list, or one by itself, which comes before what was attached."""
    values = [one.text if isinstance(one, Text) else one.value if isinstance(one, Json) else one for one in content]
    is_open = returns in (None, Any, object, list, tuple) and len(values) > 1
    return values if is_open or get_origin(returns) in {list, tuple, Sequence} else values[0]


def _merges_keys(before: Any, after: Any) -> bool:
    """Return whether keys of a dictionary became one, as 1 and "1" do."""
    if isinstance(before, dict) and isinstance(after, dict):
        return len(before) != len(after) or any(map(_merges_keys, before.values(), after.values()))
    return isinstance(before, list | tuple) and isinstance(after, list) and any(map(_merges_keys, before, after))
