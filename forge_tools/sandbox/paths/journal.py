"""Records what each execution does to a file, before and after, so that a rerun after a crash does not do it twice."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from forge_tools.errors import ErrorCode, SandboxError
from forge_tools.model.calls import ExecutionContext, ToolResult
from forge_tools.sandbox.paths.confinement import OpenRoot
from forge_tools.sandbox.paths.folders import Folder, entries_of
from forge_tools.sandbox.paths.places import Place
from forge_tools.sandbox.paths.refusals import refusal

FOLDER = ".forge-journal"
"""The folder of entries, in the root: all who share the workspace share them, whichever host reruns the execution."""

KEPT_SECONDS = 7 * 86_400
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """What an execution is about to do. `before` and `after` name the state of the file; None: there is none.

    As long as `temporary`, a name in the folder of the file, exists, the new bytes are not in place.
    """

    call: str
    before: str | None
    after: str | None
    temporary: str | None
    result: dict[str, Any]


class Journal:
    """The entry of the execution that a context belongs to. Without an execution id, or if nothing can be written, there is none.

    Every method must be called while the folder of the file is locked.
    """

    def __init__(self, context: ExecutionContext, root: OpenRoot, tool: str, parameters: Mapping[str, Any]) -> None:
        self._root = root
        self._name = _digest(context.execution_id) if context.execution_id else None
        # The id identifies the execution; the same id with another call is another action.
        self._call = _digest(json.dumps([tool, dict(parameters)], sort_keys=True)) if self._name else ""

    def recall(self, place: Place, seen: Callable[[], str | None]) -> ToolResult | None:
        """Return the result of this very execution if it has done its work before, else None.

        Refuses if it was interrupted, and somebody else has changed the file since (OUTCOME_UNKNOWN). `seen` looks at the
        state of the file now.
        """
        folder = self._open()
        if folder is None:
            return None
        with folder:
            entry, is_done = self._load(folder)
        if entry is None or entry.call != self._call:
            return None
        if not is_done:
            if entry.temporary:
                with suppress(FileNotFoundError):
                    os.unlink(entry.temporary, dir_fd=place.fd)
                    return None
            now = seen()
            if now == entry.before:
                return None
            if now != entry.after:
                what = f"An earlier attempt of this call was interrupted while it changed {place.shown}, and the file "
                what += "has changed since: whether it took effect is unknown. Read the file, then decide"
                raise SandboxError(what, ErrorCode.OUTCOME_UNKNOWN)
        result = ToolResult.model_validate(entry.result)
        return result.model_copy(update={"metadata": result.metadata | {"replayed": True}})

    def plan(self, before: str | None, after: str | None, temporary: str | None, result: ToolResult) -> None:
        """Record what will be done, and its result."""
        folder = self._open(is_made=True)
        if folder is None or self._name is None:
            return
        entry = Entry(self._call, before, after, temporary, result.model_dump(mode="json"))
        with folder:
            try:
                with os.fdopen(os.open(f"{self._name}.new", _WRITE, 0o600, dir_fd=folder.fd), "wb") as file:
                    file.write(json.dumps(asdict(entry)).encode("utf-8", "surrogatepass"))
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(f"{self._name}.new", f"{self._name}.json", src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
                with suppress(FileNotFoundError):  # left by another call with this id; `_load` would prefer it
                    os.unlink(f"{self._name}.done", dir_fd=folder.fd)
                if self._name.startswith("00"):  # one execution in 256: often enough
                    _prune(folder)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(f"{self._name}.new", dir_fd=folder.fd)
                raise refusal(error, "the write journal", "write") from error

    def done(self) -> None:
        folder = self._open()
        if folder is None:
            return
        with folder, suppress(OSError):  # it has been done anyway; what it left is enough evidence
            os.rename(f"{self._name}.json", f"{self._name}.done", src_dir_fd=folder.fd, dst_dir_fd=folder.fd)

    def _open(self, *, is_made: bool = False) -> Folder | None:
        if self._name is None:
            return None
        try:
            root = Folder(self._root.fd)
            if is_made:
                _make(root)
            return root.enter(FOLDER)
        except OSError as error:
            if not is_made:
                return None
            what = f"The write journal of the workspace cannot be used: {os.strerror(error.errno or 0)}. "
            what += f"Without it a crash could repeat this write; let workers write to {FOLDER} in the workspace"
            raise SandboxError(what, ErrorCode.EXECUTION_ERROR) from error

    def _load(self, folder: Folder) -> tuple[Entry | None, bool]:
        for suffix in ("done", "json"):
            # Missing, or truncated by a crash of the host: nothing had been done yet.
            with suppress(OSError, ValueError, TypeError):
                return Entry(**json.loads(folder.read(f"{self._name}.{suffix}"))), suffix == "done"
        return None, False


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _make(root: Folder) -> None:
    with suppress(FileExistsError):
        os.mkdir(FOLDER, 0o700, dir_fd=root.fd)
        below = root.enter(FOLDER)  # commits and searches of the workspace should skip its content
        with below, os.fdopen(os.open(".gitignore", _WRITE, 0o600, dir_fd=below.fd), "wb") as file:
            file.write(b"*\n")


def _prune(folder: Folder) -> None:
    oldest = time.time() - KEPT_SECONDS
    for name in entries_of(folder.fd).files:
        if name == ".gitignore":
            continue
        with suppress(FileNotFoundError):  # another writer has finished with it, or prunes too
            if folder.stat(name).st_mtime < oldest:
                os.unlink(name, dir_fd=folder.fd)
