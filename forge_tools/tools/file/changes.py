"""One change of one file: found, locked, planned, journaled and done, or only told of in a dry run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.records import ExecutionContext, ToolResult
from forge_tools.sandbox.paths.files import (
    Replacement,
    Snapshot,
    etag_at,
    etag_of,
    replace_file,
    set_executable,
    take_snapshot,
    temporary_name,
)
from forge_tools.sandbox.paths.journal import Journal
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import STALE
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.file.effort import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a call does to a file: `data` are all its new bytes, None where they stay. `preview` tells it in a dry run."""

    data: bytes | None
    result: ToolResult
    preview: str
    is_executable: bool | None = None


Planner = Callable[[Place, Snapshot | None, Check], Change]
"""Decides what becomes of a file that is so; raises what is to be refused or that nobody waits any more, and touches nothing."""


class Changing:
    """One call of a tool that changes a file, done on a thread of its own.

    Raises:
        SandboxError: from every method, with a sentence and a code for the caller of the tool.
    """

    def __init__(
        self, context: ExecutionContext, workspace: Workspace, tool: str, parameters: Mapping[str, Any]
    ) -> None:
        self._context = context
        self._workspace = workspace
        self._effort = Effort(context)
        self._call = (tool, parameters)

    async def apply(self, path: str, planner: Planner) -> ToolResult:
        """Do it, or return what this very execution did before a crash."""
        return await self._effort.run(lambda: self._find_and_apply(path, planner))

    async def preview(self, path: str, planner: Planner) -> ToolResult:
        """Say what `apply` would do, or fail as it would."""
        return await self._effort.run(lambda: self._find_and_preview(path, planner))

    def _find_and_apply(self, path: str, planner: Planner) -> ToolResult:
        with self._workspace.place(path) as place:
            if place.missing:
                planner(place, None, self._effort.check)  # where this refuses, no folder is made
                place.require_writable(None)
                place.make_folders()
            try:
                return self._locked_and_applied(place, planner)
            except BaseException:
                place.unmake_folders()
                raise

    def _locked_and_applied(self, place: Place, planner: Planner) -> ToolResult:
        check = self._effort.check
        with place.locked(check):
            journal = Journal.for_call(self._context, place.root, *self._call)
            if done := journal.recall(place, lambda: etag_at(place, check)):
                return done
            seen = take_snapshot(place, check)
            return self._apply(place, seen, planner(place, seen, check), journal)

    def _find_and_preview(self, path: str, planner: Planner) -> ToolResult:
        with self._workspace.place(path) as place:
            seen = take_snapshot(place, self._effort.check)
            change = planner(place, seen, self._effort.check)
            if change.data is not None:
                place.require_writable(seen.status if seen else None)
            return ToolResult.ok(f"[Dry Run] {change.preview}", **change.result.metadata)

    def _apply(self, place: Place, seen: Snapshot | None, change: Change, journal: Journal) -> ToolResult:
        status = seen.status if seen else None
        replacement = Replacement(data=change.data or b"", seen=status, is_executable=change.is_executable)
        if change.data is None:
            if change.is_executable is not None:
                set_executable(place, replacement)
            return change.result
        place.require_writable(status)
        temporary = temporary_name(place.name)
        journal.plan(seen.etag if seen else None, change.result.metadata["etag"], temporary, change.result)
        replace_file(place, replacement, temporary, self._effort.check)
        journal.done()
        return change.result


def require_match(place: Place, seen: Snapshot | None, if_match: str | None) -> None:
    """Refuse where the file is not the one that the caller has seen.

    Raises:
        SandboxError: its etag is another one, or it is gone (STALE_FILE).
    """
    if if_match is None or (seen and seen.etag == if_match):
        return
    if seen is None:
        raise SandboxError(f"{place.shown} does not exist (any more), and if_match expects {if_match}", STALE)
    what = f"{place.shown} changed since it was read (etag {if_match} expected, {seen.etag} found). Read it again"
    raise SandboxError(what, STALE)


def facts_of(seen: Snapshot | None, data: bytes) -> dict[str, Any]:
    """What the metadata of every change say."""
    facts: dict[str, Any] = {
        "changed": seen is None or seen.data != data,
        "created": seen is None,
        "bytes": len(data),
        "etag_before": seen.etag if seen else None,
        "etag": etag_of(data),
    }
    if seen is not None and seen.status.st_nlink > 1 and facts["changed"]:
        facts["hardlink_broken"] = True  # its other names keep the old bytes
    return facts
