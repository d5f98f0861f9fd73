"""Which worker boots live, and what they host: one answer for all who ask."""

from collections.abc import Mapping

from sqlalchemy import ColumnElement

from forge_tools.records.tools import tool_key
from forge_tools.storage.functions import from_now
from forge_tools.storage.models import workers


def seen_within(seconds: float) -> ColumnElement[bool]:
    """Boots that beat in the last `seconds`. A beat from the future is one from before the clock was set back."""
    return workers.c.last_seen_at.between(from_now(-seconds), from_now(seconds))


def is_alive(within: float) -> ColumnElement[bool]:
    """Boots that have not stopped, and beat `within` seconds."""
    return workers.c.stopped_at.is_(None) & seen_within(within)


def hosted_keys(tools: Mapping[str, str]) -> frozenset[str]:
    """The keys of the tools that a boot hosts, from its row: `version digest` by name."""
    return frozenset(tool_key(name, version) for name, version in tools.items())
