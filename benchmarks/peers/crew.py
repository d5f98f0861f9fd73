"""The worker processes of one peer: started together, and ended completely, with everything that they started."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks.processes import ROOT
from tests.server_process import become

STOP_SECONDS = 15.0


class Crew:
    """Runs command lines while entered, each with its log; they get SIGTERM when this process dies."""

    def __init__(self, commands: Sequence[Sequence[str]], *, logs: Path, environment: Mapping[str, str]) -> None:
        self._commands = commands
        self._folder = logs
        self._environment = environment
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def has_lost_one(self) -> bool:
        return any(process.poll() is not None for process in self._processes)

    @property
    def logs(self) -> list[Path]:
        return [self._folder / f"worker-{number}.log" for number in range(len(self._commands))]

    def __enter__(self) -> Self:
        for command, path in zip(self._commands, self.logs, strict=True):
            with path.open("wb") as log:
                process = subprocess.Popen(
                    become(list(command), None, signal.SIGTERM),
                    cwd=ROOT,
                    env=dict(self._environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        family = self._family()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for descendant in family:
            with suppress(psutil.NoSuchProcess):
                descendant.kill()

    def _family(self) -> list[Any]:
        """The processes that the workers have started; a process object is not confused with a later process of the same id."""
        family: list[Any] = []
        for pid in self.pids:
            with suppress(psutil.NoSuchProcess):
                family += psutil.Process(pid).children(recursive=True)
        return family
