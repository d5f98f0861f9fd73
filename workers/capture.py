"""Captures what a body, its threads and processes print and log, as output of its call instead of the worker's."""

import ctypes
import fcntl
import io
import logging
import os
import select
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as executor_threads
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from typing import Any, Literal, TypeVar

from forge_tools.logs import CallLog
from forge_tools.model.scope import SCOPE, CallScope
from forge_tools.sandbox.processes.launcher import keep_private
from forge_tools.sandbox.processes.output import scrubbed_text
from forge_tools.secrets.scrubber import Scrubber
from workers.log_redaction import RedactedStream

T = TypeVar("T")

Standard = Literal["stdout", "stderr"]
STANDARD: tuple[tuple[int, Standard], ...] = ((1, "stdout"), (2, "stderr"))
CHUNK = 1 << 16
PIPE_BYTES = 1 << 20
"""A pipe's capacity: code that writes while holding the interpreter's lock keeps our thread from reading."""

PAUSE_SECONDS = 0.005
"""The pause between arrival and reading, in which at most a full pipe arrives."""

END_SECONDS = 5.0
_MOST_FOLLOWED = 64  # a child that runs untrusted code could send pipes without end


class CallStream:
    """A standard stream of a worker. What a body writes belongs to its call, everything else goes to `beneath`."""

    def __init__(self, name: Standard, beneath: RedactedStream) -> None:
        self._name = name
        self.beneath = beneath
        self._pid = os.getpid()
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not self._put(text):
            self.beneath.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def detach(self) -> "_Bytes":
        """Return the byte stream; unlike others, this text stream stays usable, since it is the worker's."""
        return self.buffer

    def close(self) -> None:
        """Flush only: the stream is the worker's."""
        self.flush()

    def fileno(self) -> int:
        """Return the descriptor that processes inherit, which in a pool process is the call's, too."""
        return next(number for number, stream in STANDARD if stream == self._name)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes, of any encoding."""
        if not self._put(data):
            self.beneath.write(data.decode(errors="backslashreplace"))

    def move(self, descriptor: int, *, of_calls: bool) -> None:
        """In a forked process, send to that descriptor everything from here on, or only what belongs to no call."""
        self._pid = os.getpid() if of_calls else 0  # no process has 0, so nothing belongs to a call
        self.beneath.move(os.fdopen(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False))

    def _put(self, text: str | bytes) -> bool:
        """Return whether it belongs to a call.

        In a copy of this process that a body forked it does not: there, only descriptors lead to the call.
        """
        scope = SCOPE.get()
        if scope is None or scope.reporter is None or self._pid != os.getpid():
            return False
        scope.emit(text, self._name)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


class _Bytes(io.BufferedIOBase):
    """Serves as `sys.stdout.buffer`. A wrapper that is lost closes what it wraps; here that must end nothing."""

    def __init__(self, stream: CallStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any, /) -> int:
        self._stream.write_bytes(written := bytes(data))
        return len(written)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Do nothing, nor raise: the collector calls it too."""


Ends = dict[Standard, tuple[int, int]]
"""The pipe in place of each standard stream: its reading end and its writing end."""


class ChildOutput:
    """The pipes that a pool process is born with. It reads them itself; its parent keeps their ends for its last words.

    When it switches to other pipes, it sends their ends to its parent over a socket, since it may die without notice.
    """

    def __init__(self) -> None:
        self._parents_end, self._childs_end = socket.socketpair()
        try:
            self.pipes = _pipes()
        except OSError:
            self._parents_end.close()
            self._childs_end.close()
            raise
        for one in (self._parents_end, self._childs_end):
            one.settimeout(0)

    @property
    def numbers(self) -> list[int]:
        return [self._childs_end.fileno(), *(number for pair in self.pipes.values() for number in pair)]

    def born(self) -> None:
        """In the parent, after the fork: close what it does not keep."""
        self._childs_end.close()
        self._ends = {stream: end for stream, (end, _) in self.pipes.items()}
        for _, write in self.pipes.values():
            os.close(write)
        _parents.update(self._ends.values())

    def hand_over(self, pipes: Ends) -> None:
        """In the process: from here on, its output goes to these pipes."""
        with suppress(OSError):  # its last words are lost, which is no reason to end
            socket.send_fds(self._childs_end, [b"."], [end for end, _ in pipes.values()])

    def follow(self) -> None:
        """Receive the pipes that the process sent; what was in the earlier ones is its own to read."""
        with suppress(OSError):
            for _ in range(_MOST_FOLLOWED):
                data, ends, _, _ = socket.recv_fds(self._parents_end, 1, len(STANDARD))
                if not data:
                    return
                self._let_go()
                self._ends = dict(zip((stream for _, stream in STANDARD), ends, strict=False))
                _parents.update(ends)
                keep_private(*ends)

    def last_words(self) -> Iterator[tuple[Standard, bytes]]:
        """Yield what the process had not read when it ended."""
        self.follow()
        for stream, end in self._ends.items():
            with suppress(OSError):  # a body may have changed it
                fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)  # fails unless it is a pipe: the child may have sent what blocks
                os.set_blocking(end, False)
                yield stream, os.read(end, PIPE_BYTES)

    def close(self) -> None:
        self._let_go()
        self._parents_end.close()

    def _let_go(self) -> None:
        for end in self._ends.values():
            _parents.discard(end)
            os.close(end)
        self._ends = {}


