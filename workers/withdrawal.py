"""Keeps disabled tools from being claimed: each look says which they are."""

import logging
from collections.abc import Sequence, Set
from dataclasses import replace

from forge_tools.records import Scope, ToolSpec

logger = logging.getLogger(__name__)


class Withdrawal:
    """Which tools of those that a worker hosts are switched off. What runs of them may finish; the rest waits in SQL."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._hosted = {spec.name: spec.key for spec in specs}
        self._withdrawn: frozenset[str] = frozenset()

    def hear(self, disabled: Set[str]) -> None:
        """Take the names of all tools that are disabled."""
        withdrawn = frozenset(self._hosted.keys() & disabled)
        if withdrawn != self._withdrawn:
            logger.info("Tools were enabled or disabled", extra={"disabled": ",".join(sorted(withdrawn)) or "none"})
        self._withdrawn = withdrawn

    def within(self, scope: Scope) -> Scope:
        """What of `scope` this worker still claims."""
        if not self._withdrawn:
            return scope
        off = {self._hosted[name] for name in self._withdrawn}
        return replace(scope, tool_keys=tuple(key for key in scope.tool_keys if key not in off))
