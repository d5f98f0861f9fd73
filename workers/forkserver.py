"""`python -m workers.forkserver DRAIN FD`: forks workers, having imported all that they need except the user's tools.

Each request on the socket is one worker: `{"generation", "name", "arguments", "log"}`; or `{"generation", "signal"}`,
for all that were forked for it. It sends `{"generation", "name", "pid", "kind"}`: `started`, `ready`, `failed`
(`said`), `ended` (`code`). It ends with its workers on SIGTERM, and when the socket is closed; they get a second signal
after DRAIN seconds.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from workers import program

REQUEST_BYTES = 1 << 16
PRELOADED = (
    "aiosqlite",
    "celery.apps.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "forge_tools.broker.redis",
    "forge_tools.tools",
    "kombu.transport.redis",
    "sqlalchemy.dialects.sqlite.aiosqlite",
)
"""What a worker otherwise imports only as it starts."""


class _Forked(NamedTuple):
    generation: int
    name: str


class ForkServer:
    """Forks on each request and reports each worker's state. It has no thread, so that a fork copies everything."""

    def __init__(self, control: socket.socket, drain: float) -> None:
        self._control = control
        self._drain = drain
        self._workers: dict[int, _Forked] = {}
        self._is_ending = False
        self._hurries_at: float | None = None
        self._signals, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve, and return once all forked workers have ended and no more are to come."""
        while self._workers or not self._is_ending:
            heard = [self._signals] if self._is_ending else [self._signals, self._control.fileno()]
            left = None if self._hurries_at is None else max(0.0, self._hurries_at - time.monotonic())
            ready, _, _ = select.select(heard, [], [], left)
            if self._hurries_at is not None and time.monotonic() >= self._hurries_at:
                self._hurries_at = None
                self._tell_all(signal.SIGTERM)
            if self._signals in ready:
                numbers = os.read(self._signals, 512)
                for pid in list(self._workers):
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        self._tell(self._workers.pop(pid), "ended", pid, code=os.waitstatus_to_exitcode(status))
                if signal.SIGTERM in numbers:
                    self._end()
            if self._control.fileno() in ready:
                request = self._control.recv(REQUEST_BYTES)
                if request:
                    self._do(**json.loads(request))
                else:
                    self._end()

    def _do(self, generation: int, **asked: Any) -> None:
        if "signal" in asked:
            self._tell_all(asked["signal"], generation)
            return
        one = _Forked(generation, asked["name"])
        pid = os.fork()
        if not pid:
            self._become(one, asked["arguments"], asked["log"])
        self._workers[pid] = one
        self._tell(one, "started", pid)

    def _end(self) -> None:
        if not self._is_ending:
            self._hurries_at = time.monotonic() + self._drain
        self._is_ending = True
        self._tell_all(signal.SIGTERM)

    def _tell_all(self, number: int, generation: int | None = None) -> None:
        for pid, one in self._workers.items():
            if generation in (None, one.generation):
                os.kill(pid, number)  # it is not reaped yet, so the pid is still its own

    def _tell(self, one: _Forked, kind: str, pid: int, **facts: Any) -> None:
        with suppress(OSError):  # nobody may be listening any more
            self._control.send(json.dumps({**one._asdict(), "kind": kind, "pid": pid, **facts}).encode())

    def _become(self, one: _Forked, arguments: list[str], log: str) -> NoReturn:
        """In the child: become a worker as `python -m workers` starts one, and report that it is ready, or why not."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(self._signals)
        _write_to(log)
        sys.argv[:] = ["workers", *arguments]
        sys.dont_write_bytecode = True  # a file saved twice in a second would be taken for what was compiled first

        def tell(said: str | None) -> None:
            if self._control.fileno() >= 0:
                self._tell(
                    one, "ready" if said is None else "failed", os.getpid(), **({} if said is None else {"said": said})
                )
                self._control.close()

        sys.exit(program.main(arguments, tell=tell))


def _write_to(log: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(handle, stream.fileno())
    os.close(handle)


def main() -> None:
    """Import, then serve."""
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    ForkServer(control, float(sys.argv[1])).serve()


if __name__ == "__main__":
    gc.disable()  # as `python -m workers` does; forked workers enable collection once everything is loaded
    main()