_parents: set[int] = set()
"""Ends that this process keeps for its children; each child must close those of its siblings."""


def siblings_ends() -> list[int]:
    """In a pool process: return what its parent keeps for others."""
    found = list(_parents)
    _parents.clear()
    return found


class Pipes:
    """Descriptors 1 and 2 of a pool process, as a call's own: a thread reads what arrives through them.

    A process that outlives the call that started it keeps its pipes, whose output then goes to the worker's log; the
    next call gets other pipes.
    """

    def __init__(self, flush: Callable[[], None], output: ChildOutput) -> None:
        self._flush = flush
        self._own = {stream: _kept(number) for number, stream in STANDARD}
        self.threads: set[threading.Thread] = set()
        self._output = output
        self._take(output.pipes)
        _move_streams(self._own, of_calls=True)
        _buffer_lines_of_c()

    def begin(self, scope: CallScope, secrets: Collection[str]) -> None:
        """Assign what arrives to that call."""
        if not self._pair.thread.is_alive():  # a body closed the descriptors
            self._renew()
        self._pair.begin(scope, secrets)

    def catch_up(self) -> None:
        """Read what has arrived by now."""
        self._pair.read()

    def end(self, *, are_left: bool) -> None:
        """End the call. `are_left`: processes that it started live on, and may write."""
        self._pair.scope = None
        if are_left:
            self._renew()

    def start_anew(self) -> None:
        """Read from now on in a thread started by the current one, and in no older one.

        Walls hold for the thread that puts them up and for those it starts afterwards.
        """
        older = self._pair.thread
        self._renew()
        older.join(timeout=END_SECONDS)
        self.threads.discard(older)

    def let_go(self) -> None:
        """In a copy of this process that a body forked: write to the pipes, like any process that the body starts."""
        self._pair.let_go()
        _move_streams({stream: number for number, stream in STANDARD}, of_calls=False)

    def _renew(self) -> None:
        pipes = _pipes()
        self._output.hand_over(pipes)
        self._take(pipes)

    def _take(self, pipes: Ends) -> None:
        self._pair = _Pair(self._own, self._flush, pipes)
        self.threads = {thread for thread in self.threads if thread.is_alive()} | {self._pair.thread}


