"""The program that watches a worker from outside: it kills one whose engine can no longer act, or is gone. Linux only.

A C call that holds the interpreter's lock stops every thread of its process, so nothing inside can end it. This program
imports next to nothing: one runs beside each worker.
"""

import os
import select
import sys
import time

POLL_SECONDS = 1.0
LATE_SECONDS = 3.0
"""A check later than this shows that this program itself was kept from running: then it knows nothing."""

FAREWELL = b"!"
"""Sent by a worker that ends in good order. If the line ends without it, somebody closed it."""

END_SECONDS = 2.0
"""How long a worker that has just died may take until it is gone."""

SIGKILL = 9  # importing `signal` would cost a megabyte


class Silence:
    """How long the worker has been silent while it could have sent a beat."""

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._counted_at = now
        self._has_spoken = False

    def count(self, now: float, *, heard: bool, is_stopped: bool) -> None:
        """Count the time since the last check, unless the worker sent a beat, was stopped, or this program was late.

        A worker that has sent nothing yet is still starting: its starter has its own time limit.
        """
        elapsed, self._counted_at = now - self._counted_at, now
        self._has_spoken |= heard
        if heard or is_stopped or elapsed > LATE_SECONDS or not self._has_spoken:
            self.seconds = 0.0
        else:
            self.seconds += elapsed


def watch(lifeline: int, worker: int, limit: float) -> None:
    """Read beats from `lifeline`; kill the worker after `limit` silent seconds, or if that ends without a farewell."""
    silence = Silence(time.monotonic())
    while os.getppid() == worker:
        heard = b""
        if select.select([lifeline], [], [], POLL_SECONDS)[0]:
            heard = _read(lifeline)
            if FAREWELL in heard:
                return
            if not heard:
                _kill_if_it_lives(worker)
                return
        silence.count(time.monotonic(), heard=bool(heard), is_stopped=is_stopped(worker))
        if silence.seconds >= limit and os.getppid() == worker:
            os.write(2, epitaph(worker, silence.seconds).encode())
            os.kill(worker, SIGKILL)
            return


def _read(lifeline: int) -> bytes:
    try:
        return os.read(lifeline, 4096)
    except ConnectionResetError:  # it died with unread data from us
        return b""


def _kill_if_it_lives(worker: int) -> None:
    """Kill a worker that outlives its line, which ends a moment before a dying worker is gone."""
    deadline = time.monotonic() + END_SECONDS
    while os.getppid() == worker:
        if time.monotonic() >= deadline:
            os.write(2, epitaph(worker).encode())
            os.kill(worker, SIGKILL)
            return
        time.sleep(0.02)


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger holds that process; a dead one counts too, as it is not silent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 pathlib would triple the memory of this program
            return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t", b"Z", b"X"}
    except OSError:
        return True


def epitaph(worker: int, seconds: float | None = None) -> str:
    """Return what the log says about a worker that is killed."""
    if seconds is None:
        return (
            f"CRITICAL workers.watchdog: Worker {worker} is alive, but its engine is gone without a report: most likely a tool "
            "closed descriptors that are not its own. The worker is killed; its calls are settled by other workers, and its "
            "supervisor starts a new one.\n"
        )
    return (
        f"CRITICAL workers.watchdog: Worker {worker} has made no progress for {seconds:.0f} s: something blocks its interpreter, most "
        "likely a C call in a tool of the async lane (declare lane = 'process' for it). The worker is killed; its calls are "
        "settled by other workers, and its supervisor starts a new one.\n"
    )


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
