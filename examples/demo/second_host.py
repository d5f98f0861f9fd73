"""A second machine, as far as the stack can tell: workers with their own host name, and no supervisor."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from forge_tools.cli.up import until_ready
from forge_tools.cli.worker import worker_argv
from forge_tools.config import Settings
from forge_tools.embedded.stack import StackStatus, WorkerPlan, worker_environment
from forge_tools.embedded.supervision import SupervisedProcess
from forge_tools.model import Lane
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.sandbox.processes.trees import descendants
from forge_tools.urls import without_passwords

LANES: dict[Lane, int] = {"async": 200, "process": 2}
"""Its workers, one a lane, with the calls that each runs at a time."""

_STOP_SECONDS = 1.0


class SecondHost:
    """One worker per lane; they share database and broker with a stack."""

    def __init__(self, name: str, settings: Settings, *, tools: tuple[str, ...]) -> None:
        self.name = name
        self._settings = settings.model_copy(update={"hostname": name})
        self._logs = settings.home / "logs"
        self._spawner = Spawner()
        self._workers = [self._worker(lane, concurrency, tools) for lane, concurrency in LANES.items()]

    def __enter__(self) -> Self:
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    async def until_ready(self) -> None:
        """Wait until its workers serve."""
        await until_ready(self._settings, self.status, is_given_up=lambda: False)

    def pids(self) -> set[int]:
        """All its processes."""
        pids = {worker.pid for worker in self._workers if worker.pid is not None}
        return pids | {child.pid for pid in pids for child in descendants(pid)}

    def kill(self) -> None:
        """Do what a power cut does to a machine."""
        for worker in self._workers:
            worker.kill()
        self._spawner.close()

    def status(self) -> StackStatus:
        return StackStatus(
            home=self._settings.home,
            pid=os.getpid(),
            broker=without_passwords(self._settings.broker),
            database=without_passwords(self._settings.database),
            processes=tuple(worker.status() for worker in self._workers),
        )

    def _worker(self, lane: Lane, concurrency: int, tools: tuple[str, ...]) -> SupervisedProcess:
        name = f"{self.name}-{lane}"
        plan = WorkerPlan(name=name, lane=lane, queues=("default",), concurrency=concurrency, tools=tools)
        return SupervisedProcess(
            name,
            worker_argv(plan.arguments),
            log=Path(self._logs) / f"{name}.log",
            environment=worker_environment(self._settings),
            grace=_STOP_SECONDS,
            spawner=self._spawner,
        )
