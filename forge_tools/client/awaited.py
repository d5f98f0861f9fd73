"""The calls that one client has awaited, as `get_executions` lists them; the audit is in SQL."""

import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, NamedTuple

from forge_tools.client.call import Call
from forge_tools.client.catalogue import Snapshot
from forge_tools.client.intake import without_texts
from forge_tools.model import ExecutionContext, ToolExecution, ToolResult, ToolSpec, without_secrets
from forge_tools.secrets import Concealment

HISTORY_LIMIT = 10_000


class _Ended(NamedTuple):
    """What is kept of a call, in one object: of ten thousand, each more is one that Python's collector walks.

    The list is asked for rarely, so that is when it is made. Times are Unix seconds.
    """

    tool_name: str
    arguments: dict[str, Any]
    context: ExecutionContext
    spec: ToolSpec | None
    started: float
    completed: float
    success: bool
    output: Any
    error: str | None
    duration_ms: float | None
    metadata: dict[str, Any]
    error_code: str | None
    error_details: Any

    @property
    def result(self) -> ToolResult:
        return ToolResult(
            success=self.success,
            output=self.output,
            error=self.error,
            duration_ms=self.duration_ms,
            metadata=self.metadata,
            error_code=self.error_code,
            error_details=self.error_details,
        )


class Awaited:
    """The newest calls, in the order in which they ended."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=HISTORY_LIMIT)

    def add(self, call: Call, snapshot: Snapshot, result: ToolResult, started: float) -> None:
        name = call.label
        self._ended.append(
            _Ended(
                name,
                call.arguments,
                call.effective_context,
                snapshot.find(name),
                started,
                time.time(),
                result.success,
                result.output,
                result.error,
                result.duration_ms,
                result.metadata,
                result.error_code,
                result.error_details,
            )
        )

    def list(self) -> list[ToolExecution]:
        """The calls with their parameters and contexts as people may see them."""
        return [_execution(one) for one in self._ended]

    def clear(self) -> None:
        self._ended.clear()


def _execution(ended: _Ended) -> ToolExecution:
    lasted = (ended.duration_ms or 0.0) / 1000
    parameters, context = _seen(ended)
    return ToolExecution.model_construct(
        tool_name=ended.tool_name,
        parameters=parameters,
        context=context,
        result=ended.result,
        started_at=datetime.fromtimestamp(ended.started, UTC),
        completed_at=datetime.fromtimestamp(max(ended.started + lasted, ended.completed), UTC),
    )


def _seen(ended: _Ended) -> tuple[dict[str, Any], ExecutionContext]:
    if ended.spec is not None:
        return Concealment(ended.spec).seen(ended.arguments, ended.context)
    metadata = without_secrets(ended.context.metadata)
    return without_texts(ended.arguments), ended.context.model_copy(update={"metadata": metadata})
