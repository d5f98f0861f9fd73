"""ToolExecutor: the one way a tool is called in process, and this session's record of the calls."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from forge_tools.errors import ErrorCode, ToolError
from forge_tools.model.calls import (
    HISTORY_LIMIT,
    CallOptions,
    ExecutionContext,
    Newest,
    ToolExecution,
    ToolResult,
    flaw_of,
    wrong_call,
)
from forge_tools.model.content import holds_parts
from forge_tools.model.scope import SCOPE, CallScope, Report, Reporter, scope_for
from forge_tools.model.tools import Capabilities, Schema, ToolCategory, ToolSpec
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.sandbox.reports import DirectReporter, in_scope
from forge_tools.schema import clean_text, providers, shown, suggestion
from forge_tools.secrets.detection import SecretDetector
from forge_tools.secrets.scrubber import CONCEALED, LEAST_IN_FAILURES, scrubber_of
from forge_tools.tool.base import BaseTool, brief, preview
from forge_tools.tool.content import is_overlong, limit_output, opened, with_parts
from forge_tools.tool.dependencies import DEPENDENCIES, Dependencies
from forge_tools.tool.failures import failure_of, text_of
from forge_tools.tool.registry import ScopedRegistry, ToolRegistry

__all__ = ["SLOW_MS", "CallOptions", "ToolExecutor", "may_be_retried"]

SLOW_MS = 1_000
"""Calls that take longer are warned about (spec S2-15)."""

_FORM = "call(name, parameters, context=None, options=None)"

_UNRETRIED = frozenset(
    {ErrorCode.VALIDATION_ERROR, ErrorCode.TOOL_NOT_FOUND, ErrorCode.CANCELLED, ErrorCode.BLOCKED, ErrorCode.UNSTORABLE}
)
"""Failures that another try would only repeat, or that somebody wanted."""

_UNFINISHED = frozenset({ErrorCode.TIMEOUT, ErrorCode.LOST, ErrorCode.OUT_OF_MEMORY})
"""Failures of bodies that were ended from outside: nobody knows how far they came."""

_USUAL = CallOptions()

_logger = logging.getLogger("forge_tools.tools")


def may_be_retried(code: str | None, says: object, can: Capabilities) -> bool:
    """Whether a failure with that error code may be followed by another try of the same call.

    `says` is what the failed result itself holds under `retryable` in its metadata: True where nothing had taken effect,
    False where trying again is of no use, whatever the tool declares.
    """
    if code in _UNRETRIED or says is False:
        return False
    if can.idempotent or says is True:
        return True
    return can.retryable and code not in _UNFINISHED


class _Call(NamedTuple):
    """A finished call as it is kept: made into a `ToolExecution` only when somebody asks."""

    tool: BaseTool
    parameters: dict[str, Any]
    context: ExecutionContext
    result: ToolResult
    completed: float


class ToolExecutor:
    """Calls tools by name: resolve, validate, inject the context, run, log, record.

    `max_timeout` caps every timeout (seconds). `reach` is what tools may touch on this host, such as the folders of the
    workspace. The last `history_limit` calls are kept in memory, or fewer if they are large. `overrides` replace functions
    that create what tools depend on.
    """

    def __init__(
        self,
        registry: ScopedRegistry | None = None,
        *,
        default_context: ExecutionContext | None = None,
        max_timeout: float | None = None,
        history_limit: int = HISTORY_LIMIT,
        reach: Reach | None = None,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    ) -> None:
        self._registry = registry if registry is not None else ToolRegistry()
        self._default_context = default_context or ExecutionContext(working_dir=".")
        self._max_timeout = max_timeout
        self.reach = reach
        """What its tools may touch on this host; None if the caller decides that."""
        self._dependencies = Dependencies(overrides)
        self._calls: Newest[_Call] = Newest(history_limit)
        self._lock = threading.Lock()
        self._counts = Counter[str]()
        self._by_tool = Counter[str]()
        self._total_ms = 0.0

    async def execute(self, tool_name: str, context: ExecutionContext, /, **kwargs: Any) -> ToolResult:
        """Call a tool; whatever is wrong with the call, or goes wrong in it, is a failed result.

        Raises:
            asyncio.CancelledError, KeyboardInterrupt: when the caller is stopped; the call is recorded as cancelled.
        """
        return await self._call(tool_name, kwargs, context, _USUAL)

    async def call(
        self,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        context: ExecutionContext | None = None,
        options: CallOptions | None = None,
        *,
        on_report: Callable[[Report], None] | None = None,
    ) -> ToolResult:
        """Do what `execute` does, for parameters that come as one object (contradiction C24).

        `on_report` gets the progress and the output that the tool reports, at once and on the thread that reports it; what it
        raises is lost.
        """
        parameters = {} if parameters is None else parameters
        if not isinstance(parameters, Mapping) or not all(isinstance(key, str) for key in parameters):
            found = "one with other keys" if isinstance(parameters, Mapping) else type(parameters).__name__
            return wrong_call(f"Invalid parameters: expected an object with names as keys, not {found}", _FORM)
        if flaw := flaw_of(options):
            return wrong_call(flaw, _FORM)
        listening = SCOPE.set(scope_for(DirectReporter(on_report))) if on_report is not None else None
        try:
            asked = self._default_context if context is None else context
            return await self._call(name, dict(parameters), asked, options or _USUAL)
        finally:
            if listening is not None:
                SCOPE.reset(listening)

    async def execute_with_context(
        self, name: str, arguments: Mapping[str, Any], context: ExecutionContext, options: CallOptions | None = None
    ) -> ToolResult:
        """Do what `call` does, in a context that must be given (spec S1-32)."""
        return await self.call(name, arguments, context, options)

    async def initialize(self) -> None:
        """Run the tools' `initialize` hooks on the loop that will run their bodies (spec S1-29)."""
        await self._registry.initialize_all(self._default_context)

    async def shutdown(self) -> None:
        """Run the tools' `shutdown` hooks (spec S1-30)."""
        await self._registry.shutdown_all()
        await self._dependencies.close()

    def function(self, name: str) -> Callable[[Mapping[str, Any]], Awaitable[str]]:
        """Return a function from arguments to text, which raises where a call fails (contradiction C10).

        Raises:
            ToolNotFoundError: when there is no such tool. The function raises ToolError.
        """
        tool_name = self._registry.get_or_raise(name).spec.name

        async def run(arguments: Mapping[str, Any]) -> str:
            result = await self.call(tool_name, arguments)
            if not result.success:
                raise ToolError(tool_name, result.error or "failed")
            return result.to_text()

        return run

    def validate(self, name: str, params: Mapping[str, Any]) -> tuple[bool, str | None]:
        """Check parameters without calling; return whether they are valid, and the first problem."""
        tool = self._registry.get(name)
        return tool.validate_params(**params) if tool else (False, _unknown(name))

    def validate_all(self, name: str, params: Mapping[str, Any]) -> list[str]:
        """Return every problem of the parameters (contradiction C45)."""
        tool = self._registry.get(name)
        return tool.validate_all(params) if tool else [_unknown(name)]

    def get_all_schemas(self, format: str = "openai") -> list[Schema]:
        """Return the schema of every tool in the order of registration.

        Raises:
            ValueError: for an unknown format.
        """
        providers.require_format(format)
        return [providers.render(tool.spec, format) for tool in self._registry.list_all()]

    def get_schemas_by_category(self, category: ToolCategory, format: str = "openai") -> list[Schema]:
        """Return the schemas of the tools of a category.

        Raises:
            ValueError: for an unknown format.
        """
        providers.require_format(format)
        return [providers.render(tool.spec, format) for tool in self._registry.list_by_category(category)]

    def specs(self) -> list[ToolSpec]:
        """Return the tools as data, in the order of registration."""
        return [tool.spec for tool in self._registry.list_all()]

    def get_executions(self) -> list[ToolExecution]:
        """Return the calls of known tools in the order they ended, without secrets of parameters and context."""
        with self._lock:
            calls = list(self._calls)
        return [_execution(call) for call in calls]

    def clear_executions(self) -> None:
        """Forget the calls kept in memory; what a database holds stays (contradiction C36)."""
        with self._lock:
            self._calls.clear()

    def get_stats(self) -> dict[str, Any]:
        """Return counts of all calls, `average_execution_time_ms` and `executions_by_tool`.

        `rejected_count` counts what never reached a body: unknown tools, which count nowhere else, and invalid parameters.
        """
        with self._lock:
            total = self._by_tool.total()
            return {
                "total_executions": total,
                "success_count": self._counts["succeeded"],
                "error_count": total - self._counts["succeeded"],
                "rejected_count": self._counts["rejected"],
                "average_execution_time_ms": self._total_ms / total if total else 0,
                "executions_by_tool": dict(self._by_tool),
            }

    async def _call(self, name: str, arguments: dict[str, Any], context: object, options: CallOptions) -> ToolResult:
        tool = self._registry.get(name) if isinstance(name, str) else None
        if tool is None:
            return self._refuse_unknown(name)
        if not isinstance(context, ExecutionContext):
            flaw = f"Invalid context: expected an ExecutionContext, not {type(context).__name__}"
            return wrong_call(flaw, f"execute(name, context, **parameters) or {_FORM}")
        context = self._within_limits(tool.spec, context, options)
        also = self._dependencies.secrets_in(tool.named_settings) if tool.named_settings else ()
        scrubber = scrubber_of(tool.spec, arguments, metadata=context.metadata, also=also)
        around: list[tuple[ContextVar[Any], object]]
        around = [(REACH, self.reach), (DEPENDENCIES, self._dependencies), (CONCEALED, scrubber)]
        tokens = [(variable, variable.set(value)) for variable, value in around if value is not None]
        try:
            _log_start(tool.spec, arguments, context)
            scope = self._scope(tool.spec, context)
            with in_scope(context, scope, scrubber) as own:
                result = await _attempts(tool, arguments, own, scope, options)
            if scope.attached or holds_parts(result.output):
                result = await with_parts(result, context, scope.attached or (), scope.remaining or 0.0)
            if scrubber is not None:  # before it is cut: half a secret would not be recognized
                result = scrubber.result(result)
            if is_overlong(result, context.max_output_size):
                result = await limit_output(result, context, scope.remaining or 0.0)
        except BaseException as error:
            self._record(tool, arguments, context, _interruption(tool.spec, arguments, error))
            raise
        finally:
            for variable, token in tokens:
                variable.reset(token)
        self._record(tool, arguments, context, result)
        return result

    def _scope(self, spec: ToolSpec, context: ExecutionContext) -> CallScope:
        """Take the scope that was made for this call, or make one inside that of the calling body."""
        made, reporter = SCOPE.get(), self._reporter()
        scope = made if made is not None and made.tool is None else scope_for(reporter)
        scope.reporter = reporter
        scope.opener = opened
        scope.tool, scope.agent_id, scope.session_id = spec.name, context.agent_id, context.session_id
        return scope

    def _reporter(self) -> Reporter | None:  # a method, since the executor for tests replaces it
        scope = SCOPE.get()
        return None if scope is None else scope.reporter

    def _refuse_unknown(self, name: str) -> ToolResult:
        error = _unknown(name)
        hint = suggestion(name, self._registry.list_names())
        _logger.warning("%s%s", error, hint, extra={"error_code": ErrorCode.TOOL_NOT_FOUND})
        with self._lock:
            self._counts["rejected"] += 1
        known = f"there are: {', '.join(self._registry.list_names()) or 'none'}"
        result = ToolResult.fail(error, error_code=ErrorCode.TOOL_NOT_FOUND, hint=hint.strip(" ()") or known)
        result.duration_ms = 0.0
        return result

    def _within_limits(self, spec: ToolSpec, context: ExecutionContext, options: CallOptions) -> ExecutionContext:
        """Put the timeout that counts for this call into its context (contradiction C07)."""
        if options.timeout is not None:
            context = context.model_copy(update={"timeout": options.timeout})
        if self._max_timeout is None:
            return context
        seconds, _ = spec.timeout_for(context)
        is_longer = seconds > self._max_timeout  # NaN is not, and is refused later
        return context.model_copy(update={"timeout": self._max_timeout}) if is_longer else context

    def _record(self, tool: BaseTool, arguments: dict[str, Any], context: ExecutionContext, result: ToolResult) -> None:
        with self._lock:
            self._calls.add(_Call(tool, arguments, context, result, time.time()), arguments, result.output)
            self._by_tool[tool.spec.name] += 1
            self._counts["succeeded"] += result.success
            self._counts["rejected"] += result.error_code == ErrorCode.VALIDATION_ERROR
            self._total_ms += result.duration_ms or 0.0
        _log_end(tool.spec, result)


