"""Child processes of a run: started as users start them, gone when the run is, and what they cost."""

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.server_process import become

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 30.0


class Worker:
    """A worker process with its log; it gets SIGTERM when this process dies."""

    def __init__(self, name: str, argv: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                become(list(argv), None, signal.SIGTERM),
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, words: str) -> None:
        """Wait until its log has the words that say so."""
        deadline = time.monotonic() + START_SECONDS
        while words not in self.log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def resident_megabytes(self) -> float:
        return float(psutil.Process(self.pid).memory_info().rss) / 1_000_000


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time that these processes have used, with their children, those included that have ended."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])
    return total
