"""Workers forked by one warm process, a new generation whenever the user's source files change."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from watchfiles import Change, watch

from forge_tools.embedded.stack import WorkerPlan
from forge_tools.embedded.supervision import SupervisedProcess
from forge_tools.errors import ConfigurationError
from forge_tools.project import FILE

AGAIN_SECONDS = 1.0
"""The delay before a worker that ended by itself is forked again."""

REQUEST_BYTES = 1 << 16

STEP_MS = 50
"""A change is reported after this long without another: editors write a file in several steps."""

MOST_FOLDERS = 5_000

IGNORED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env"})
"""Ignored in addition to hidden folders and virtual environments of any name."""


class Listener(Protocol):
    """Receives the state of the workers, in a thread of this package."""

    def renewed(self, seconds: float) -> None:
        """New workers have taken over, this long after they were requested."""

    def refused(self, said: str) -> None:
        """New workers could not start; the old ones keep serving."""

    def ended(self, name: str, code: int) -> None:
        """A worker ended by itself; a replacement is on its way."""


@dataclass(slots=True)
class _Generation:
    number: int
    asked_at: float
    ready: set[str]


class GenerationsOfWorkers(SupervisedProcess):
    """The process that forks workers, and the connection to it. If it dies, it is restarted with its workers."""

    def __init__(self, argv: Sequence[str], plans: Sequence[WorkerPlan], listener: Listener, **process: Any) -> None:
        super().__init__("workers", argv, **process)
        self._program = list(argv)
        self._plans = {plan.name: plan for plan in plans}
        self._listener = listener
        self._lock = threading.RLock()
        self._control: socket.socket | None = None
        self._numbers = 0
        self._serving: _Generation | None = None
        self._coming: _Generation | None = None
        self._again: dict[str, float] = {}
        """When to refork workers that ended by themselves."""
        self.pids: set[int] = set()
        """Of all current workers, including draining ones."""

    def start(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()
            self._serving = self._coming = None
            self._again.clear()
            self.pids.clear()
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._argv = [*self._program, str(theirs.fileno())]
                self._inherit = (theirs.fileno(),)
                super().start()
            threading.Thread(target=self._hear, args=(self._control,), name="forge-generations", daemon=True).start()
            self.renew()

    def renew(self) -> None:
        """Start new workers, which take over once they serve; end those still starting, since their code is old."""
        with self._lock:
            if self._coming is not None:
                self._signal(self._coming.number, signal.SIGKILL)
            self._numbers += 1
            self._coming = _Generation(self._numbers, time.monotonic(), set())
            for plan in self._plans.values():
                self._fork(self._numbers, plan)

    def terminate(self) -> None:
        with self._lock:
            self._serving = self._coming = None
        super().terminate()

    def tend(self) -> None:
        super().tend()
        with self._lock:
            for name in [name for name, due in self._again.items() if time.monotonic() >= due]:
                del self._again[name]
                if self._serving is not None:
                    self._fork(self._serving.number, self._plans[name])

    def _hear(self, control: socket.socket) -> None:
        while True:
            try:
                told = control.recv(REQUEST_BYTES)
            except OSError:
                return
            if not told:
                return
            with self._lock:
                if control is self._control:
                    self._take(**json.loads(told))

    def _take(self, generation: int, name: str, kind: str, pid: int, **facts: Any) -> None:
        coming, serving = self._coming, self._serving
        (self.pids.discard if kind == "ended" else self.pids.add)(pid)
        if coming is not None and generation == coming.number:
            if kind == "ready":
                coming.ready.add(name)
                if coming.ready == self._plans.keys():
                    self._hand_over(coming)
            elif kind in ("failed", "ended"):
                self._coming = None
                self._signal(generation, signal.SIGKILL)
                self._listener.refused(
                    facts.get("said") or f"A new worker ended ({facts['code']}); see {self._log_of(name)}"
                )
        elif serving is not None and generation == serving.number and kind == "ended":
            self._again[name] = time.monotonic() + AGAIN_SECONDS
            self._listener.ended(name, facts["code"])

    def _hand_over(self, coming: _Generation) -> None:
        before, self._serving, self._coming = self._serving, coming, None
        self._again.clear()
        if before is not None:
            self._signal(before.number, signal.SIGTERM)
        self._listener.renewed(time.monotonic() - coming.asked_at)

    def _fork(self, generation: int, plan: WorkerPlan) -> None:
        self._ask(generation=generation, name=plan.name, arguments=plan.arguments, log=self._log_of(plan.name))

    def _log_of(self, name: str) -> str:
        return str(self.log.with_name(f"{name}.log"))

    def _signal(self, generation: int, number: int) -> None:
        self._ask(generation=generation, signal=int(number))

    def _ask(self, **request: Any) -> None:
        if self._control is not None:
            try:
                self._control.send(json.dumps(request).encode())
            except OSError:  # it has died: its successor starts afresh
                return


def changes(roots: Iterable[Path], stop: Event) -> Iterator[list[Path]]:
    """Yield the files that changed; folders are watched one by one, so ignored ones cost nothing.

    Raises:
        ConfigurationError: there are too many folders.
    """
    tops = {root.resolve() for root in roots}
    while not stop.is_set():
        folders = _folders(tops)
        told = watch(
            *folders, watch_filter=_is_told, recursive=False, step=STEP_MS, stop_event=stop, raise_interrupt=False
        )
        for found in told:
            files = [Path(path) for _, path in found if _is_source(path)]
            for file in files:
                Path(cache_from_source(str(file))).unlink(missing_ok=True)  # same second and size: it would be used
            came = [Path(path) for change, path in found if change is Change.added and Path(path).is_dir()]
            files += [file for folder in came for file in folder.rglob("*.py")]
            if files:
                yield files
            if came:
                break  # to watch these, too


def _folders(tops: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for top in tops:
        for folder, names, _ in os.walk(top):
            names[:] = [name for name in names if not _is_ignored(Path(folder, name))]
            found.append(Path(folder))
            if len(found) > MOST_FOLDERS:
                raise ConfigurationError(
                    f"{top} has more than {MOST_FOLDERS:,} folders to watch. Start in the folder of your tools, or move "
                    "data into one whose name begins with a dot."
                )
    return found


def _is_ignored(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in IGNORED or (folder / "pyvenv.cfg").exists()


def _is_source(path: str) -> bool:
    return path.endswith(".py") or Path(path).name == FILE


def _is_told(change: Change, path: str) -> bool:
    return _is_source(path) or (change is Change.added and Path(path).is_dir() and not _is_ignored(Path(path)))
