"""Commands of tools: forked by a program kept ready, read with bounded memory, ended with their whole tree."""

import asyncio
import atexit
import errno
import os
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import true_path
from forge_tools.sandbox.processes.control import ControlLine
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.launcher import REQUEST_LENGTH
from forge_tools.sandbox.processes.trees import EXECUTION, INSTANCE, SHELL
from forge_tools.sandbox.web.egress import Egress

Sink = Callable[[bytes], bool | None]
"""Takes a chunk of output. False means that enough was seen: the command is ended."""

SPAWN_FAILED = "SPAWN_FAILED"

_CHUNK = 1 << 18
_LITTLE = 1 << 12
_PAUSE_SECONDS = 0.002
_DRAIN_SECONDS = 0.1
_SLACK_SECONDS = 1.0  # beyond the grace, for the launcher to find and kill a tree

_cleaning: set[asyncio.Future[None]] = set()
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh")
LAUNCHER = str(Path(__file__).with_name("launcher.py"))

UMASK = 0o022
"""What commands start with."""

_TRIES = 4
_PATIENCE = 5.0  # seconds for the program to take a request, or to end


@cache
def find_shell() -> list[str]:
    """Return the command line of a shell without start-up files, bash where there is one; what to run follows `-c`."""
    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), "/bin/sh")
    return [shell, "--noprofile", "--norc"] if shell.endswith("bash") else [shell]


