"""Workers that one program forks, which has imported all that they need except the user's tools."""

import json
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from forge_tools.embedded.supervision import Launched, SupervisedProcess, signed
from forge_tools.model.execution import new_id
from forge_tools.sandbox.processes.spawner import Spawner

FORK_SERVER = ("-P", "-m", "workers.forkserver")

READY_BYTES = 1 << 16


class WorkerForks(Spawner):
    """The program that forks workers, kept ready. If it dies, the workers go on, and the next start of one starts it again."""

    options = ()  # without the launcher's -I and -S: workers import packages

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(program=program)
        self._environment = environment
        self.log = str(log)

    def environment(self) -> dict[str, str]:
        """Return what `/proc/PID/environ` shows of its workers; the settings of each come with its start."""
        return dict(self._environment)


class SupervisedWorker(SupervisedProcess):
    """A worker with these arguments, whose instance id changes with each start.

    `died` receives the worker and its exit code once nothing of it is left.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        forks: WorkerForks,
        died: Callable[["SupervisedWorker", int], None],
        **process: Any,
    ) -> None:
        super().__init__(name, arguments, spawner=forks, **process)
        self.instance = ""
        self._died = died
        self._ready: socket.socket | None = None

    def leave(self) -> None:
        """Ask it to end when its calls have ended, however long they take."""
        self._is_wanted = False
        if self._launcher is not None:
            self._launcher.send(signal.SIGINT)

    def withdraw(self) -> None:
        """End it: at once if it claims no calls yet, else as `leave` does."""
        said = self._said(socket.MSG_DONTWAIT)
        if said and json.loads(said) is None:
            self.leave()
        else:
            self.kill()

    def refusal(self) -> str | None:
        """Wait until it claims calls, and return None; or why it never will."""
        launcher = self._launcher
        if self._ready is None or launcher is None:
            return f"A new worker was ended; see {self.log}"
        said = self._said()
        return json.loads(said) if said else f"A new worker ended ({signed(launcher.wait())}); see {self.log}"

    def wait_until_left(self, seconds: float) -> None:
        """Wait, this long at most, until it claims no more calls."""
        if (ready := self._ready) is not None:
            with suppress(OSError):  # it has ended
                ready.settimeout(seconds)
                while ready.recv(READY_BYTES):  # what it said as it started, if nobody asked
                    pass

    def forget(self) -> None:
        launcher = self._launcher
        super().forget()
        if self._launcher is None and launcher is not None and not launcher.pid:
            self._last_exit = f"the program that forks workers ended; its log is {self._spawner.log}"
        if self._launcher is None and self._ready is not None:
            said = self._said(socket.MSG_DONTWAIT)
            if said and (why := json.loads(said)):
                self._last_exit = f"{self._last_exit}: {why.rstrip('.')}"
            self._ready.close()
            self._ready = None

    def _said(self, how: int = 0) -> bytes:
        """Return what it said as it started, without consuming it."""
        if (ready := self._ready) is not None:
            with suppress(OSError):  # it has ended, or said nothing yet
                return ready.recv(READY_BYTES, socket.MSG_PEEK | how)
        return b""

    def _launch(self, output: IO[bytes]) -> Launched:
        self.instance = new_id()
        # Not a stream: MSG_PEEK is to find what the worker said whole, as often as somebody asks.
        ready, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                launched = self._launch_as([*self._argv, "--instance", self.instance], theirs.fileno(), output)
        except BaseException:
            ready.close()
            raise
        self._ready = ready
        return launched

    def _schedule(self, now: float) -> None:
        launcher = self._launcher
        super()._schedule(now)
        if launcher is not None and (code := launcher.wait()) >= 0:  # a launcher that was killed itself ended nothing
            self._died(self, signed(code))
