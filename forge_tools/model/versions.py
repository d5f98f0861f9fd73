"""The definitions of a tool that there are and were, and which of them counts."""

from dataclasses import dataclass
from datetime import datetime

from forge_tools.model.tools import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolVersion:
    """One definition of a tool as it was published, with the digest that it had then.

    The default is the one that models are offered and calls are checked by. While one is pinned, no other is run.
    """

    spec: ToolSpec
    digest: str
    first_seen_at: datetime
    last_seen_at: datetime
    is_default: bool
    is_pinned: bool
    is_enabled: bool
    demoted_reason: str | None = None
