"""The file system that a tool receives: the files of its workspace by six plain methods, easy to replace by others."""

import os

from forge_tools.errors import SandboxError
from forge_tools.model.calls import ExecutionContext
from forge_tools.sandbox.paths.files import Replacement, remove_file, replace_file, temporary_name
from forge_tools.sandbox.paths.folders import scan
from forge_tools.sandbox.paths.refusals import NOT_FOUND, refusing
from forge_tools.sandbox.paths.workspace import Workspace


def files(context: ExecutionContext) -> "Files":
    """In `Annotated[Files, Depends(files, per="call")]`: the files of the workspace of the call (spec S1-09)."""
    return Files(Workspace.for_context(context))


class Files:
    """Files below the workspace, by paths as callers pass them. The methods block.

    Raises:
        SandboxError: from every method; the path lies outside, is protected, or cannot be read or written.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        with (
            self._workspace.open_file(path) as file,
            open(file.fd, "rb", closefd=False) as stream,
            refusing(file.name, "read"),
        ):
            return stream.read()

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file, all or nothing, and create missing folders."""
        with self._workspace.place(path) as place:
            place.make_folders()
            try:
                with place.locked(_go_on):
                    seen = place.status()
                    place.require_writable(seen)
                    replace_file(place, Replacement(data=data, seen=seen), temporary_name(place.name), _go_on)
            except SandboxError:
                place.unmake_folders()
                raise

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        try:
            self.stat(path)
        except SandboxError as refused:
            if refused.code == NOT_FOUND:
                return False
            raise
        return True

    def unlink(self, path: str) -> None:
        """Delete a file, or a link rather than its target."""
        with self._workspace.place(path, follow=False) as place, place.locked(_go_on):
            if (status := place.status()) is None:
                raise place.not_found()
            place.require_writable_folder(status)
            remove_file(place)

    def readdir(self, path: str = ".") -> list[str]:
        """List the names in a folder, sorted."""
        with self._workspace.open_folder(path) as folder:
            return sorted(entry.name for entry in scan(folder))

    def stat(self, path: str) -> os.stat_result:
        """Return the system's facts about a file or a folder."""
        with self._workspace.open(path) as found:
            return found.stat


def _go_on() -> None: ...
