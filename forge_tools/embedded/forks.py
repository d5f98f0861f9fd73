"""Workers that one program forks, which has imported all that they need except the user's tools."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from forge_tools.embedded.supervision import SIGNALLED, SupervisedProcess, signed
from forge_tools.model import new_id
from forge_tools.sandbox.processes.endings import kill
from forge_tools.sandbox.processes.spawner import Spawner

FORK_SERVER = ("-P", "-m", "workers.forkserver")

READY_BYTES = 1 << 16

_KILLED_SECONDS = 5.0
_POLL_SECONDS = 0.005


class WorkerForks(Spawner):
    """The program that forks workers, kept ready. If it dies, the workers go on, and the next start of one starts it again."""

    options = ()

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(program=program)
        self._environment = environment
        self.log = str(log)

    def environment(self) -> dict[str, str]:
        """Return what its workers show as theirs; what they work with comes with each."""
        return dict(self._environment)


class SupervisedWorker(SupervisedProcess):
    """A worker with these arguments, whose instance id changes with each start.

    `died` is called with it and its exit code once nothing of it is left.
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
        super().__init__(name, arguments, **process)
        self.instance = ""
        self._forks = forks
        self._died = died
        self._ready: socket.socket | None = None

    def leave(self) -> None:
        """Ask it to end when its calls have ended, however long they take."""
        self._is_wanted = False
        if isinstance(self._launcher, _Forked):
            self._launcher.send(signal.SIGINT)

    def refusal(self) -> str | None:
        """Wait until it claims calls, and return None; or why it never will."""
        ready, launcher, said = self._ready, self._launcher, b""
        if ready is None or launcher is None:
            return f"A new worker was ended; see {self.log}"
        with suppress(OSError):
            said = ready.recv(READY_BYTES)
        return json.loads(said) if said else f"A new worker ended ({signed(launcher.wait())}); see {self.log}"

    def forget(self) -> None:
        launcher = self._launcher
        super().forget()
        if self._launcher is None and launcher is not None and not launcher.pid:
            self._last_exit = f"the program that forks workers ended; its log is {self._forks.log}"
        if self._launcher is None and self._ready is not None:
            with suppress(OSError, ValueError):  # whoever waits in `refusal` is told, too
                said = self._ready.recv(READY_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                if said and (why := json.loads(said)):
                    self._last_exit = f"{self._last_exit}: {why.rstrip('.')}"
            self._ready.close()
            self._ready = None

    def _launch(self, output: IO[bytes]) -> "_Forked":
        self.instance = new_id()
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        ready, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            control = self._forks.start(
                [*self._argv, "--instance", self.instance],
                self._environment,
                folder=folder,
                streams=(theirs.fileno(), output.fileno(), output.fileno()),
                grace=self._grace,
            )
        except BaseException:
            ready.close()
            raise
        finally:
            os.close(folder)
            theirs.close()
        self._ready = ready
        return _Forked(control)

    def _schedule(self, now: float) -> None:
        launcher = self._launcher
        super()._schedule(now)
        if launcher is not None and (code := launcher.wait()) >= 0:  # a launcher that was killed itself ended nothing
            self._died(self, signed(code))


class _Forked:
    """The launcher that was forked for a worker, which says on its control socket how that ended."""

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
        with suppress(OSError):  # it has just ended
            self._control.send(bytes([number]))

    def terminate(self) -> None:
        self.poll()
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
        """Close the socket: whoever takes the request after this ends its worker at once."""
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
            return -signal.SIGKILL
        return facts.get("exit", SIGNALLED + facts.get("signal", signal.SIGKILL))
