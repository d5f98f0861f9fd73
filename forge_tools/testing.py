"""Public test doubles: an executor for testing tools, in this process and in its own folder."""

import asyncio
import json
import shutil
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from forge_tools.errors import ConfigurationError, ErrorCode, InvalidCallError
from forge_tools.model.calls import CallOptions, ExecutionContext, ToolExecution, ToolResult
from forge_tools.model.scope import Report, Reporter
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.reports import DirectReporter, ScrubbingReporter
from forge_tools.schema import encode_json
from forge_tools.tool.base import BaseTool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry

MAX_BYTES = 10_000_000
"""The most bytes of parameters, of outputs and of metadata, as JSON."""


class InlineExecutor(ToolExecutor):
    """Runs tools as workers do, without one: no database, no broker, results at once.

    What could not travel to a worker and back fails here too: parameters, outputs and metadata go through JSON. `files` are
    written into `workspace`, a temporary folder to which the tools are confined; `context` changes the usual context.
    `overrides` replace what tools depend on: `{make_index: lambda: FakeIndex()}`.
    `reports` are the progress and the output that the tools have reported, in order.

        with InlineExecutor(greet) as tools:
            assert tools.run("greet", name="Ada").output == "Hello, Ada!"
    """

    def __init__(
        self,
        *tools: BaseTool | type[BaseTool],
        files: Mapping[str, str | bytes] | None = None,
        context: Mapping[str, Any] | None = None,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    ) -> None:
        self.workspace = Path(mkdtemp(prefix="forge-test-")).resolve()
        self._remove_workspace = weakref.finalize(self, shutil.rmtree, self.workspace, ignore_errors=True)
        self.context = ExecutionContext.model_validate({"working_dir": str(self.workspace), **(context or {})})
        self.reports: list[Report] = []
        self._runner: asyncio.Runner | None = None
        registry = ScopedRegistry()
        registry.register_many([tool() if isinstance(tool, type) else tool for tool in tools], strict=True)
        super().__init__(registry, default_context=self.context, reach=Reach(root=self.workspace), overrides=overrides)
        for name, content in (files or {}).items():
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def run(self, tool_name: str, /, **parameters: Any) -> ToolResult:
        """Call a tool and wait for its result, in a test that is not a coroutine; others `await` `execute` or `call`.

        Raises:
            ConfigurationError: the executor was not entered with `with`.
        """
        if self._runner is None:
            raise ConfigurationError(
                "Enter it first: `with InlineExecutor(...) as tools:`. In coroutines `await tools.call(...)`."
            )
        return self._runner.run(self.call(tool_name, parameters))

    def clear_executions(self) -> None:
        """Forget the calls and their reports."""
        super().clear_executions()
        self.reports.clear()

    @property
    def last(self) -> ToolExecution:
        """The call that ended last: its parameters, context and result.

        Raises:
            LookupError: there was none.
        """
        executions = self.get_executions()
        if not executions:
            raise LookupError("No tool has been called yet.")
        return executions[-1]

    def __enter__(self) -> Self:
        if _is_in_loop():
            raise ConfigurationError(
                "An event loop is running here: enter it with `async with`, and `await tools.call(...)`."
            )
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self.initialize())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._runner is not None:
                self._runner.run(self.shutdown())
        finally:
            self._close()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.shutdown()
        finally:
            self._close()

    async def _call(self, name: str, arguments: dict[str, Any], context: object, options: CallOptions) -> ToolResult:
        try:
            arguments = json.loads(encode_json(arguments, "parameters", MAX_BYTES))
        except InvalidCallError as error:
            return ToolResult.fail(error.message, error_code=error.code, error_details=error.details)
        result = await super()._call(name, arguments, context, options)
        try:
            parts = {part: getattr(result, part) for part in ("output", "metadata")}
            carried = {part: json.loads(encode_json(value, part, MAX_BYTES)) for part, value in parts.items()}
        except InvalidCallError as error:
            text = f"The tool ran, but its result cannot be stored: {error.message}"
            return ToolResult.fail(text, error_code=ErrorCode.UNSTORABLE)
        return result.model_copy(update=carried)

    def _reporter(self) -> Reporter:
        listener = super()._reporter()
        if isinstance(listener, ScrubbingReporter):  # of the outer call that this one belongs to, which records already
            return listener

        def note(report: Report) -> None:
            self.reports.append(report)
            if isinstance(listener, DirectReporter):
                listener.tell(report)

        return DirectReporter(note)

    def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
        self._remove_workspace()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
