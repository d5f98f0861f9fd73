"""A process of the stack: its log, its process tree that ends with ours, and its restarts."""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from forge_tools.sandbox.processes.endings import kill, kill_all
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.sandbox.processes.trees import descendants
from forge_tools.signals import signal_name

logger = logging.getLogger("forge_tools.embedded")

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
STEADY_SECONDS = 60.0
MAX_LOG_BYTES = 5_000_000

SIGNALLED = 128
"""An exit code above this is of a command that a signal ended."""

_KILLED_SECONDS = 5.0
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process of the stack, for people. `last_exit` says how it ended last time."""

    name: str
    pid: int | None
    log: Path
    state: Literal["running", "restarting", "stopped"]
    restarts: int
    last_exit: str | None


class Launched:
    """The launcher of a command; on its control socket it reports how the command ended."""

    def __init__(self, control: socket.socket) -> None:
        self.returncode: int | None = None
        self._control = control
        self._one_reads = threading.Lock()
        self._said = b""
        control.settimeout(0)

    @property
    def pid(self) -> int:
        """Its process id; 0 until it has begun."""
        return self._facts().get("starting", 0)

    def poll(self) -> int | None:
        with self._one_reads:
            while self.returncode is None:
                try:
                    said = self._control.recv(4096)
                except BlockingIOError:
                    break
                except OSError:
                    said = b""
                self._said += said
                if not said:
                    self._control.close()
                    self.returncode = self._code()
        return self.returncode

    def wait(self) -> int:
        """Wait until it has ended, but not for ever: the kernel may hold it."""
        deadline = time.monotonic() + _KILLED_SECONDS
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return -signal.SIGKILL if code is None else code

    def send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            self._control.send(bytes([number]))

    def terminate(self) -> None:
        self.poll()  # reads its pid, if it has begun
        if self.pid:
            self.send(signal.SIGTERM)
        else:
            self._give_up()

    def kill(self) -> None:
        if self.pid:
            kill(self.pid, signal.SIGKILL)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Close the socket: whoever takes the request after this ends its command at once."""
        with self._one_reads:
            self._control.close()
            self.returncode = -signal.SIGTERM

    def _facts(self) -> dict[str, int]:
        lines = [line.split() for line in self._said.decode().splitlines(keepends=True) if line.endswith("\n")]
        return {kind: int(number) for kind, number in lines}

    def _code(self) -> int:
        facts = self._facts()
        if "error" in facts:
            return os.EX_OSERR
        if "gone" not in facts:
            return -signal.SIGKILL  # the launcher itself died: otherwise `gone` is its last word
        return facts.get("exit", SIGNALLED + facts.get("signal", signal.SIGKILL))


class SupervisedProcess:
    """A command under the launcher: it and all its descendants end when we do, even by kill -9.

    `grace` is how many seconds it has between SIGTERM and SIGKILL, whether we ask it to end or have died. `stdin` is its
    standard input, which is empty by default. It starts in the current folder, by `spawner`.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        grace: float,
        spawner: Spawner,
        stdin: int | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._environment = environment
        self._grace = grace
        self._stdin = stdin
        self._spawner = spawner
        self._launcher: Launched | None = None
        self._is_wanted = False
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._delay = FIRST_DELAY
        self._restarts = 0
        self._last_exit: str | None = None

    def start(self) -> None:
        """Start it, with its output appended to the log."""
        self._restart_at = None
        self._is_wanted = True
        self._started_at = time.monotonic()
        with _open_log(self.log) as output:
            self._launcher = self._launch(output)

    @property
    def is_alive(self) -> bool:
        started = self._launcher  # another thread may release it in the meantime
        return started is not None and started.poll() is None

    @property
    def pid(self) -> int | None:
        """The command's own pid: the launcher's first child."""
        started = self._launcher
        if started is None or started.poll() is not None:
            return None
        return next((child.pid for child in descendants(started.pid)), None)

    def tend(self) -> None:
        """Restart it if it has died: at once at first, then after increasing pauses."""
        if self.is_alive or not self._is_wanted:
            return
        now = time.monotonic()
        if self._launcher is not None:
            self._schedule(now)
        if self._restart_at is not None and now >= self._restart_at:
            self._restarts += 1
            try:
                self.start()
            except OSError as error:  # no process, memory or disk available; that may pass
                self._last_exit = f"cannot start: {error.strerror}"
                self._schedule(now)

    def terminate(self) -> None:
        """Ask it to end; the launcher kills what is left after the grace period."""
        self._restart_at = None
        self._is_wanted = False
        if self._launcher is not None and self.is_alive:
            self._launcher.terminate()

    def kill(self) -> None:
        """End it and everything below it without waiting."""
        started = self._launcher  # another thread may release it in the meantime
        if started is not None and started.poll() is None:
            tree = descendants(started.pid)  # before: without the launcher they have other parents
            started.kill()
            kill_all(tree)
            started.wait()
        self.forget()

    def forget(self) -> None:
        started = self._launcher
        if started is not None and started.poll() is not None:
            ended = signed(started.wait())
            self._last_exit = how_ended(ended)
            self._launcher = None

    def status(self) -> ProcessStatus:
        state: Literal["running", "restarting", "stopped"] = "stopped" if self._restart_at is None else "restarting"
        return ProcessStatus(
            name=self.name,
            pid=self.pid,
            log=self.log,
            state="running" if self.is_alive else state,
            restarts=self._restarts,
            last_exit=self._last_exit,
        )

    def last_words(self, limit: int = 1500) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-limit:].strip()
        return ""

    def _launch(self, output: IO[bytes]) -> Launched:
        with Path(os.devnull).open("rb") as nothing:
            return self._launch_as(self._argv, nothing.fileno() if self._stdin is None else self._stdin, output)

    def _launch_as(self, argv: Sequence[str], stdin: int, output: IO[bytes]) -> Launched:
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            streams = (stdin, output.fileno(), output.fileno())
            control = self._spawner.start(argv, self._environment, folder=folder, streams=streams, grace=self._grace)
            return Launched(control)
        finally:
            os.close(folder)

    def _schedule(self, now: float) -> None:
        if now - self._started_at > STEADY_SECONDS:
            self._delay = FIRST_DELAY
        self.forget()
        self._restart_at = now + self._delay
        # With the number of the start, since a terminal shows equal warnings once.
        logger.warning(
            "%s ended unexpectedly (%s) and is started again in %.1f s (start %d); its log is %s",
            self.name,
            self._last_exit,
            self._delay,
            self._restarts + 2,
            self.log,
            extra={"service": self.name, "exit": self._last_exit, "restart_in": self._delay},
        )
        self._delay = min(self._delay * 2, LONGEST_DELAY)


def signed(code: int) -> int:
    """Return an exit code of the launcher as `subprocess` has it: negative if a signal ended the command."""
    return SIGNALLED - code if code > SIGNALLED else code


def how_ended(code: int) -> str:
    """Say how a process ended, from its exit code, which is negative if a signal ended it."""
    return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"


def _open_log(path: Path) -> IO[bytes]:
    """Open for appending; a log that has grown large becomes `<name>.1` first."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")
