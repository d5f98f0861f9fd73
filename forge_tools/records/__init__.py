"""Data only: what a tool is, what a call carries, what an execution leaves behind. No I/O, no behaviour."""

from forge_tools.records.artifacts import Artifact, artifact_id
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
from forge_tools.records.shells import ShellRecord, ShellStatus, host_of, shell_id
from forge_tools.records.tools import REDACTED, Capabilities, Lane, Schema, ToolCategory, ToolParameter, ToolSpec

__all__ = [
    "DEFAULT_TIMEOUT",
    "REDACTED",
    "TERMINAL",
    "Artifact",
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
    "ShellRecord",
    "ShellStatus",
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
    "artifact_id",
    "host_of",
    "id_time",
    "moment",
    "new_id",
    "shell_id",
]