async def _attempts(
    tool: BaseTool, arguments: dict[str, Any], context: ExecutionContext, scope: CallScope, options: CallOptions
) -> ToolResult:
    """Run a call, again as far as its retry policy and its tool allow (contradiction C29)."""
    retry, is_counted_here = options.retry, scope.execution_id is None  # else a worker counts
    if retry is not None and is_counted_here:
        scope.max_attempts = retry.max_attempts
    result = await _attempt(tool, arguments, context, scope, options.skip_validation)
    if retry is None:
        return result
    for attempt in range(1, retry.max_attempts):
        says = result.metadata.get("retryable")
        if result.success or not may_be_retried(result.error_code, says, tool.spec.capabilities):
            break
        await asyncio.sleep(retry.delay_after(attempt))
        if is_counted_here:
            scope.attempt, scope.attached = attempt + 1, None
        result = await _attempt(tool, arguments, context, scope, options.skip_validation)
        result.metadata["attempts"] = attempt + 1
    return result


async def _attempt(
    tool: BaseTool, arguments: dict[str, Any], context: ExecutionContext, scope: CallScope, skip_validation: bool
) -> ToolResult:
    started = time.perf_counter()
    scope.deadline = time.monotonic() + tool.spec.timeout_for(context)[0]
    scope.task = asyncio.current_task()
    run = tool.execute_unchecked if skip_validation else tool.execute
    try:
        done = ToolResult.returned(await run(context, **arguments))
    except Exception as error:  # noqa: BLE001  a tool that replaces `execute` may raise anything
        done = failure_of(tool.spec, error, arguments)
    if done.duration_ms is None:
        done.duration_ms = (time.perf_counter() - started) * 1000
    return done


