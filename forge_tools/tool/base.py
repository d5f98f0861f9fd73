"""BaseTool: what every tool declares, and the one way its body is run."""

import asyncio
import inspect
import logging
import os
import reprlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from forge_tools.errors import ErrorCode, InvalidToolError, first_problem
from forge_tools.langchain import to_langchain_tool
from forge_tools.model.calls import ExecutionContext, RetryPolicy, ToolExecution, ToolResult
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.tools import Capabilities, Lane, Schema, Tier, ToolCategory, ToolParameter, ToolSpec
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.schema import Validator, clean_text, is_of_type, providers
from forge_tools.secrets.detection import as_shown
from forge_tools.secrets.scrubber import LEAST_IN_FAILURES, scrubbed, scrubber_of
from forge_tools.time_limits import timed_out_after
from forge_tools.tool.dependencies import Depends, Named, dependencies_of, has_engine, settings_in, with_dependencies
from forge_tools.tool.failures import diagnosis_of, failure_of

__all__ = [
    "BaseTool",
    "Capabilities",
    "ExecutionContext",
    "ToolCategory",
    "ToolExecution",
    "ToolParameter",
    "ToolResult",
    "ToolSpec",
]

T = TypeVar("T")

MAX_SHOWN_CHARS = 200
"""How much of one value dry runs and logs show."""

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 20
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = MAX_SHOWN_CHARS

_logger = logging.getLogger("forge_tools.tools")


def _abstract_without_docstring(method: Callable[[Any], str]) -> Callable[[Any], str]:
    """Be `abstractmethod` at run time only: type checkers cannot know that a class docstring may stand in."""
    return abstractmethod(method)


