"""`python -P -m workers.forkserver`: forks workers, having imported all that they need except the user's tools.

It takes requests like the launcher: the command is what follows `python -m workers`. Its standard input is a socket, on which
the worker says in JSON that it claims calls (null), or why it cannot, and which it closes when it claims no more.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from forge_tools import programs
from forge_tools.sandbox.processes.launcher import prepare_child, serve
from forge_tools.sandbox.walls.privileges import harden
from forge_tools.sandbox.walls.probe import given

PRELOADED = (
    "aiosqlite",
    *("billiard.heap", "billiard.popen_fork", "billiard.sharedctypes", "billiard.synchronize"),
    *("celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log", "celery.app.routes"),
    *("celery.apps.worker", "celery.backends.base", "celery.concurrency.prefork", "celery.concurrency.thread"),
    *("celery.events.receiver", "celery.fixups.django", "celery.worker.autoscale", "celery.worker.components"),
    *("celery.worker.consumer", "celery.worker.consumer.delayed_delivery", "celery.worker.strategy"),
    *("cffi.cparser", "cryptography.hazmat.primitives.ciphers.aead"),
    *("forge_tools.broker.redis", "forge_tools.storage.catalogue", "forge_tools.storage.history.history"),
    *(
        "forge_tools.storage.history.overview",
        "forge_tools.storage.history.pages",
        "forge_tools.storage.queue.transitions",
    ),
    *("forge_tools.storage.reports", "forge_tools.tools"),
    *("kombu.mixins", "kombu.pidbox", "kombu.transport.redis"),
    *("sqlalchemy.dialects.sqlite.aiosqlite", "workers.program"),
)
"""What a worker imports as it starts."""

_ARGUMENTS = slice(45, 47)  # arg_start and arg_end among the fields of /proc/PID/stat that follow the name
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def start(umask: int, command: Sequence[bytes], environment: Mapping[bytes, bytes], streams: Sequence[int]) -> int:
    """Fork a worker and return its pid."""
    supervisor = os.getpid()
    signal.pthread_sigmask(
        signal.SIG_BLOCK, signal.valid_signals()
    )  # until a fork has its own handlers, ours must not run there
    child = os.fork()
    if not child:
        try:
            prepare_child(supervisor)
            os.umask(umask)
            _become([word.decode() for word in command], environment, streams)
        finally:
            os._exit(os.EX_SOFTWARE)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return child


def _become(arguments: list[str], environment: Mapping[bytes, bytes], streams: Sequence[int]) -> NoReturn:
    """Become a worker as `python -m workers` starts one."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_IGN)
    ready = socket.socket(fileno=os.dup(streams[0]))
    for target, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams[1:])):
        os.dup2(stream, target)
    os.closerange(3, ready.fileno())
    os.closerange(ready.fileno() + 1, 1 << 20)  # the kernel's default for the most that a process may open
    os.environb.clear()
    os.environb.update(environment)
    sys.argv[:] = ["workers", *arguments]
    _show(sys.argv)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def tell(said: str | None) -> None:
        with suppress(OSError):  # nobody may be listening
            ready.send(json.dumps(said).encode())

    programs.run(partial(import_module("workers.program").main, arguments, tell=tell, leave=ready.close))


def _show(words: Sequence[str]) -> None:
    """Have `ps` show these words, as far as there is room: the memory in which the kernel once put our arguments."""
    start, end = map(int, Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[_ARGUMENTS])
    text = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    if start:
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def main() -> None:
    """Import, then serve."""
    harden()
    for name in PRELOADED:
        import_module(name)
    given()  # what it finds here holds for every worker
    gc.collect()
    gc.freeze()
    os.umask(umask := os.umask(0o077))  # it can be read only by setting it
    serve((), partial(start, umask), spares_shells=True)


if __name__ == "__main__":
    gc.disable()  # as `python -m workers` does; forked workers enable collection once everything is loaded
    main()