def _interruption(spec: ToolSpec, arguments: Mapping[str, Any], error: BaseException) -> ToolResult:
    """Build the record of a call that raises to its caller, as Ctrl-C must end more than the call."""
    if isinstance(error, asyncio.CancelledError):
        return ToolResult.fail("Tool execution cancelled", error_code=ErrorCode.CANCELLED)
    is_wanted = isinstance(error, KeyboardInterrupt | GeneratorExit)
    code = ErrorCode.CANCELLED if is_wanted else ErrorCode.EXECUTION_ERROR
    text = text_of(error, scrubber_of(spec, arguments, LEAST_IN_FAILURES))
    return ToolResult.fail(f"Tool execution interrupted: {text}", error_code=code)


def _unknown(name: Any) -> str:
    return f"Unknown tool: {shown(name)}"


def _execution(call: _Call) -> ToolExecution:
    parameters, context = SecretDetector(call.tool.spec).seen(call.tool.effective(call.parameters), call.context)
    completed = datetime.fromtimestamp(call.completed, UTC)
    return ToolExecution(
        tool_name=call.tool.spec.name,
        parameters=parameters,
        context=context,
        result=call.result,
        started_at=completed - timedelta(milliseconds=call.result.duration_ms or 0.0),
        completed_at=completed,
    )


def _log_start(spec: ToolSpec, arguments: Mapping[str, Any], context: ExecutionContext) -> None:
    if not _logger.isEnabledFor(logging.INFO):
        return
    extra = {"tool": spec.name, "agent_id": context.agent_id, "session_id": context.session_id}
    _logger.info("Executing tool: %s", spec.name, extra=extra)
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug("Parameters of %s: %s", spec.name, preview(spec, arguments), extra=extra)


def _log_end(spec: ToolSpec, result: ToolResult) -> None:
    duration = result.duration_ms or 0.0
    if result.success and duration <= SLOW_MS and not _logger.isEnabledFor(logging.INFO):
        return
    extra = {"tool": spec.name, "duration_ms": duration, "error_code": result.error_code}
    if not result.success:
        _logger.warning("Tool %s failed: %s", spec.name, clean_text(str(result.error)), extra=extra)
    else:
        _logger.info("Tool %s succeeded (%.1fms)", spec.name, duration, extra=extra)
    if duration > SLOW_MS:
        _logger.warning("Slow tool: %s took %.0fms", spec.name, duration, extra=extra)
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug("Result of %s: %s", spec.name, brief(result.output), extra=extra)
