"""Data only: what a tool is, what a call carries, what an execution leaves behind. No I/O, no behaviour."""

from forge_tools.records.calls import DEFAULT_TIMEOUT, ExecutionContext, RetryPolicy, ToolExecution, ToolResult
from forge_tools.records.history import (
    Attempt,
    Event,
    ExecutionRecord,
    QueueDepth,
    StoredResult,
    StuckCalls,
    StuckReason,
    ToolStats,
    WorkerRecord,
)
from forge_tools.records.ids import id_time, new_id
from forge_tools.records.losses import Loss, moment
from forge_tools.records.queue import TERMINAL, Claim, ExecutionStatus, NewExecution, Outcome, Ring, Scope
from forge_tools.records.tools import REDACTED, Capabilities, Lane, Schema, ToolCategory, ToolParameter, ToolSpec

__all__ = [
    "DEFAULT_TIMEOUT",
    "REDACTED",
    "TERMINAL",
    "Attempt",
    "Capabilities",
    "Claim",
    "Event",
    "ExecutionContext",
    "ExecutionRecord",
    "ExecutionStatus",
    "Lane",
    "Loss",
    "NewExecution",
    "Outcome",
    "QueueDepth",
    "RetryPolicy",
    "Ring",
    "Schema",
    "Scope",
    "StoredResult",
    "StuckCalls",
    "StuckReason",
    "ToolCategory",
    "ToolExecution",
    "ToolParameter",
    "ToolResult",
    "ToolSpec",
    "ToolStats",
    "WorkerRecord",
    "id_time",
    "moment",
    "new_id",
]
