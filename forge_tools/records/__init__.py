"""Data only: what a tool is, what a call carries, what an execution leaves behind. No I/O, no behaviour."""

from forge_tools.records.artifacts import Artifact, artifact_id
from forge_tools.records.calls import (
    DEFAULT_TIMEOUT,
    CallOptions,
    ExecutionContext,
    RetryPolicy,
    ToolExecution,
    ToolResult,
)
from forge_tools.records.history import (
    Attempt,
    CallFigures,
    Event,
    ExecutionRecord,
    QueueDepth,
    StoredResult,
    StuckCalls,
    StuckReason,
    Times,
    WorkerRecord,
)
from forge_tools.records.ids import id_floor, id_time, new_id
from forge_tools.records.losses import Loss, moment
from forge_tools.records.queue import TERMINAL, Claim, ExecutionStatus, NewExecution, Outcome, Ring, Scope
from forge_tools.records.selection import Grouping, Selection
from forge_tools.records.shells import ShellRecord, ShellStatus, host_of, shell_id
from forge_tools.records.tools import REDACTED, Capabilities, Lane, Schema, ToolCategory, ToolParameter, ToolSpec
from forge_tools.records.workspaces import Moved, NamedWorkspace, Stranded, WorkspacePlaces, WorkspaceRecord

__all__ = [
    "DEFAULT_TIMEOUT",
    "REDACTED",
    "TERMINAL",
    "Artifact",
    "Attempt",
    "CallFigures",
    "CallOptions",
    "Capabilities",
    "Claim",
    "Event",
    "ExecutionContext",
    "ExecutionRecord",
    "ExecutionStatus",
    "Grouping",
    "Lane",
    "Loss",
    "Moved",
    "NamedWorkspace",
    "NewExecution",
    "Outcome",
    "QueueDepth",
    "RetryPolicy",
    "Ring",
    "Schema",
    "Scope",
    "Selection",
    "ShellRecord",
    "ShellStatus",
    "StoredResult",
    "Stranded",
    "StuckCalls",
    "StuckReason",
    "Times",
    "ToolCategory",
    "ToolExecution",
    "ToolParameter",
    "ToolResult",
    "ToolSpec",
    "WorkerRecord",
    "WorkspacePlaces",
    "WorkspaceRecord",
    "artifact_id",
    "host_of",
    "id_floor",
    "id_time",
    "moment",
    "new_id",
    "shell_id",
]
