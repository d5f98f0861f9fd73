"""A process of the stack: its log, its process tree that ends with ours, and its restarts."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from forge_tools.sandbox.processes import launcher
from forge_tools.sandbox.processes.endings import kill_all
from forge_tools.sandbox.processes.trees import descendants

logger = logging.getLogger("forge_tools.embedded")

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
STEADY_SECONDS = 60.0
MAX_LOG_BYTES = 5_000_000

SIGNALLED = 128
"""An exit code above this is of a command that a signal ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One process of the stack, for people. `last_exit` says how it ended last time."""

    name: str
    pid: int | None
    log: Path
    state: Literal["running", "restarting", "stopped"]
    restarts: int
    last_exit: str | None


class Launched(Protocol):
    """The launcher of a command, as `subprocess.Popen` shows one; its exit code is that of the command."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class SupervisedProcess:
    """A command under the launcher: it and all its descendants end when we do, even by kill -9.

    `grace` is how many seconds it has between SIGTERM and SIGKILL, whether we ask it to end or have died.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        grace: float,
        inherit: int | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._environment = environment
        self._grace = grace
        self._inherit = () if inherit is None else (inherit,)
        self._launcher: Launched | None = None
        self._lifeline = -1
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
        children = descendants(started.pid)
        return children[0].pid if children else None

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
            tree = descendants(started.pid)
            started.kill()
            kill_all(tree)
            started.wait()
        self.forget()

    def forget(self) -> None:
        """Release a process that has ended."""
        started = self._launcher
        if started is not None and started.poll() is not None:
            self._last_exit = _describe_exit(started.wait())
            self._launcher = None
            self._cut_lifeline()

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
        """Return the end of its log, for a message."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-limit:].strip()
        return ""

    def _launch(self, output: IO[bytes]) -> Launched:
        lifeline, self._lifeline = os.pipe()
        try:
            # It has its own session, so that Ctrl-C in the terminal reaches only us and we end things in order.
            return subprocess.Popen(
                self._command(lifeline),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(self._environment),
                pass_fds=(lifeline, *self._inherit),
                start_new_session=True,
            )
        except BaseException:
            self._cut_lifeline()
            raise
        finally:
            os.close(lifeline)

    def _command(self, lifeline: int) -> list[str]:
        return [
            *(sys.executable, "-I", "-S", launcher.__file__, "--parent-fd", str(lifeline), "--grace", str(self._grace)),
            *("--kill-leftovers", *(word for fd in self._inherit for word in ("--pass-fd", str(fd)))),
            *("--", *self._argv),
        ]

    def _schedule(self, now: float) -> None:
        if now - self._started_at > STEADY_SECONDS:
            self._delay = FIRST_DELAY
        self.forget()
        self._restart_at = now + self._delay
        logger.warning(
            "%s ended unexpectedly (%s) and is started again in %.1f s; its log is %s",
            self.name,
            self._last_exit,
            self._delay,
            self.log,
            extra={"service": self.name, "exit": self._last_exit, "restart_in": self._delay},
        )
        self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _cut_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def signed(code: int) -> int:
    """Return an exit code of the launcher as `subprocess` has it: negative if a signal ended the command."""
    return SIGNALLED - code if code > SIGNALLED else code


def _open_log(path: Path) -> IO[bytes]:
    """Open for appending; a log that has grown large becomes `<name>.1` first."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def _describe_exit(code: int) -> str:
    if (number := -signed(code)) > 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit code {code}"
