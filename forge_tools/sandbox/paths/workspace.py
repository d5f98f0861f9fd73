"""The workspace: folders held open by handle, which no path can leave."""

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model.calls import ExecutionContext
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER, Handle, OpenRoot, Root, nest
from forge_tools.sandbox.paths.places import Place, find_place, with_similar
from forge_tools.sandbox.paths.refusals import (
    NOT_A_DIRECTORY,
    NOT_FOUND,
    check_path,
    escape_path,
    not_a_file,
    outside,
    parts_of,
    refusal,
    refusing,
    unescape_path,
)
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.schema import shown, suggestion


class _Located(NamedTuple):
    root: OpenRoot
    inside: str
    shown: str


class Workspace:
    """One folder, or several roots, that every path is confined to. A link never leads from one root to another.

    Relative paths start at `working_dir`, absolute ones must lie inside a root. Paths are read as they are shown, with
    escapes for invisible characters; only `working_dir` comes from a program and is taken literally.
    """

    def __init__(self, root: Path | Sequence[Root], working_dir: str = ".") -> None:
        roots = [Root(root)] if isinstance(root, Path) else root
        self._roots = [OpenRoot(one) for one in roots]
        if len(self._roots) > 1:
            nest(self._roots)
        self._home, self._working_dir = self._roots[0], ""
        if working_dir not in (".", self._home.path):
            self._home, self._working_dir = self._start(working_dir)

    @classmethod
    def for_context(cls, context: ExecutionContext) -> Self:
        """Open the workspace of a call: the one it names, the one in its reach, else the context's working directory."""
        reach = REACH.get()
        root = reach.root if context.workspace is None else _named(reach, context.workspace)
        if root is None:
            return cls(Path(check_path(context.working_dir)))
        return cls(root, context.working_dir)

    @property
    def roots(self) -> list[Root]:
        return [one.root for one in self._roots]

    def open(self, path: str) -> Handle:
        """Open a regular file or a folder for reading."""
        return self._open(self._locate(unescape_path(path)))

    def open_file(self, path: str) -> Handle:
        handle = self.open(path)
        if handle.is_folder:
            handle.close()
            raise not_a_file(handle.name, handle.stat.st_mode)
        return handle

    def open_cached(self, path: str) -> Handle | None:
        """Open a regular file if that is sure not to block (safe on an event loop); on None, call `open_file` on a thread."""
        asked = self._locate(unescape_path(path))
        handle = asked.root.open_cached(asked.inside, asked.shown)
        if handle is not None and not handle.is_file:
            handle.close()
            return None
        return handle

    def open_folder(self, path: str = ".") -> Handle:
        """Open a folder, to list it or to start a process in it."""
        return _folder(self.open(path))

    def open_root(self, of: Handle | None = None) -> Handle:
        """Open the root in which `of` lies, by default that of the working directory."""
        root = of.root if of else self._home
        return Handle(os.dup(root.fd), self.shown(".", root), root)

    def place(self, path: str, *, follow: bool = True) -> Place:
        """Find where a file is or will be written or deleted, and refuse if that is not allowed.

        Links are followed, except a last one without `follow`. Nothing is created or changed.
        """
        asked = self._locate(unescape_path(path))
        if path.endswith(("/", "/.")):  # which names a folder; `_locate` may have dropped the slash
            asked = asked._replace(inside=f"{asked.inside}/", shown=f"{asked.shown}/")
        with refusing(asked.shown):
            place = find_place(asked.root, asked.inside, asked.shown, follow=follow)
        try:
            asked.root.check(place.fd, asked.shown, [*place.missing, place.name], is_write=True)
        except SandboxError:
            place.close()
            raise
        return place

    def inside(self, handle: Handle) -> str:
        """Return where an open file or folder lies below its root: without links, "." for the root itself."""
        below = handle.root.truly_below(handle.fd)
        if below is None:
            raise outside(handle.name)
        return below

    def shown(self, inside: str, root: OpenRoot) -> str:
        """Return a path below a root as people pass it: relative to the working directory, absolute in another root."""
        if root is not self._home:
            return escape_path(posixpath.normpath(posixpath.join(root.path, inside)))
        if not self._working_dir:
            return escape_path(inside)
        return escape_path(posixpath.relpath(inside, self._working_dir))

    def close(self) -> None:
        """Release the roots; this also happens with the last reference."""
        for root in self._roots:
            root.close()

    def _start(self, working_dir: str) -> tuple[OpenRoot, str]:
        """Check the working directory; return its root and its path there, "" for the root itself."""
        try:
            asked = self._locate(working_dir)
            if not parts_of(asked.inside):
                return asked.root, ""
            _folder(self._open(asked)).close()
        except SandboxError as error:
            what = f"Working directory cannot be used: {error.message}. Pass one inside the workspace, or `.`"
            raise SandboxError(what, error.code) from error
        return asked.root, asked.inside

    def _open(self, asked: _Located) -> Handle:
        try:
            handle = asked.root.open_to_read(asked.inside, asked.shown)
        except OSError as error:
            raise self._with_similar(refusal(error, asked.shown), asked) from error
        if not handle.is_folder and not handle.is_file:
            handle.close()
            raise not_a_file(asked.shown, handle.stat.st_mode)
        return handle

    def _locate(self, path: str) -> _Located:
        path = check_path(path)
        if not path.startswith("/"):
            joined = f"{self._working_dir}/{path}" if self._working_dir else path
            # `a/..` is not always `.`: `a` may be a symlink, so such a path is shown as it was given.
            plain = path if ".." in path.split("/") else posixpath.normpath(path)
            return _Located(self._home, joined, escape_path(plain))
        found = [(root, below) for root in self._roots if (below := root.below(path)) is not None]
        if not found:
            raise outside(escape_path(path))
        # The innermost of nested roots.
        root, inside = min(found, key=lambda one: len(parts_of(one[1])))
        return _Located(root, inside, self.shown(inside, root))

    def _with_similar(self, refused: SandboxError, asked: _Located) -> SandboxError:
        """Add similar names from the same folder; this look-up also stays in the workspace."""
        folder, _, name = asked.inside.rpartition("/")
        if refused.code != NOT_FOUND or not name:
            return refused
        try:
            with Handle(asked.root.open(folder or ".", OPEN_FOLDER), folder, asked.root) as above:
                return with_similar(refused, above.fd, name, asked.shown)
        except OSError:
            return refused


def _folder(handle: Handle) -> Handle:
    if not handle.is_folder:
        handle.close()
        raise SandboxError(f"{handle.name} is a file; pass the path of a directory", NOT_A_DIRECTORY)
    return handle


def _named(reach: Reach, name: str) -> Sequence[Root]:
    roots = reach.workspaces.get(name)
    if roots:
        return roots
    known = ", ".join(sorted(reach.workspaces)) or "none"
    what = f"Unknown workspace: {shown(name)}{suggestion(name, reach.workspaces)}. Known here: {known}"
    raise SandboxError(what, ErrorCode.WORKSPACE_NOT_FOUND)
