"""Keeps tools that are disabled, or pinned to another definition, from being claimed: each look says which they are."""

import logging
from collections.abc import Mapping, Set
from dataclasses import replace

from forge_tools.records import Scope, ToolSpec

logger = logging.getLogger(__name__)


class Withdrawal:
    """Which of the tools that a worker hosts, which may grow, it must not run. What runs of them may finish; the rest waits in SQL."""

    def __init__(self, hosted: Mapping[str, ToolSpec]) -> None:
        self._hosted = hosted
        self._withdrawn: frozenset[str] = frozenset()

    def hear(self, disabled: Set[str], pinned: Set[tuple[str, str]] = frozenset()) -> None:
        """Take the names of all tools that are disabled, and (name, digest) of all that are pinned."""
        pins = dict(pinned)
        others = {name for name, spec in self._hosted.items() if pins.get(name, spec.digest) != spec.digest}
        withdrawn = frozenset(self._hosted.keys() & disabled | others)
        if withdrawn != self._withdrawn:
            said = {
                "disabled": ",".join(sorted(withdrawn - others)) or "none",
                "pinned_elsewhere": ",".join(sorted(others)) or "none",
            }
            logger.info("Tools were enabled, disabled, pinned or let go", extra=said)
        self._withdrawn = withdrawn

    def within(self, scope: Scope) -> Scope:
        """What of `scope` this worker still claims."""
        if not self._withdrawn:
            return scope
        off = {self._hosted[name].key for name in self._withdrawn}
        return replace(scope, tool_keys=tuple(key for key in scope.tool_keys if key not in off))
