"""Commands of tools: started by a `Spawner`, read with bounded memory, ended with their whole tree."""

import asyncio
import errno
import os
import signal
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.sandbox.processes.spawner import SPAWNER
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
_ENDS = {"exit", "signal", "error"}


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
    """How a command ended. `exit_code` or `signal` is set where it ended by itself; `leftovers` counts what it left behind.

    `is_out_of_memory`: the kernel ended it, since it needed more than one call may have.
    """

    exit_code: int | None = None
    signal: int | None = None
    leftovers: int = 0
    timed_out: bool = False
    stopped: bool = False
    is_out_of_memory: bool = False


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
    start: Callable[..., socket.socket] = SPAWNER.start,
    egress: Egress | None = None,
) -> Completed:
    """Run `command` in the open folder handle `folder` and feed what it writes to the sinks.

    `start` is `Around.start` of its walls; by default there are none. `egress` is the proxy of a network that has one.

    Without `stderr` both streams go to `stdout` in true order. The command is over when its own process ends; what that
    leaves behind is stopped. When this returns or raises, cancellation included, nothing of the process tree is left.
    """
    running = _Running(command[0], egress)
    try:
        spawn = partial(start, command, environment, folder=folder, grace=grace)
        running.start(spawn, stdin, [stdout] if stderr is None else [stdout, stderr])
        await asyncio.wait({running.over, running.enough}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if running.over.done():
            await running.drain()
    finally:
        timed_out = not running.over.done() and not running.enough.done()
        await _finish(running.end(grace + _SLACK_SECONDS))
    return running.outcome(timed_out=timed_out)


class ControlLine:
    """Collects the reports as `facts` and calls `changed` after each, on the running loop.

    `egress` serves the proxy of the command, if its network has one; it belongs to whoever gave it.
    """

    def __init__(
        self, control: socket.socket, changed: Callable[["ControlLine"], None], egress: Egress | None = None
    ) -> None:
        self.facts: dict[str, int] = {}
        self.is_closed = False
        """Whether nothing of the tree is left, or its supervisor was killed and the kernel killed the tree with it."""
        self._control = control
        self._changed = changed
        self._egress = egress
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        control.settimeout(0)
        self._loop.add_reader(control, self._hear)

    @property
    def has_ended(self) -> bool:
        """Whether the command itself is over, or never started."""
        return bool(self.facts.keys() & _ENDS)

    def end(self) -> None:
        with suppress(OSError):  # not closed: what its supervisor still reports is awaited
            self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._loop.remove_reader(self._control)
        self._control.close()

    def _hear(self) -> None:
        try:
            data, handles, _, _ = socket.recv_fds(self._control, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data, handles = b"", []
        if handles and self._egress is not None:
            self._egress.serve(socket.socket(fileno=handles[0]))
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            kind, number = line.split()
            self.facts[kind.decode()] = int(number)
        if not data or "gone" in self.facts:
            self.is_closed = True
            if not self.has_ended:  # somebody killed its supervisor, and the kernel killed the command
                self.facts["signal"] = signal.SIGKILL
            self._loop.remove_reader(self._control)
        self._changed(self)


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
        try:
            if self._failure is not None:
                raise self._failure
        finally:
            self._failure = None  # its traceback has this frame, which knows us
        facts = {} if self._line is None else self._line.facts
        if "error" in facts:
            raise self._refusal(facts["error"])
        if "starting" not in facts:
            raise self._refusal(errno.ECHILD)
        if timed_out or self.enough.done():
            return Completed(timed_out=timed_out, stopped=not timed_out)
        return Completed(
            exit_code=facts.get("exit"),
            signal=facts.get("signal"),
            leftovers=facts.get("leftovers", 0),
            is_out_of_memory="memory" in facts,
        )

    def _reader(self, sink: Sink, closing: ExitStack) -> int:
        read, write = os.pipe()
        closing.callback(os.close, write)
        self._readers.append(_Reader(self._loop, read, sink, self._stop))
        return write

    def _stop(self, failure: BaseException | None) -> None:
        self._failure = self._failure or failure
        if not self.enough.done():
            self.enough.set_result(None)

    def _hear(self, line: ControlLine) -> None:
        if line.is_closed:
            self._gone.set_result(None)
        if line.has_ended and not self.over.done():
            self.over.set_result(None)

    def _refusal(self, number: int) -> SandboxError:
        reason = "the launcher ended first" if number == errno.ECHILD else os.strerror(number)
        return SandboxError(f"{self._name} could not be started: {reason}", SPAWN_FAILED)


class _Reader:
    """Feeds one pipe to its sink until the end of file, until the sink has enough, or until closed.

    After a small read it pauses: a command that writes line by line would otherwise wake us for each.
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
