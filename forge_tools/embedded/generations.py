"""New workers whenever the user's source files change."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from threading import Event
from typing import Protocol

from watchfiles import Change, watch

from forge_tools.embedded.forks import SupervisedWorker
from forge_tools.errors import ConfigurationError
from forge_tools.project import FILE

LEAVE_SECONDS = 10.0
"""How long old workers have to stop claiming calls before the new code is announced all the same."""

STEP_MS = 50
"""A change is reported after this long without another: editors write a file in several steps."""

LOOK_MS = 200
"""How long after folders begin to be watched their sources are looked at once."""

MOST_FOLDERS = 5_000

IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env"})
"""Ignored in addition to hidden folders and virtual environments of any name."""


class Listener(Protocol):
    """Receives the state of the workers, in a thread of this package."""

    def renewed(self, seconds: float) -> None:
        """New workers have taken over, this long after they were requested; the old ones claim no more calls."""

    def refused(self, said: str) -> None:
        """New workers could not start; the old ones keep serving."""


class Generations:
    """The workers that serve (the stack's own list, changed in place) and those that take over from them."""

    def __init__(
        self, serving: list[SupervisedWorker], make: Callable[[], list[SupervisedWorker]], listener: Listener
    ) -> None:
        self._serving = serving
        self._make = make
        self._listener = listener
        self._lock = threading.Lock()
        self._coming: list[SupervisedWorker] | None = []
        """None once there are to be no more."""
        self._leaving: list[SupervisedWorker] = []

    def renew(self) -> None:
        """Start new workers, which take over once they serve; end any still starting, since their code is old."""
        with self._lock:
            if self._coming is None:
                return
            asked_at = time.monotonic()
            self._withdraw(self._coming)
            self._coming = self._make()
            try:
                for worker in self._coming:
                    worker.start()
            except OSError as error:  # no process, descriptor or disk available; that may pass
                self._withdraw(self._coming)
                self._coming = []
                self._listener.refused(f"New workers cannot be started: {error.strerror}.")
                return
            threading.Thread(
                target=self._await, args=(self._coming, asked_at), name="forge-generation", daemon=True
            ).start()

    def tend(self) -> None:
        with self._lock:
            for worker in self._leaving:
                worker.forget()
            self._leaving = [worker for worker in self._leaving if worker.is_alive]

    def close(self) -> None:
        """Leave all workers to the stack, which ends."""
        with self._lock:
            self._serving += (*(self._coming or ()), *self._leaving)
            self._coming = None

    def _await(self, coming: list[SupervisedWorker], asked_at: float) -> None:
        said = next(filter(None, (worker.refusal() for worker in coming)), None)  # without the lock: it takes seconds
        with self._lock:
            if coming is not self._coming:  # meanwhile there was another change, or the stack ended
                return
            self._coming = []
            old = tuple(self._serving)
            if said is None:
                for worker in old:
                    worker.leave()
                self._leaving += old
                self._serving[:] = coming
            else:
                self._withdraw(coming)
        if said is None:
            leave_by = time.monotonic() + LEAVE_SECONDS
            for worker in old:
                worker.wait_until_left(max(0.0, leave_by - time.monotonic()))
            self._listener.renewed(time.monotonic() - asked_at)
        else:
            self._listener.refused(said)

    def _withdraw(self, coming: list[SupervisedWorker]) -> None:
        """End workers of which not all serve yet; one that does may run calls."""
        for worker in coming:
            worker.withdraw()
        self._leaving += coming


def changes(roots: Iterable[Path], stop: Event) -> Iterator[list[Path]]:
    """Yield the sources that are saved, made or removed after this call; folders are watched one by one, so ignored ones cost nothing.

    The kernel only says when to look: what changed is what differs from the last look, so that nothing is missed while
    folders are not watched yet.

    Raises:
        ConfigurationError: there are too many folders, for us or for the kernel, or one has a name that is not UTF-8.
    """
    tops = {root.resolve() for root in roots}
    return _changes(tops, _look(tops), stop)


def _changes(tops: set[Path], seen: "_Look", stop: Event) -> Iterator[list[Path]]:
    while not stop.is_set():
        watched, is_behind = _look(tops).folders, True  # nobody reports what changed before the watch began
        for found in _told(watched, stop):
            if not (found or is_behind):
                continue
            before, seen, is_behind = seen, _look(tops), False
            if files := sorted({path for path, _ in before.sources.items() ^ seen.sources.items()}):
                for file in files:
                    with suppress(OSError):  # most have none; and it may be another user's, or not in a folder
                        # Python would use the old bytecode if the source has the same size and second as before.
                        Path(cache_from_source(str(file))).unlink()
                yield files
            if seen.folders != watched:
                break


def _told(folders: Iterable[Path], stop: Event) -> Iterator[set[tuple[Change, str]]]:
    """Yield what the kernel reports of them; an empty set soon after the watch begins, and now and again later."""
    try:
        yield from watch(
            *folders,
            watch_filter=_is_told,
            step=STEP_MS,
            rust_timeout=LOOK_MS,
            stop_event=stop,
            yield_on_timeout=True,
            recursive=False,
            raise_interrupt=False,
            ignore_permission_denied=True,
        )
    except FileNotFoundError:  # a folder went after it was found
        return
    except (OSError, RuntimeError) as error:  # it raises either
        raise ConfigurationError(
            f"Changes cannot be watched: {error}. Raise fs.inotify.max_user_watches or max_user_instances with sysctl; "
            "until then, restart after changes."
        ) from error


@dataclass(frozen=True, slots=True)
class _Look:
    """The folders to watch, and of each source in them what changes with each save."""

    folders: set[Path]
    sources: dict[Path, tuple[int, int]]


def _look(tops: Iterable[Path]) -> _Look:
    found = _Look(set(), {})
    for top in tops:
        if not _is_utf8(str(top)):
            raise ConfigurationError(
                f"{top} is not UTF-8, and cannot be watched. Rename that folder; until then, restart after changes."
            )
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if not _is_ignored(Path(folder, name))]
            found.folders.add(Path(folder))
            if len(found.folders) > MOST_FOLDERS:
                raise ConfigurationError(
                    f"{top} has more than {MOST_FOLDERS:,} folders to watch. Start in the folder of your tools, or move "
                    "data into one whose name begins with a dot."
                )
            for file in filter(_is_source, files):
                with suppress(OSError):  # it is gone, or a link to nothing
                    status = (path := Path(folder, file)).stat()
                    # Not the time of modification: cp -p and rsync set it to an old one.
                    found.sources[path] = status.st_ino, status.st_ctime_ns
    return found


def _is_ignored(folder: Path) -> bool:
    name = folder.name
    return name.startswith(".") or name in IGNORED or not _is_utf8(name) or os.access(folder / "pyvenv.cfg", os.F_OK)


def _is_utf8(name: str) -> bool:
    """Return whether watchfiles can take it."""
    return name == name.encode(errors="replace").decode()


def _is_source(path: str) -> bool:
    return path.endswith(".py") or Path(path).name == FILE


def _is_told(change: Change, path: str) -> bool:
    return _is_source(path) or (change is Change.added and Path(path).is_dir() and not _is_ignored(Path(path)))
