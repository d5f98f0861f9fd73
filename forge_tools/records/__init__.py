"""Data only: what a tool is, what a call carries, what an execution leaves behind. No I/O, no behaviour."""

from forge_tools.records.artifacts import Artifact, ArtifactPage, PageWish, artifact_id
from forge_tools.records.calls import (
    DEFAULT_TIMEOUT,
    CallOptions,
    ExecutionContext,
    RetryPolicy,
    ToolExecution,
    ToolResult,
    wrong_call,
)
from forge_tools.records.diagnosis import Diagnosis, Frame, Raised
from forge_tools.records.documents import Document, DocumentScope, DocumentWriter, Revise
from forge_tools.records.encryption import EncryptionKey
from forge_tools.records.events import CallEvent, Ended, Note, Position, Sight, StateChange
from forge_tools.records.history import (
    Attempt,
    AttemptRecord,
    CallFigures,
    Event,
    EventRecord,
    ExecutionRecord,
    QueueDepth,
    StoredResult,
    StuckCalls,
    StuckReason,
    Times,
    WorkerRecord,
)
from forge_tools.records.ids import id_floor, id_time, is_id, new_id
from forge_tools.records.keys import Holder, IdempotencyKey, KeyClaim, LinkedExecution, Replay
from forge_tools.records.losses import Loss, moment
from forge_tools.records.overview import DemotedTool, FailedCalls, Overview, QueueLoad, WorkerLoad
from forge_tools.records.queue import TERMINAL, Claim, ExecutionStatus, Kept, NewExecution, Outcome, Scope, Wakeup
from forge_tools.records.redaction import REDACTED, REFERENCE, is_reference, is_secret_name, secrets_in, without_secrets
from forge_tools.records.reports import NewReport, Output, Progress, Report, Reporter, Stream, Told
from forge_tools.records.scope import SCOPE, CallScope, scope_for
from forge_tools.records.selection import Grouping, Selection
from forge_tools.records.servers import ServerState, told_of
from forge_tools.records.shells import ShellRecord, ShellStatus, host_of, shell_id
from forge_tools.records.tools import Capabilities, Lane, Schema, ToolCategory, ToolParameter, ToolSpec
from forge_tools.records.versions import ToolVersion
from forge_tools.records.workspaces import Moved, NamedWorkspace, Stranded, WorkspacePlaces, WorkspaceRecord

__all__ = [
    "DEFAULT_TIMEOUT",
    "REDACTED",
    "REFERENCE",
    "SCOPE",
    "TERMINAL",
    "Artifact",
    "ArtifactPage",
    "Attempt",
    "AttemptRecord",
    "CallEvent",
    "CallFigures",
    "CallOptions",
    "CallScope",
    "Capabilities",
    "Claim",
    "DemotedTool",
    "Diagnosis",
    "Document",
    "DocumentScope",
    "DocumentWriter",
    "EncryptionKey",
    "Ended",
    "Event",
    "EventRecord",
    "ExecutionContext",
    "ExecutionRecord",
    "ExecutionStatus",
    "FailedCalls",
    "Frame",
    "Grouping",
    "Holder",
    "IdempotencyKey",
    "Kept",
    "KeyClaim",
    "Lane",
    "LinkedExecution",
    "Loss",
    "Moved",
    "NamedWorkspace",
    "NewExecution",
    "NewReport",
    "Note",
    "Outcome",
    "Output",
    "Overview",
    "PageWish",
    "Position",
    "Progress",
    "QueueDepth",
    "QueueLoad",
    "Raised",
    "Replay",
    "Report",
    "Reporter",
    "RetryPolicy",
    "Revise",
    "Schema",
    "Scope",
    "Selection",
    "ServerState",
    "ShellRecord",
    "ShellStatus",
    "Sight",
    "StateChange",
    "StoredResult",
    "Stranded",
    "Stream",
    "StuckCalls",
    "StuckReason",
    "Times",
    "Told",
    "ToolCategory",
    "ToolExecution",
    "ToolParameter",
    "ToolResult",
    "ToolSpec",
    "ToolVersion",
    "Wakeup",
    "WorkerLoad",
    "WorkerRecord",
    "WorkspacePlaces",
    "WorkspaceRecord",
    "artifact_id",
    "host_of",
    "id_floor",
    "id_time",
    "is_id",
    "is_reference",
    "is_secret_name",
    "moment",
    "new_id",
    "scope_for",
    "secrets_in",
    "shell_id",
    "told_of",
    "without_secrets",
    "wrong_call",
]
