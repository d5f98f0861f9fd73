"""The calls that one client has awaited, as `get_executions` lists them; the audit is in SQL."""

import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from forge_tools.client.call import Call
from forge_tools.client.sealing import without_texts
from forge_tools.records import ToolExecution, ToolResult, ToolSpec
from forge_tools.secrecy import as_shown

HISTORY_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is kept of a call: its list is asked for rarely, so that is when it is made. Times are Unix seconds."""

    call: Call
    arguments: dict[str, Any]
    spec: ToolSpec | None
    result: ToolResult
    started: float
    completed: float


class Awaited:
    """The newest calls, in the order in which they ended."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=HISTORY_LIMIT)

    def add(self, call: Call, spec: ToolSpec | None, result: ToolResult, started: float) -> None:
        self._ended.append(_Ended(call, call.arguments, spec, result, started, time.time()))

    def list(self) -> list[ToolExecution]:
        """The calls with their parameters as people may see them."""
        return [_execution(one) for one in self._ended]

    def clear(self) -> None:
        self._ended.clear()


def _execution(ended: _Ended) -> ToolExecution:
    call, spec = ended.call, ended.spec
    lasted = (ended.result.duration_ms or 0.0) / 1000
    return ToolExecution.model_construct(
        tool_name=call.label,
        parameters=as_shown(spec, ended.arguments) if spec else without_texts(ended.arguments),
        context=call.effective_context,
        result=ended.result,
        started_at=datetime.fromtimestamp(ended.started, UTC),
        completed_at=datetime.fromtimestamp(max(ended.started + lasted, ended.completed), UTC),
    )