@cache
def find_beside_python(name: str) -> str | None:
    """Find a program that a wheel installed for this Python, or None. `PATH` is not asked: it may lead into a workspace."""
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))]
    for folder in [*folders, str(Path(sys.executable).parent)]:
        path = Path(folder) / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a command ended. `exit_code` or `signal` is set where it ended by itself; `leftovers` counts what it left behind."""

    exit_code: int | None = None
    signal: int | None = None
    leftovers: int = 0
    timed_out: bool = False
    stopped: bool = False


async def run(  # noqa: PLR0913  all but the command are named
    command: Sequence[str],
    *,
    folder: int,
    environment: Mapping[str, str],
    timeout: float,
    stdout: Sink,
    stderr: Sink | None = None,
    stdin: bytes | int = b"",
    grace: float = 2.0,
    start: Callable[..., socket.socket] | None = None,
    egress: Egress | None = None,
) -> Completed:
    """Run `command` in the open folder handle `folder` and feed what it writes to the sinks.

    `start` is that of a `Spawner` with walls; without it there are none. `egress` is the proxy of a network that has one.

    Without `stderr` both streams go to `stdout` in true order. The command is over when its own process is; what it leaves
    behind is stopped. When this returns or raises, cancellation included, nothing of the process tree is left.

    Raises:
        SandboxError: the command could not be started.
    """
    running = _Running(command[0], egress)
    try:
        spawn = partial(start or SPAWNER.start, command, environment, folder=folder, grace=grace)
        running.start(spawn, stdin, [stdout] if stderr is None else [stdout, stderr])
        await asyncio.wait({running.over, running.enough}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if running.over.done():
            await running.drain()
    finally:
        timed_out = not running.over.done() and not running.enough.done()
        await _finish(running.end(grace + _SLACK_SECONDS))
    return running.outcome(timed_out=timed_out)


class Forker:
    """Keeps a program ready that takes requests and forks for each. Safe from many threads; a forked child makes its own.

    The program is Python with `arguments`, started when it is needed; its standard input is the socket on which each request
    comes as one byte with handles, the first of them a control socket on which the rest follows. At the end of file it ends.
    """

    def __init__(self, arguments: Sequence[str], environment: Callable[[], dict[str, str]]) -> None:
        self._arguments = arguments
        self._environment = environment
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self.pid = 0
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def request(self, handles: Sequence[int], fields: Sequence[str]) -> socket.socket:
        """Send a request and return our end of its control socket.

        Raises:
            OSError: the program cannot be started, or takes no request.
        """
        for _ in range(_TRIES - 1):
            # Somebody killed it meanwhile. A request that is cut off has no effect, so it may be sent again.
            with suppress(BrokenPipeError, ConnectionResetError):
                return self._request(handles, fields)
        return self._request(handles, fields)

    def close(self) -> None:
        """End the program, and with it the commands of a `Spawner`."""
        with self._lock:
            self._stop()

    def _request(self, handles: Sequence[int], fields: Sequence[str]) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._ask([theirs.fileno(), *handles])
            _send(ours, fields)
        except BaseException:
            ours.close()
            raise
        return ours

    def _ask(self, handles: list[int]) -> None:
        with self._lock:
            requests = self._requests or Context().run(self._launch)  # it is not the body's that needs it first
            try:
                socket.send_fds(requests, [b"."], handles)
            except (BrokenPipeError, ConnectionResetError):
                self._stop()  # the next request gets a new one
                raise

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        environment = self._environment()
        marks = [f"{name}={environment[name]}" for name in (INSTANCE, SHELL) if name in environment]
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", *self._arguments, *marks],  # its environment is closed to others
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=(),
            )
        self._requests = ours
        return ours

    def _stop(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
            _reap(self.pid)

    def _forget(self) -> None:
        # Only the handle: the program is our parent's child, and must see the end of file when our parent ends.
        self._lock = threading.Lock()
        if self._requests is not None:
            self._requests.close()
            self._requests = None


class Spawner(Forker):
    """Starts commands that end with us, behind `walls` (the words of `walls/commands.py`).

    `program` is one that takes requests like the launcher.
    """

    def __init__(self, walls: Sequence[str] = (), program: Sequence[str] = (LAUNCHER, "--serve")) -> None:
        super().__init__([*program, str(len(walls)), *walls], _launcher_environment)
        self.walls = walls

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: int,
        streams: tuple[int, int, int],
        grace: float,
        shown: Sequence[str] = (),
    ) -> socket.socket:
        """Start `command` in `folder` and return its control socket: status lines come out, closing it ends the tree.

        `shown` is what this one is shown besides, where there are walls.

        Raises:
            OSError: the launcher cannot be started, or takes no request.
        """
        words = [true_path(folder), *shown] if self.walls else []
        fields = [str(grace), str(UMASK), str(len(command)), str(len(words)), *command, *words]
        fields += [f"{name}={value}" for name, value in environment.items()]
        return self.request([folder, *streams], fields)


class _Running:
    """One command from its start to the end of its tree, as futures of the running loop."""

    def __init__(self, name: str, egress: Egress | None) -> None:
        self._name = name
        self._egress = egress
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self.enough: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._readers: list[_Reader] = []
        self._line: ControlLine | None = None
        self._failure: BaseException | None = None

    def start(self, spawn: Callable[..., socket.socket], stdin: bytes | int, sinks: Sequence[Sink]) -> None:
        try:
            with ExitStack() as closing:
                outputs = [self._reader(sink, closing) for sink in sinks]
                control = spawn(streams=(_input(stdin, closing), outputs[0], outputs[-1]))
        except OSError as error:
            raise self._refusal(error.errno or 0) from error
        self._line = ControlLine(control, self._hear, self._egress)

    async def drain(self) -> None:
        """Read what is still in the pipes; somebody who inherited them cannot hold the call up."""
        for reader in self._readers:
            reader.resume()
        open_readers = [reader.closed for reader in self._readers if not reader.closed.done()]
        if open_readers:
            await asyncio.wait(open_readers, timeout=_DRAIN_SECONDS)

    async def end(self, patience: float) -> None:
        """End the tree and wait until it is gone."""
        try:
            if self._line is not None and not self._gone.done():
                self._line.end()
                await asyncio.wait({self._gone}, timeout=patience)
        finally:
            for reader in self._readers:
                reader.resume()
                reader.close()
            self._readers.clear()  # they know us, and what their sinks hold would stay until the cycle is collected
            if self._line is not None:
                self._line.close()

    def outcome(self, *, timed_out: bool) -> Completed:
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback has this frame
        facts = {} if self._line is None else self._line.facts
        if "error" in facts:
            raise self._refusal(facts["error"])
        if "starting" not in facts:
            raise self._refusal(errno.ECHILD)
        if timed_out or self.enough.done():
            return Completed(timed_out=timed_out, stopped=not timed_out)
        return Completed(exit_code=facts.get("exit"), signal=facts.get("signal"), leftovers=facts.get("leftovers", 0))

    def _reader(self, sink: Sink, closing: ExitStack) -> int:
        read, write = os.pipe()
        closing.callback(os.close, write)
        self._readers.append(_Reader(self._loop, read, sink, self._stop))
        return write

    def _stop(self, failure: BaseException | None) -> None:
        self._failure = self._failure or failure
        if not self.enough.done():
            self.enough.set_result(None)

    def _hear(self) -> None:
        assert self._line is not None  # noqa: S101  for the type checker: it is what calls
        if self._line.is_closed:
            self._gone.set_result(None)
        if self._line.has_ended and not self.over.done():
            self.over.set_result(None)

    def _refusal(self, number: int) -> SandboxError:
        reason = "the launcher ended first" if number == errno.ECHILD else os.strerror(number)
        return SandboxError(f"{self._name} could not be started: {reason}", SPAWN_FAILED)


class _Reader:
    """Feeds one pipe to its sink until the end of file, until the sink has enough, or until closed.

    After a little it pauses: who writes line by line would otherwise wake us for each, and share its processors with us.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handle: int, sink: Sink, stop: Callable[[BaseException | None], None]
    ) -> None:
        self.closed: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._handle = handle
        self._sink = sink
        self._stop = stop
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(handle, False)
        loop.add_reader(handle, self._read)

    def resume(self) -> None:
        """End a pause and read what has come meanwhile."""
        if self._pause is not None and not self.closed.done():
            self._pause.cancel()
            self._pause = None
            self._loop.add_reader(self._handle, self._read)
            self._read()

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
            self._loop.remove_reader(self._handle)
            if self._pause is not None:
                self._pause.cancel()
            os.close(self._handle)

    def _read(self) -> None:
        try:
            data = os.read(self._handle, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        try:
            if self._sink(data) is False:
                self._stop(None)
                self.close()
            elif len(data) < _LITTLE:
                self._loop.remove_reader(self._handle)
                self._pause = self._loop.call_later(_PAUSE_SECONDS, self.resume)
        except Exception as error:  # noqa: BLE001  a callback of the loop has nobody to raise to: run() raises it
            self._stop(error)
            self.close()


def _input(stdin: bytes | int, closing: ExitStack) -> int:
    """Return a handle to read `stdin` from. Bytes go through an unnamed file: no writer is needed that could block."""
    if isinstance(stdin, int):
        return stdin
    if not stdin:
        handle = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        closing.callback(os.close, handle)
        return handle
    file = closing.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
    file.write(stdin)
    file.seek(0)
    return file.fileno()


async def _finish(cleanup: Coroutine[Any, Any, None]) -> None:
    """Await a clean-up that goes on even if we are cancelled once more."""
    task = asyncio.ensure_future(cleanup)
    _cleaning.add(task)
    task.add_done_callback(_cleaning.discard)
    await asyncio.shield(task)


def _send(control: socket.socket, fields: Sequence[str]) -> None:
    request = b"\0".join(os.fsencode(field) for field in fields)
    control.settimeout(_PATIENCE)
    control.sendall(REQUEST_LENGTH.pack(len(request)) + request)


def _launcher_environment() -> dict[str, str]:
    environment = child_environment()
    environment.pop(EXECUTION, None)  # it outlives the body that needs it first
    return environment


def _reap(pid: int) -> None:
    """Wait for a program that has to end; one that does not is killed, and what it forked ends by itself."""
    deadline = time.monotonic() + _PATIENCE
    with suppress(ChildProcessError):  # somebody else in this process reaps every child
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)


SPAWNER = Spawner()
"""The one of this process."""
