"""Where a search looks: one open file, or a folder and of what is below it the part that was asked for."""

import os
from collections.abc import Sequence
from typing import Any

from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.folders import Changes, changes_since, open_allowed
from forge_tools.sandbox.paths.names import escape_path
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tools.file.globs import by_path, compile_glob, only
from forge_tools.tools.file.surveying import Survey

_MAX_NAMED = 20
_MAX_TOLD = 300
"""Being told of each file that is binary costs more than the search where there are thousands of them."""


class File:
    """A single file, which the program reads from standard input: no path is looked up a second time."""

    is_partial = False
    rules = ""
    tells_binaries = False

    def __init__(self, file: Handle, root: Handle) -> None:
        self.file = file
        self.folder = root.fd

    def rewind(self) -> None:
        os.lseek(self.file.fd, 0, os.SEEK_SET)  # a search before this one may have read it

    def wanted(self, _: str) -> bool:
        return True

    def shown(self, _: str) -> str:
        return self.file.name

    def open(self, _: str) -> Handle | None:
        return None

    def changes(self) -> Changes:
        return Changes()

    def searched(self, failed: Sequence[str]) -> int:
        return 1 - bool(failed)

    def warnings(self) -> list[str]:
        return []

    def facts(self, binary_files: int, binaries: list[str]) -> dict[str, Any]:
        return {}


class Folder:
    """A folder handle to start in, and of what is below it the part that was asked for."""

    def __init__(self, workspace: Workspace, handle: Handle, found: Survey, *, glob: str | None, hidden: bool) -> None:
        self.folder = handle.fd
        self.survey = found
        self.glob = compile_glob(glob) if glob else None
        self.rules = (only(glob) if glob else "") + found.rules()
        self.is_partial = found.is_partial
        # A program that tells of binary files tells of each file that a glob chose, too.
        self.tells_binaries = self.glob is None and len(found.binary_names) + len(found.left_out) <= _MAX_TOLD
        self._hidden = hidden
        self._handle = handle
        inside = workspace.inside(handle)
        self._above = "" if inside == "." else f"{inside}/"
        self._workspace = workspace
        self._shown_above = _prefix(workspace.shown(inside, handle))

    def wanted(self, path: str) -> bool:
        path = path.removeprefix("./")
        if self.survey.has(path) or (self.glob and not self.glob.fullmatch(path)):
            return False
        return self._hidden or not (path.startswith(".") or "/." in path)

    def shown(self, path: str) -> str:
        path = path.removeprefix("./")
        if self._shown_above is None:
            return self._workspace.shown(self._above + path, self._handle)
        return self._shown_above + escape_path(path)

    def open(self, path: str) -> Handle | None:
        """Open a file that a search told of, if it is one that may be read."""
        inside = self._above + path.removeprefix("./")
        return open_allowed(self._handle.root, inside, self.shown(path))

    def changes(self) -> Changes:
        """Look which folders have changed since they were surveyed."""
        return changes_since(self.survey.seen, self.folder)

    def searched(self, failed: Sequence[str]) -> int:
        """Count the files, given those (and folders) that a search without a glob complained of."""
        folders = {path for path, _ in self.survey.faults}
        return self.survey.files - sum(1 for path in failed if self.shown(path) not in folders)

    def warnings(self) -> list[str]:
        return [f"{path}: {reason}" for path, reason in self.survey.faults]

    def facts(self, binary_files: int, binaries: list[str]) -> dict[str, Any]:
        """Count what is not searched: binary files by what is in them where that was told, else by their names."""
        facts: dict[str, Any] = {"protected": self.survey.protected} if self.survey.protected else {}
        if not self.tells_binaries:
            named = sum(1 for path in self.survey.binary_names if self.wanted(path))
            return facts | ({"binary_names": named} if named else {})
        named_first = [self.shown(path) for path in sorted(binaries, key=by_path)[:_MAX_NAMED]]
        return facts | ({"binary_files": binary_files, "binary": named_first} if binary_files else {})


def _prefix(shown: str) -> str | None:
    """What all paths below begin with; None where the working directory may be one of them, which begins otherwise."""
    if shown.startswith(".."):
        return None
    return "" if shown == "." else f"{shown.rstrip('/')}/"
