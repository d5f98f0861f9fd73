"""The results of verifying the audit chain, and of pruning history."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Fault(StrEnum):
    """What is wrong with a row, or with the chain itself."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    UNFINISHED = "unfinished"
    MISSING_BATCH = "missing batch"
    BROKEN_BATCH = "broken batch"
    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad signature"
    UNKNOWN_KEY = "unknown key"
    OTHER_HEAD = "other head"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from what was sealed: what is wrong, in which row of which table, and the evidence."""

    fault: Fault
    table: str
    key: str
    said: str
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The newest batch; a copy kept elsewhere proves later that nothing before it was replaced."""

    sequence: int
    hash: str
    sealed_at: datetime
    key_id: str | None
    signature: str | None

    def __str__(self) -> str:
        return f"{self.sequence}:{self.hash}"


@dataclass(slots=True)
class AuditReport:
    """What `verify` found. Only the first findings are kept; `found` counts all of them."""

    head: Head | None = None
    batches: int = 0
    executions: int = 0
    events: int = 0
    definitions: int = 0
    """Of tools."""
    pruned: int = 0
    checkpoints: int = 0
    unsealed: int = 0
    oldest_unsealed: datetime | None = None
    ended_from: datetime | None = None
    ended_until: datetime | None = None
    longest_wait: float = 0.0
    """The longest time, in seconds, from the end of an execution to its seal; until it is sealed, nothing proves it."""
    signatures: int = 0
    """Batches with a valid signature."""
    kept_heads: int = 0
    """Heads that were kept elsewhere, and compared."""
    key_ids: list[str] = field(default_factory=list)
    found: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        return not self.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What to delete: executions that ended before a given time and match the other fields."""

    ended_before: datetime
    tool: str | None = None
    category: str | None = None
    status: str | None = None
    keep: tuple[str, ...] = ()
    """Statuses that are never deleted."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one transaction deleted."""

    executions: int = 0
    attempts: int = 0
    events: int = 0
    last: str | None = None
    """The id of the last execution deleted; the next transaction starts after it."""
    seconds: float = 0.0
    is_busy: bool = False
    """Whether calls were waiting or running meanwhile."""
