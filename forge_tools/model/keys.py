"""What ties an execution to others: the idempotency key it was asked under, and the execution it repeats."""

from dataclasses import dataclass

from forge_tools.model.queue import NewExecution


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's name for one call: whoever asks for it again under that name gets the same execution.

    `scope` is where the name holds, None what `FORGE_IDEMPOTENCY_SCOPE` says; `ttl` is how many seconds after the end of the
    execution it holds, None what `FORGE_IDEMPOTENCY_TTL` says.
    """

    key: str
    scope: str | None = None
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """A key as it is stored. `fingerprint` is a JSON text of keyed digests: what the call is, without its values."""

    scope: str
    key: str
    fingerprint: str
    ttl: float


@dataclass(frozen=True, slots=True)
class Replay:
    """Which execution is asked for again, by whom and why."""

    of: str
    actor: str
    reason: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class LinkedExecution:
    """A call as it is inserted together with what ties it to others, or not at all."""

    new: NewExecution
    claim: KeyClaim | None = None
    replay: Replay | None = None

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def size(self) -> int:
        return self.new.size + (len(self.claim.fingerprint) if self.claim else 0)


@dataclass(frozen=True, slots=True)
class Holder:
    """The execution that had the key first."""

    execution_id: str
    fingerprint: str
