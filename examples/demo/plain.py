"""Plain Celery on the same machine, with the same calls and the same accidents: a broker and two hosts."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.demo.effects import Effects
from examples.demo.plain_app import BROKER_ERRORS, app, returned, submit
from examples.demo.schedule import Work, at_its_time
from examples.demo.stage import BrokenPromiseError
from forge_tools.embedded import valkey
from forge_tools.embedded.home import prepare_socket
from forge_tools.embedded.stack import server_environment
from forge_tools.embedded.supervision import SupervisedProcess
from forge_tools.project import broker_socket
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.sandbox.processes.trees import descendants

CONCURRENCY = 4
HOSTS = ("alpha", "beta")

_START_SECONDS = 30.0
_STOP_SECONDS = 1.0
_QUIET_SECONDS = 2.0
_POLL_SECONDS = 0.1


class PlainCelery:
    """A Valkey, two prefork workers and a publisher. `app` is this process's, since only the demo uses it."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.log = log
        self.refused = 0
        self._folder = folder
        self._socket = broker_socket(folder)
        self._submitted: dict[str, str] = {}
        self._starting = threading.Lock()
        self._is_over = threading.Event()
        self._spawner = Spawner()
        self._valkey = self._process("valkey", valkey.server_argv(valkey.find_server(), folder / "data", self._socket))
        self._workers = {host: self._process(host, self._worker_argv(host)) for host in HOSTS}

    def __enter__(self) -> Self:
        (self._folder / "data").mkdir(mode=0o700, parents=True)
        prepare_socket(self._socket, self._folder)
        app.conf.update(broker_url=self._url, result_backend=self._url)
        try:
            self._start(self._valkey)
            self._wait(lambda: valkey.answers(self._socket), "its Valkey")
            for worker in self._workers.values():
                self._start(worker)
            self._wait(lambda: len(app.control.ping(timeout=0.5) or ()) == len(HOSTS), "its workers")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything and keep nothing; may be called from any thread and repeatedly."""
        self._is_over.set()
        with self._starting:
            for process in (*self._workers.values(), self._valkey):
                process.kill()
            self._spawner.close()
            app.close()

    def publish(self, works: Iterable[Work], began: float) -> None:
        """Publish each call at its time; one that fails after Celery's own retries counts as refused."""
        for work in at_its_time(works, began, self._is_over.is_set):
            try:
                self._submitted[work.key] = submit(**work.parameters(self.log))
            except BROKER_ERRORS:
                self.refused += 1

    def pids(self, host: str) -> set[int]:
        """The processes of one host."""
        pid = self._workers[host].pid
        return set() if pid is None else {pid, *(child.pid for child in descendants(pid))}

    def kill_host(self, host: str) -> None:
        """Do what a power cut does to a machine; nothing restarts it."""
        self._workers[host].kill()

    def kill_broker(self) -> None:
        """Kill its Valkey, which `settle` starts again."""
        if self._valkey.pid is not None:
            os.kill(self._valkey.pid, signal.SIGKILL)

    def tend(self) -> None:
        """Do what a supervisor does for the broker."""
        self._valkey.tend()

    def settled(self) -> set[str]:
        """The keys whose results came back, once no more have come for a while; call `tend` meanwhile."""
        done, changed_at = self._done(), time.monotonic()
        while time.monotonic() - changed_at < _QUIET_SECONDS and len(done) < len(self._submitted):
            time.sleep(_POLL_SECONDS)
            if self._is_over.is_set():
                break
            if (now := self._done()) != done:
                done, changed_at = now, time.monotonic()
        return done

    def effects(self) -> Effects:
        """What its bodies did."""
        return Effects.read(self.log)

    def _done(self) -> set[str]:
        try:
            return returned(self._submitted)
        except BROKER_ERRORS:
            return set()

    @property
    def _url(self) -> str:
        return f"redis+socket://{self._socket}"

    def _worker_argv(self, host: str) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", "celery", "-A", "examples.demo.plain_app", "-q"),
            *("-b", self._url, "--result-backend", self._url, "worker", "--pool", "prefork"),
            *("--concurrency", str(CONCURRENCY), "--hostname", f"plain@{host}", "--loglevel", "WARNING"),
        ]

    def _process(self, name: str, argv: list[str]) -> SupervisedProcess:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log, environment = self._folder / f"{name}.log", server_environment()
        return SupervisedProcess(
            f"plain-{name}",
            argv,
            log=log,
            environment=environment,
            grace=_STOP_SECONDS,
            spawner=self._spawner,
        )

    def _start(self, process: SupervisedProcess) -> None:
        """Start it, unless another thread has closed everything meanwhile."""
        with self._starting:
            if not self._is_over.is_set():
                process.start()

    def _wait(self, is_so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not is_so():
            if time.monotonic() > deadline or self._is_over.is_set():
                raise BrokenPromiseError(
                    f"Plain Celery did not start: {what} did not answer; its logs are in {self._folder}"
                )
            time.sleep(_POLL_SECONDS)
