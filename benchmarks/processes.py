"""Child processes of a run: started as users start them, gone when the run is, and what they cost."""

import json
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.server_process import become

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 30.0


class Worker:
    """A worker process with its log; it gets SIGTERM when this process dies."""

    is_asked = False

    def __init__(
        self, name: str, argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], ready_words: str = ""
    ) -> None:
        self.name = name
        self._ready_words = ready_words
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                become(list(argv), None, signal.SIGTERM),
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE if self.is_asked else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.is_asked else log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until its log has the words that say so."""
        deadline = time.monotonic() + START_SECONDS
        while self._ready_words not in self.log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} did not start:\n{self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def ask_to_stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        self.ask_to_stop()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Client(Worker):
    """A client process that does what it is asked: one line of JSON on its input, one on its output when it is done."""

    is_asked = True

    def ask(self, what: str, **how: object) -> Any:
        """Let it do that, and return its answer.

        Raises:
            RuntimeError: it failed, or is gone.
        """
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answered is not None
        with suppress(BrokenPipeError):  # a process that is gone does not answer either
            asked.write(json.dumps([what, how]).encode() + b"\n")
            asked.flush()
        answer = json.loads(answered.readline() or b"{}")
        if "answer" not in answer:
            raise RuntimeError(f"{self.name}: {what}: {answer.get('error', self.last_words())}")
        return answer["answer"]

    def stop(self) -> None:
        super().stop()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def cpu_of(argv: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a program to its end; returns the milliseconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, cwd=ROOT, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed:\n{done.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time that these processes have used, with their children, those included that have ended."""
    total = 0.0
    for process in _trees(pids):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def resident_megabytes(pid: int) -> float:
    """What this process holds in memory, its children apart."""
    return float(psutil.Process(pid).memory_info().rss) / 1_000_000


def proportional_megabytes(pid: int) -> float:
    """What this process and its children hold in memory, where each carries its part of what they share."""
    total = 0.0
    for process in _trees([pid]):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1_000_000


def peak_megabytes(root: int) -> dict[int, float]:
    """The most that this process and each of its children has held in memory since `forget_peaks`, or ever."""
    found = {}
    for process in _trees([root]):
        with suppress(OSError, psutil.NoSuchProcess):  # it has ended
            _, said, size = Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")
            if said:  # a zombie holds nothing
                found[process.pid] = int(size.split()[0]) * 1024 / 1_000_000
    return found


def forget_peaks(root: int) -> None:
    """Let the peaks of this process and its children begin at what they hold now."""
    for process in _trees([root]):
        with suppress(OSError):  # it has ended
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _trees(pids: Sequence[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            yield root
            yield from root.children(recursive=True)
