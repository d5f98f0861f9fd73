"""The program that watches a worker from outside: it kills one whose engine can no longer act. Linux only.

A C call that holds the interpreter's lock stops every thread of its process, so nothing inside can end it. This program imports
next to nothing: one runs beside each worker.
"""

import os
import select
import sys
import time

LOOK_SECONDS = 1.0
LATE_SECONDS = 3.0
"""A look that comes later than this says that this program itself was kept from running: then it knows nothing."""

SIGKILL = 9  # the module `signal` alone would cost a megabyte


class Silence:
    """How long the worker has been silent while it could have spoken."""

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._looked_at = now
        self._has_spoken = False

    def look(self, now: float, *, heard: bool, is_stopped: bool) -> None:
        """Count the time since the last look, unless the worker spoke, was stopped, or this program was late.

        What has never spoken is still starting: its starter has a limit of its own.
        """
        elapsed, self._looked_at = now - self._looked_at, now
        self._has_spoken |= heard
        if heard or is_stopped or elapsed > LATE_SECONDS or not self._has_spoken:
            self.seconds = 0.0
        else:
            self.seconds += elapsed


def watch(lifeline: int, worker: int, limit: float) -> None:
    """Read beats from `lifeline` until the worker is gone, or has been silent for `limit` seconds and is killed."""
    silence = Silence(time.monotonic())
    while os.getppid() == worker:
        heard = bool(select.select([lifeline], [], [], LOOK_SECONDS)[0])
        if heard and not os.read(lifeline, 4096):
            return
        silence.look(time.monotonic(), heard=heard, is_stopped=is_stopped(worker))
        if silence.seconds >= limit and os.getppid() == worker:
            os.write(2, epitaph(worker, silence.seconds).encode())
            os.kill(worker, SIGKILL)
            return


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds that process; one that is gone counts too, as it is not silent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 pathlib would triple the memory of this program
            return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t", b"Z", b"X"}
    except OSError:
        return True


def epitaph(worker: int, seconds: float) -> str:
    """What the log says of a worker that is killed."""
    return (
        f"CRITICAL workers.watchdog: Worker {worker} has not moved for {seconds:.0f} s: something holds its interpreter, most "
        "likely a C call in a tool of the async lane (declare lane = 'process' for it). The worker is killed; its calls are "
        "settled by other workers, and its supervisor starts another.\n"
    )


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
