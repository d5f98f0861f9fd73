"""The public half of a key that parameters are encrypted with, as the database has it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """`live` counts the executions that are not over and are encrypted with it."""

    id: str
    public: bytes
    created_at: datetime
    retired_at: datetime | None = None
    live: int = 0