class BaseTool(ABC):
    """A command an agent may give: declared by attributes or properties, done by `_execute`.

    Without a `description` the first line of the class docstring is it.
    """

    version: str = "1.0.0"
    capabilities: Capabilities = Capabilities()
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    lane: Lane = "process"
    timeout: float | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    walls: Tier | None = None

    _described_by_docstring: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = getattr(cls.description, "__isabstractmethod__", False) or cls._described_by_docstring
        docstring = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
        if "description" in cls.__dict__:
            cls._described_by_docstring = False
        elif docstring and inherited:
            cls.description = docstring.splitlines()[0]  # type: ignore[assignment, method-assign]  # the attribute form
            cls._described_by_docstring = True

    @property
    @abstractmethod
    def name(self) -> str:
        """What agents call it."""

    @property
    @_abstract_without_docstring
    def description(self) -> str:
        """What it does, for a model that chooses among tools."""
        raise NotImplementedError

    @property
    @abstractmethod
    def category(self) -> ToolCategory:
        """The group it is listed in."""

    @property
    @abstractmethod
    def parameters(self) -> Sequence[ToolParameter]:
        """What it takes, in the order it is shown."""

    @abstractmethod
    async def _execute(self, context: ExecutionContext, /, *args: Any, **kwargs: Any) -> ToolResult:
        """Do it. Parameters come as keywords: name them, or take `**kwargs` to accept others too.

        Return `ToolResult.ok` or `.fail` for what is expected; let the rest raise (spec S4-21).
        """

    async def _dry_run(self, context: ExecutionContext, /, *args: Any, **kwargs: Any) -> ToolResult:
        """Say what `_execute` would do, and touch nothing (contradiction C49)."""
        return ToolResult.ok(f"[Dry Run] Would execute {self.spec.name} with {preview(self.spec, kwargs)}")

    async def initialize(self, context: ExecutionContext) -> None:  # noqa: B027 a hook: most tools need none
        """Prepare what the tool keeps between calls; called once when its host starts."""

    async def shutdown(self) -> None:  # noqa: B027 a hook: most tools need none
        """Release what `initialize` prepared; called when the host stops."""

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as data.

        Raises:
            InvalidToolError: naming the attribute that is not what it must be.
        """
        declared = {name: getattr(self, name) for name in ToolSpec.model_fields if name != "extra"}
        try:
            return ToolSpec(**declared, extra=self._takes_extra())
        except ValidationError as error:
            raise InvalidToolError(clean_text(str(declared["name"])), first_problem(error)) from error

    @cached_property
    def logger(self) -> logging.Logger:
        """Where the tool's own messages go."""
        return _logger.getChild(self.spec.name)

    def workspace(self, context: ExecutionContext) -> Workspace:
        """Return the files this call may touch."""
        return Workspace.for_context(context)

    def validate_params(self, /, **kwargs: Any) -> tuple[bool, str | None]:
        """Check parameters; return whether they are valid, and the first problem."""
        error = self._validator.first_error(kwargs)
        return error is None, error

    def validate_all(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return every problem of `parameters`."""
        return self._validator.all_errors(parameters)

    def effective(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `_execute` gets for `parameters`: aliases resolved, defaults filled in."""
        return self._validator.effective(parameters)

    async def execute(self, context: ExecutionContext, /, **kwargs: Any) -> ToolResult:
        """Validate, fill in defaults, run within the timeout; whatever happens is a result (spec S4-04).

        Raises:
            asyncio.CancelledError: when the caller is cancelled; one that the body raises itself is a failed result.
        """
        return await self._timed(context, kwargs, validate=True)

    async def execute_unchecked(self, context: ExecutionContext, /, **kwargs: Any) -> ToolResult:
        """Do what `execute` does without validating, for callers in the same process that have done so."""
        return await self._timed(context, kwargs, validate=False)

    def to_openai_schema(self) -> Schema:
        """Render for OpenAI's function calling."""
        return providers.render(self.spec, "openai")

    def to_anthropic_schema(self) -> Schema:
        """Render for Anthropic's tool use."""
        return providers.render(self.spec, "anthropic")

    def to_langchain_tool(self, context: ExecutionContext | None = None) -> Any:
        """Wrap as a LangChain `Tool` whose calls run in `context`; needs forge-tools[langchain]."""
        return to_langchain_tool(self, context)

    @cached_property
    def _dependencies(self) -> Mapping[str, Depends]:
        return dependencies_of(self._execute)

    @cached_property
    def named_settings(self) -> tuple[Named, ...]:
        """Settings and secrets that its host must have for it."""
        return settings_in(self._dependencies.values())

    @cached_property
    def _validator(self) -> Validator:
        return Validator.for_spec(self.spec)

    def _check_type(self, value: Any, expected: str) -> bool:  # the specification names it
        return is_of_type(value, expected)

    def _takes_extra(self) -> bool:
        kinds = (p.kind for p in inspect.signature(self._execute).parameters.values())
        return inspect.Parameter.VAR_KEYWORD in kinds

    async def _timed(self, context: ExecutionContext, parameters: dict[str, Any], *, validate: bool) -> ToolResult:
        started = time.perf_counter()
        try:
            result = await self._checked(context, parameters, validate=validate)
        except InvalidToolError as error:  # perhaps of the spec itself, which `failure_of` needs
            result = ToolResult.fail(str(error), error_code=error.code)
        except Exception as error:  # noqa: BLE001 checks of a subclass may raise anything too; results carry it
            result = self._presentable(failure_of(self.spec, error, parameters), parameters)
        duration = (time.perf_counter() - started) * 1000
        if result.duration_ms is not None:  # the tool hands out one result object more than once
            return result.model_copy(update={"duration_ms": duration})
        result.duration_ms = duration
        return result

    async def _checked(self, context: ExecutionContext, parameters: dict[str, Any], *, validate: bool) -> ToolResult:
        # Subclasses may replace `validate_params`, so `validate_all` alone does not decide.
        valid, error = self.validate_params(**parameters) if validate else (True, None)
        if not valid:
            return self._refusal(error or "Invalid parameters", self.validate_all(parameters))
        if self.spec.capabilities.requires_engine and not has_engine():
            way_out = "Set FORGE_ENGINE=module:function on the host; in process pass overrides={engine: function}"
            said = f"{self.spec.name} needs an engine, but this host has none. {way_out}."
            return ToolResult.fail(said, error_code=ErrorCode.ENGINE_NOT_AVAILABLE)
        body: Callable[..., Awaitable[Any]] = self._dry_run if context.dry_run else self._execute
        if self._dependencies and not context.dry_run:
            body = with_dependencies(body, self._dependencies)
        result = await self._guarded(body, context, self.effective(parameters))
        if context.dry_run:
            result.metadata["dry_run"] = True
        return result if result.success else self._presentable(result, parameters)

    def _refusal(self, error: str, problems: list[str]) -> ToolResult:
        errors = problems or [error]
        return ToolResult.fail(
            error,
            error_code=ErrorCode.VALIDATION_ERROR,
            error_details=errors,
            errors=errors,
            required=[p.name for p in self.spec.declared if p.required],
        )

    async def _guarded(
        self, body: Callable[..., Awaitable[Any]], context: ExecutionContext, parameters: dict[str, Any]
    ) -> ToolResult:
        seconds, _ = self.spec.timeout_for(context)
        if not seconds > 0:  # NaN included, with which the event loop would spin
            error = f"Invalid timeout: {seconds:g}s. Give a number of seconds above 0."
            return ToolResult.fail(error, error_code=ErrorCode.VALIDATION_ERROR)
        deadline = asyncio.timeout(seconds)
        late: Diagnosis | None = None
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            async with deadline:
                outcome = await _here(body(context, **parameters))
        except asyncio.CancelledError as error:
            if task and task.cancelling() > cancels:
                raise  # somebody outside wants this task to end (contradiction C11)
            details = {"type": asyncio.CancelledError.__name__}
            hint = "Nobody cancelled this call: the tool itself raised CancelledError, or awaited what was cancelled"
            failed = ToolResult.fail(
                "Tool execution cancelled", error_code=ErrorCode.EXECUTION_ERROR, error_details=details, hint=hint
            )
            failed.diagnosis = self._diagnosis(error, parameters)
            return failed
        except (Exception, SystemExit) as error:  # noqa: BLE001 a body may raise anything; results carry it
            if not deadline.expired():
                return failure_of(self.spec, error, parameters)
            late = self._diagnosis(error, parameters)
        else:
            if not deadline.expired():  # else it swallowed the cancel of the deadline, and returned too late
                return ToolResult.returned(outcome)
        failed = ToolResult.fail(timed_out_after(seconds), error_code=ErrorCode.TIMEOUT)
        failed.diagnosis = late
        return failed

    def _diagnosis(self, error: BaseException, parameters: Mapping[str, Any]) -> Diagnosis:
        return diagnosis_of(error, scrubber_of(self.spec, parameters, LEAST_IN_FAILURES))

    def _presentable(self, failure: ToolResult, parameters: Mapping[str, Any]) -> ToolResult:
        """Copy a failure as people may see it: storable text, without the values of sensitive parameters."""
        scrubber = scrubber_of(self.spec, parameters, LEAST_IN_FAILURES)
        result = failure if scrubber is None else scrubber.result(failure)
        return result.model_copy(update={"error": clean_text(result.error or "failed without a reason")})


async def _here(body: Awaitable[T]) -> T:
    """Await a body; a copy of this process that it forked ends where the body does.

    Otherwise the copy would go on as this process does: run its neighbours a second time, or the caller's program.
    """
    process, status = os.getpid(), 1
    try:
        value = await body
        status = 0
        return value
    except SystemExit as error:
        status = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
        raise
    finally:
        if os.getpid() != process:
            os._exit(status)


def preview(spec: ToolSpec, parameters: Mapping[str, Any]) -> str:
    """Show parameters to people: sensitive ones redacted, long ones cut, nothing unprintable."""
    return "{" + ", ".join(f"{brief(k)}: {brief(v)}" for k, v in scrubbed(as_shown(spec, parameters)).items()) + "}"


def brief(value: Any) -> str:
    """Show any value in about `MAX_SHOWN_CHARS` printable characters, whatever its size, depth and `__repr__`."""
    # Slicing first: the repr of a huge text would cost as much as the call.
    start = value[: MAX_SHOWN_CHARS + 1] if isinstance(value, str | bytes) else value
    try:
        text = repr(start) if isinstance(value, str | bytes) else _SHORT.repr(value)
    except Exception:  # noqa: BLE001 the repr of a foreign object is foreign code too
        text = f"<{type(value).__name__}>"
    return clean_text(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}...")
