"""Whether the run had the machine for itself: how much others used of it, before and during the run."""

import os
import time

import psutil

from benchmarks.processes import cpu_seconds

NOISY = 0.1
"""Part of the whole machine; with more of it used by others, rates say little."""

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 20.0


class Watch:
    """Watches the machine from the moment it is made, leaving out this process and everything it started."""

    def __init__(self) -> None:
        self._busy, self._own, self._started = _busy_seconds(), cpu_seconds([os.getpid()]), time.monotonic()

    def others(self) -> float:
        """The part of the machine that others have used since, time stolen by its host included."""
        busy = _busy_seconds() - self._busy - (cpu_seconds([os.getpid()]) - self._own)
        capacity = self.seconds() * (os.cpu_count() or 1)
        return min(max(busy / capacity, 0.0), 1.0) if capacity else 0.0

    def seconds(self) -> float:
        return time.monotonic() - self._started


def wait_for_quiet(patience: float = PATIENCE_SECONDS) -> float:
    """Wait a while for others to finish; return the part of the machine that they still use."""
    deadline = time.monotonic() + patience
    while True:
        watch = Watch()
        time.sleep(POLL_SECONDS)
        others = watch.others()
        if others <= NOISY or time.monotonic() > deadline:
            return others


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    waiting = times.idle + getattr(times, "iowait", 0.0)
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # already in `user` and `nice`
    return float(sum(times) - waiting - twice)