class _Pair:
    """Two pipes in place of descriptors 1 and 2, from its creation on."""

    def __init__(self, own: Mapping[Standard, int], flush: Callable[[], None], pipes: Ends) -> None:
        self._flush = flush
        self.scope: CallScope | None = None
        self._scrubber: Scrubber | None = None
        self._own = own
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ends: dict[int, Standard] = {}
        self._poll = select.poll()
        for number, stream in STANDARD:
            end, write = pipes[stream]
            os.dup2(write, number)
            os.close(write)
            self._ends[end] = stream
            self._poll.register(end, select.POLLIN)
        self.thread = threading.Thread(target=self._read_for_ever, name="forge-output", daemon=True)
        self.thread.start()

    def begin(self, scope: CallScope, secrets: Collection[str]) -> None:
        self.scope, self._scrubber = scope, Scrubber(secrets) if secrets else None

    def read(self) -> None:
        if self._pid == os.getpid():
            with self._lock:
                self._take()

    def let_go(self) -> None:
        for end in self._ends:
            os.close(end)

    def _read_for_ever(self) -> None:
        waiting = select.poll()  # its own: while one thread waits in a poll object, it refuses any other
        for end in self._ends:
            waiting.register(end, select.POLLIN)
        while self._ends:
            waiting.poll()
            time.sleep(PAUSE_SECONDS)  # if this process dies, its parent reads what is still in the pipe
            with self._lock:
                for end in self._take():  # only here: a closed number may already be another file's
                    del self._ends[end]
                    self._poll.unregister(end)
                    waiting.unregister(end)
                    os.close(end)
            self._flush()

    def _take(self) -> list[int]:
        """Read at most a pipe's capacity from each, so endless output delays nobody; return those without writers."""
        over = []
        for end, _ in self._poll.poll(0):
            with suppress(BlockingIOError):
                for _ in range(PIPE_BYTES // CHUNK):
                    data = os.read(end, CHUNK)
                    if not data:
                        over.append(end)
                        break
                    self._put(data, self._ends[end])
        return over

    def _put(self, data: bytes, stream: Standard) -> None:
        scope = self.scope
        if scope is not None and scope.reporter is not None:
            scope.reporter.emit(data, stream)
            return
        text = data.decode(errors="backslashreplace")
        clean = text if self._scrubber is None else scrubbed_text(self._scrubber, text)
        with suppress(OSError):
            os.write(self._own[stream], clean.encode(errors="backslashreplace"))


def _move_streams(descriptors: Mapping[Standard, int], *, of_calls: bool) -> None:
    for stream, descriptor in descriptors.items():
        found = getattr(sys, stream)
        if isinstance(found, CallStream):
            found.move(descriptor, of_calls=of_calls)


def _kept(number: int) -> int:
    """Duplicate a descriptor; if it is closed, open /dev/null."""
    try:
        return os.dup(number)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _pipes() -> Ends:
    """Make both pipes or none: the pool tries again, and would take the last descriptors."""
    out = _pipe()
    try:
        return {"stdout": out, "stderr": _pipe()}
    except OSError:
        for end in out:
            os.close(end)
        raise


def _pipe() -> tuple[int, int]:
    end, write = os.pipe()
    os.set_blocking(end, False)
    with suppress(OSError):  # a user who has many pipes already
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return end, write


def _buffer_lines_of_c() -> None:
    """Make C code print whole lines at once, as to a terminal: the C library would buffer what goes to a pipe."""
    with suppress(OSError, ValueError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)


def capture() -> RedactedStream:
    """Record what bodies print with their call from here on; returns the stream of the worker's own log."""
    log = RedactedStream(sys.stderr)
    sys.stdout = CallStream("stdout", RedactedStream(sys.stdout))
    sys.stderr = CallStream("stderr", log)
    inherit_calls()
    return log


def capture_logs() -> None:
    """Record what bodies log and warn of with their call, too; call it after logging is set up."""
    logging.getLogger().addHandler(CallLog())
    logging.captureWarnings(capture=True)
    warnings.simplefilter("always", append=True)  # again for each call, unless another filter says otherwise


@cache
def inherit_calls() -> None:
    """Assign threads, and work given to executors, to the call that starts them. Python is changed once."""
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_in_call(thread: threading.Thread) -> None:
        is_an_executors = getattr(thread, "_target", None) is executor_threads._worker  # noqa: SLF001  it serves any submitter
        if SCOPE.get() is not None and not is_an_executors:
            _run_in_this_context(thread)
        start(thread)

    def submit_in_call(pool: ThreadPoolExecutor, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if SCOPE.get() is not None:
            call = partial(copy_context().run, call)
        return submit(pool, call, *args, **kwargs)

    for kind, name, replacement in (
        (threading.Thread, "start", start_in_call),  # Python 3.14 has this built in
        (ThreadPoolExecutor, "submit", submit_in_call),
    ):
        setattr(kind, name, replacement)


def _run_in_this_context(thread: threading.Thread) -> None:
    run, context = thread.run, copy_context()

    def run_in_context() -> None:
        try:
            context.run(run)
        finally:
            del thread.run  # it refers to the thread

    thread.run = run_in_context  # type: ignore[method-assign]  # of this one thread
