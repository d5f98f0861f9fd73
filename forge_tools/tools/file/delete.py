"""Delete: removes a file, a link or a folder, but never the target of a link."""

import stat
from dataclasses import dataclass
from typing import Any

from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.model import Capabilities, ExecutionContext, ToolCategory, ToolResult
from forge_tools.sandbox.paths.files import Survey, remove_file, remove_tree, survey, take_snapshot
from forge_tools.sandbox.paths.journal import Journal
from forge_tools.sandbox.paths.places import Check, Place
from forge_tools.sandbox.paths.refusals import NOT_A_DIRECTORY
from forge_tools.tools.builtin import PATH, BuiltinTool, Deadline, counted, option
from forge_tools.tools.file.write import require_match

NOT_EMPTY = "DIRECTORY_NOT_EMPTY"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deletion:
    file_path: str = option("What to delete, relative to the working directory or absolute.", aliases=("path",), **PATH)
    recursive: bool = option("Delete a folder with all that is in it.", default=False)
    missing_ok: bool = option("Succeed if there is nothing to delete.", default=False)
    if_match: str | None = option(
        "Delete a file only if it still has this etag, which Read and the last write returned.", None, max_length=64
    )

    def planned(self, place: Place, check: Check) -> tuple[Survey | None, str]:
        """Return the survey, None if there is nothing to delete, and its description; refuse what may not be deleted."""
        status = place.status()
        if status is None:
            if self.if_match is not None:
                require_match(place, None, self.if_match)
            if not self.missing_ok:
                raise place.not_found()
            return None, f"Nothing to delete: there is no {place.shown}"
        place.require_writable_folder(status)
        if stat.S_ISDIR(status.st_mode):
            return self._planned_folder(place, check)
        if place.shown.endswith("/"):
            what = "a link" if stat.S_ISLNK(status.st_mode) else "a file"
            raise SandboxError(f"{place.shown.rstrip('/')} is {what}; pass it without the slash", NOT_A_DIRECTORY)
        if stat.S_ISLNK(status.st_mode):
            self._refuse_match("a link")
            return Survey(files=1), f"the link {place.shown}; its target stays"
        if self.if_match is not None:
            require_match(place, take_snapshot(place, check), self.if_match)
        return Survey(files=1, bytes=status.st_size), f"{place.shown} ({status.st_size:,} bytes)"

    def _planned_folder(self, place: Place, check: Check) -> tuple[Survey, str]:
        self._refuse_match("a directory")
        found = survey(place, check)
        shown, what = place.shown.rstrip("/"), counted(found.files, "file")
        if found.folders:
            what += f", {counted(found.folders, 'folder')}"
        if (found.files or found.folders) and not self.recursive:
            raise SandboxError(f"{shown} is a directory with {what}; pass recursive=true to delete it", NOT_EMPTY)
        return found, f"{shown}/ ({what}, {found.bytes:,} bytes)"

    def _refuse_match(self, what: str) -> None:
        if self.if_match is not None:
            raise InvalidCallError(f"if_match is for files; this is {what}. Leave it out")


class Delete(BuiltinTool):
    """Permanently delete a file, a symbolic link (not its target) or, with recursive, a folder in the workspace."""

    name = "Delete"
    aliases = ("delete_file",)
    category = ToolCategory.FILE
    capabilities = Capabilities(writes_files=True, idempotent=True)
    options = _Deletion

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, deadline, workspace = _Deletion(**options), Deadline(context.timeout), self.workspace(context)
        call = {"file_path": asked.file_path, "recursive": asked.recursive, "if_match": asked.if_match}

        def work() -> ToolResult:
            with workspace.place(asked.file_path, follow=False) as place, place.locked(deadline.check):
                journal = Journal(context, place.root, self.name, call)
                if done := journal.recall(place, lambda: _identity(place)):
                    return done  # this very execution did it before a crash
                found, told = asked.planned(place, deadline.check)
                if found is None:
                    return _result(told, None)
                result = _result(f"Deleted {told}", found)
                result.metadata["files_accessed"] = [place.shown]
                journal.plan(_identity(place), None, None, result)
                status = place.status()
                if status is not None and stat.S_ISDIR(status.st_mode):
                    remove_tree(place, deadline.check)
                else:
                    remove_file(place)
                journal.done()
                return result

        return await deadline.run(work)

    async def _dry_run(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, deadline, workspace = _Deletion(**options), Deadline(context.timeout), self.workspace(context)

        def work() -> ToolResult:
            with workspace.place(asked.file_path, follow=False) as place:
                found, told = asked.planned(place, deadline.check)
                if found is None:
                    return _result(f"[Dry Run] {told}", None)
                more = f"\n… and {found.files - len(found.first):,} more" if len(found.first) < found.files != 1 else ""
                paths = "".join(f"\n{path}" for path in found.first)
                return _result(f"[Dry Run] Would delete {told}{paths}{more}", found)

        return await deadline.run(work)


def _result(text: str, found: Survey | None) -> ToolResult:
    counts = found or Survey()
    facts = {"files": counts.files, "folders": counts.folders, "bytes": counts.bytes}
    return ToolResult.ok(text, changed=found is not None, **facts)


def _identity(place: Place) -> str | None:
    """Return which file or folder is there; a rewritten file is a different one."""
    status = place.status()
    if status is None:
        return None
    # Not the ctime of a folder: emptying it changes that, and a rerun after a crash must know it as the same one.
    identity = f"{status.st_dev}:{status.st_ino}"
    return identity if stat.S_ISDIR(status.st_mode) else f"{identity}:{status.st_ctime_ns}"
