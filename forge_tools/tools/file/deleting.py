"""One deletion: what goes with it, whether it may, and how it is told."""

import stat
from dataclasses import dataclass

from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.records import ExecutionContext, ToolResult
from forge_tools.sandbox.paths.files import take_snapshot
from forge_tools.sandbox.paths.journal import Journal
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import NOT_A_DIRECTORY
from forge_tools.sandbox.paths.removal import Survey, remove_file, remove_tree, survey
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.file.changes import require_match

NOT_EMPTY = "DIRECTORY_NOT_EMPTY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleting:
    """What the caller wants deleted, as the parameters of Delete name it. Its methods run on a thread."""

    context: ExecutionContext
    workspace: Workspace
    file_path: str
    recursive: bool = False
    missing_ok: bool = False
    if_match: str | None = None

    def apply(self, check: Check) -> ToolResult:
        """Do it, or return what this very execution did before a crash.

        Raises:
            SandboxError: it may not, or cannot, be deleted.
        """
        call = {"file_path": self.file_path, "recursive": self.recursive, "if_match": self.if_match}
        with self.workspace.place(self.file_path, follow=False) as place, place.locked(check):
            journal = Journal.for_call(self.context, place.root, "Delete", call)
            if done := journal.recall(place, lambda: _identity(place)):
                return done
            found, told = self._planned(place, check)
            result = self._result(f"Deleted {told}", found)
            if found is None:
                return self._nothing(place)
            journal.plan(_identity(place), None, None, result)
            if _is_folder(place):
                remove_tree(place, check)
            else:
                remove_file(place)
            journal.done()
            return result

    def preview(self, check: Check) -> ToolResult:
        """Say what `apply` would do, or fail as it would.

        Raises:
            SandboxError: it may not, or cannot, be deleted.
        """
        with self.workspace.place(self.file_path, follow=False) as place:
            found, told = self._planned(place, check)
            if found is None:
                nothing = self._nothing(place)
                return ToolResult.ok(f"[Dry Run] {nothing.output}", **nothing.metadata)
            more = f"\n… and {found.files - len(found.first):,} more" if len(found.first) < found.files != 1 else ""
            paths = "".join(f"\n{path}" for path in found.first)
            return self._result(f"[Dry Run] Would delete {told}{paths}{more}", found)

    def _planned(self, place: Place, check: Check) -> tuple[Survey | None, str]:
        """Return what is deleted, None for nothing, and how it is called."""
        status = place.status()
        if status is None:
            if self.if_match is not None:
                require_match(place, None, self.if_match)
            if not self.missing_ok:
                raise place.not_found()
            return None, place.shown
        place.require_writable_folder(status)
        if stat.S_ISDIR(status.st_mode):
            return self._planned_folder(place, check)
        if place.shown.endswith("/"):
            what = "a link" if stat.S_ISLNK(status.st_mode) else "a file"
            raise SandboxError(f"{place.shown.rstrip('/')} is {what}; pass it without the slash", NOT_A_DIRECTORY)
        if stat.S_ISLNK(status.st_mode):
            self._refuse_match("a link")
            return Survey(files=1), f"the link {place.shown}; what it leads to stays"
        if self.if_match is not None:
            require_match(place, take_snapshot(place, check), self.if_match)
        return Survey(files=1, bytes=status.st_size), f"{place.shown} ({status.st_size:,} bytes)"

    def _planned_folder(self, place: Place, check: Check) -> tuple[Survey, str]:
        self._refuse_match("a directory")
        found = survey(place, check)
        shown = place.shown.rstrip("/")
        what = f"{found.files:,} file{'' if found.files == 1 else 's'}"
        if found.folders:
            what += f", {found.folders:,} folder{'' if found.folders == 1 else 's'}"
        if (found.files or found.folders) and not self.recursive:
            raise SandboxError(f"{shown} is a directory with {what}; pass recursive=true to delete it", NOT_EMPTY)
        return found, f"{shown}/ ({what}, {found.bytes:,} bytes)"

    def _refuse_match(self, what: str) -> None:
        if self.if_match is not None:
            raise InvalidCallError(f"if_match is for files; this is {what}. Leave it out")

    def _result(self, text: str, found: Survey | None) -> ToolResult:
        counts = found or Survey()
        facts = {"files": counts.files, "folders": counts.folders, "bytes": counts.bytes}
        return ToolResult.ok(text, changed=found is not None, **facts)

    def _nothing(self, place: Place) -> ToolResult:
        return self._result(f"Nothing to delete: there is no {place.shown}", None)


def _identity(place: Place) -> str | None:
    """Which file or folder is there; a file that was written anew is another one."""
    status = place.status()
    if status is None:
        return None
    identity = f"{status.st_dev}:{status.st_ino}"
    return identity if stat.S_ISDIR(status.st_mode) else f"{identity}:{status.st_ctime_ns}"


def _is_folder(place: Place) -> bool:
    status = place.status()
    return status is not None and stat.S_ISDIR(status.st_mode)
