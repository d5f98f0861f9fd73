"""Data only: what a tool is, what a call carries, what an execution leaves behind.

What may live here is exchanged by several packages, does no I/O, and decides nothing that its own fields do not tell.
What users import is handed on from here; everything else is in its module.
"""

from forge_tools.model.artifacts import PageWish
from forge_tools.model.calls import CallOptions, ExecutionContext, RetryPolicy, ToolExecution, ToolResult
from forge_tools.model.content import Audio, File, Image, Link, Text
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.execution import ExecutionStatus, IdempotencyKey, new_id
from forge_tools.model.history import Ended, ExecutionRecord, Grouping, Note, Selection, StateChange
from forge_tools.model.scope import Output, Progress
from forge_tools.model.tools import Capabilities, Lane, ToolCategory, ToolParameter, ToolSpec

__all__ = [
    "Audio",
    "CallOptions",
    "Capabilities",
    "Diagnosis",
    "Ended",
    "ExecutionContext",
    "ExecutionRecord",
    "ExecutionStatus",
    "File",
    "Grouping",
    "IdempotencyKey",
    "Image",
    "Lane",
    "Link",
    "Note",
    "Output",
    "PageWish",
    "Progress",
    "RetryPolicy",
    "Selection",
    "StateChange",
    "Text",
    "ToolCategory",
    "ToolExecution",
    "ToolParameter",
    "ToolResult",
    "ToolSpec",
    "new_id",
]
