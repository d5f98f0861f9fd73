"""An execution in progress: its request, id and key, wake-up, claim and outcome."""

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from forge_tools.model.tools import Lane

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_VARIANTS = {digit: "89ab"[value % 4] for value, digit in enumerate("0123456789abcdef")}
"""The two variant bits, above two that stay random."""


def new_id() -> str:
    """Make a UUIDv7: 48 bits of Unix milliseconds, 12 bits of their fraction, 62 random bits (RFC 9562, method 3).

    Ids of one process therefore sort in the order in which they were made, to a quarter of a microsecond.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    moment, fraction = f"{milliseconds:012x}", f"{rest * 4096 // 1_000_000:03x}"
    chance = os.urandom(8).hex()
    return f"{moment[:8]}-{moment[8:]}-7{fraction}-{_VARIANTS[chance[0]]}{chance[1:4]}-{chance[4:16]}"


def is_id(text: str) -> bool:
    """Whether `text` is a UUID as this package writes it; PostgreSQL rejects others, and the whole batch with them."""
    return _ID.fullmatch(text) is not None


def id_floor(seconds: float) -> str:
    """Return the lowest UUIDv7 of a Unix time: no id made then or later is below it."""
    moment = f"{int(seconds * 1000):012x}"
    return f"{moment[:8]}-{moment[8:]}-7000-8000-000000000000"


def id_time(execution_id: str) -> float:
    """Read the Unix time in seconds out of a UUIDv7; 0.0 if it is not one, so that the database refuses it as too old."""
    try:
        return int(execution_id[:8] + execution_id[9:13], 16) / 1000
    except ValueError:
        return 0.0


class ExecutionStatus(StrEnum):
    """The states of an execution; `TERMINAL` lists those that end it."""

    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    LOST = "lost"


TERMINAL = frozenset(ExecutionStatus) - {
    ExecutionStatus.QUEUED,
    ExecutionStatus.RUNNING,
    ExecutionStatus.AWAITING_APPROVAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request of a call, as inserted and as read back; times are in seconds."""

    id: str
    tool: str
    tool_version: str
    tool_digest: str = ""
    category: str
    agent_id: str | None = None
    session_id: str | None = None
    queue: str = "default"
    lane: Lane = "process"
    timeout: float
    timeout_source: str
    soft_time_limit: float
    time_limit: float
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's name for one call: submitting it again under that name gives the same execution.

    `scope` is where the name applies, by default FORGE_IDEMPOTENCY_SCOPE; `ttl` is how many seconds it applies after
    the execution ends, by default FORGE_IDEMPOTENCY_TTL.
    """

    key: str
    scope: str | None = None
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """A key as stored. `fingerprint` is a JSON text of keyed digests that identify the call without its values."""

    scope: str
    key: str
    fingerprint: str
    ttl: float


@dataclass(frozen=True, slots=True)
class Replay:
    """Which execution is submitted again, by whom and why."""

    of: str
    actor: str
    reason: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExecution(Asked):
    """A call as it is inserted. `parameters`, `context` and `options` are JSON texts; times are in seconds from now.

    `parameters` is what people may see: the values of `encrypted_names` are in `encrypted`, which only workers can
    decrypt.

    `reply_to` is the client to notify; its result may be encrypted with `reply_key` on the way.
    `claim` and `replay` link it to other executions, in the same transaction.
    `issued_at` is the Unix time inside the id; the database rejects ids more than an hour off its own clock.
    """

    tool_key: str
    parameters: str
    context: str
    options: str = "{}"
    encrypted: str | None = None
    reply_key: str | None = field(default=None, repr=False)
    encrypted_names: tuple[str, ...] = ()
    idempotent: bool = False
    expires_in: float = 600.0
    delay: float = 0.0
    reply_to: str | None = None
    claim: KeyClaim | None = None
    replay: Replay | None = None

    @property
    def is_linked(self) -> bool:
        return self.claim is not None or self.replay is not None

    @property
    def issued_at(self) -> float:
        return id_time(self.id)

    @property
    def size(self) -> int:
        told = (self.parameters, self.context, self.options, self.encrypted, self.claim and self.claim.fingerprint)
        return sum(len(text) for text in told if text)


class Wakeup(NamedTuple):
    """The content of a message: the execution has that attempt count and may be due."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a worker may claim: its instance, lane, queues and the keys of the tools it hosts."""

    instance: str
    hostname: str
    pid: int
    lane: Lane
    queues: tuple[str, ...]
    tool_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An execution this worker now owns. `attempt` counts this body start; `token` fences every later write.

    `options` is a JSON text; `started_at` is the Unix time of the claim by the database's clock. `encrypted` holds the
    hidden values; decryption moves them to `parameters`, and `secrets` lists the texts to remove from all that the call
    leaves.
    """

    id: str
    attempt: int
    token: str
    tool: str
    tool_version: str
    parameters: str = field(repr=False)
    context: str
    timeout: float
    max_attempts: int
    idempotent: bool
    reply_to: str | None
    options: str = "{}"
    queue: str = "default"
    started_at: float | None = None
    encrypted: str | None = None
    reply_key: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def facts(self) -> dict[str, object]:
        """Return what a log record says about the call."""
        facts: dict[str, object] = {"execution_id": self.id, "attempt": self.attempt, "tool": self.tool}
        with suppress(ValueError):
            context = json.loads(self.context)
            facts |= {name: context[name] for name in ("agent_id", "session_id") if context.get(name) is not None}
        return facts


class Kept(IntEnum):
    """What became of an outcome; a falsy value means it was not stored."""

    LATE = 0
    """The worker no longer owned the attempt."""
    WHOLE = 1
    REPLACED = 2
    """Replaced by a failed result that says why the database refused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one attempt ended. `output`, `error_details`, `metadata` and `diagnosis` are JSON texts.

    `retry_in` (seconds) requeues the execution with this attempt recorded; `give_back` requeues it without counting the
    attempt, because its body never started. Otherwise the execution is over.
    """

    id: str
    attempt: int
    token: str
    status: ExecutionStatus
    duration_ms: float | None = None
    output: str | None = None
    error: str | None = None
    error_code: str | None = None
    error_details: str | None = None
    metadata: str = "{}"
    diagnosis: str | None = None
    retry_in: float | None = None
    give_back: bool = False

    @property
    def is_requeue(self) -> bool:
        """Whether the execution should continue; SQL may still end it if no attempt is left or a cancel was requested."""
        return self.give_back or self.retry_in is not None

    @property
    def size(self) -> int:
        said = (self.output, self.error, self.error_details, self.diagnosis, self.metadata)
        return sum(len(text) for text in said if text)


@dataclass(frozen=True, slots=True)
class Holder:
    """The execution that first used the key."""

    execution_id: str
    fingerprint: str
