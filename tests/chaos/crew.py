"""The workers under test: processes of their own, replaced when they die, as a supervisor would."""

import asyncio
import resource
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from forge_tools.model import Lane
from tests.fleet import ROOT, WorkerProcess, warm_worker

TOOLS = "tests.chaos.tools:TOOLS"
PROGRAM = ("workers",)
POLL_SECONDS = 0.1
SHORTEST_LIFE = 2.0
"""A post is not filled again sooner: what ended its worker may last."""

UNEXPLAINED = "unexplained"
ENDS = {
    69: "no database to start with",
    75: "its loop was held by a tool, or it was unfit",
    3: "a tool exited",
    -9: "a tool killed it",
}
"""Why a worker may end that nobody stopped, by its exit status."""

STOP_SECONDS = 40.0
DESCRIPTORS = 1024
"""As many as most systems give a process; a tool can eat these in a moment."""

DRAIN = 12.0
"""Seconds that bodies have after a polite stop: more than any of them takes that ends by itself."""


@dataclass(frozen=True, slots=True)
class Post:
    """A place in the crew that is always filled again."""

    lane: Lane
    host: str
    concurrency: int


POSTS = (
    Post("async", "host-a", 50),
    Post("process", "host-a", 2),
    Post("async", "host-b", 50),
    Post("process", "host-b", 2),
)


@dataclass(slots=True)
class Deaths:
    """Which processes cannot be expected to have said how their bodies ended."""

    workers: dict[int, str] = field(default_factory=dict)
    """Worker pid to what happened to it."""
    children: dict[int, int] = field(default_factory=dict)
    """Pid of a pool process to that of its worker."""
    stopped: dict[int, float] = field(default_factory=dict)
    """When (monotonic) each worker was asked to stop that nothing else has met since."""

    def meet(self, *pids: int) -> None:
        """Note that something befell these workers, which they may be excused for."""
        for pid in pids:
            self.stopped.pop(pid, None)


@dataclass(slots=True)
class Worker:
    """One process at its post."""

    post: Post
    process: WorkerProcess
    hired_at: float
    is_suspended: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self.is_alive and b"Worker ready" in self.process.log.read_bytes()

    def children(self) -> list[int]:
        """Its pool processes, and whatever else it started itself."""
        with suppress(psutil.NoSuchProcess):
            return sorted(child.pid for child in psutil.Process(self.pid).children())
        return []

    def tree(self) -> list[int]:
        """Everything below it."""
        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        return []

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive:
            self.process.signal(number)


class Crew:
    """Fills every post for as long as it is tended."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], posts: Sequence[Post], program: Sequence[str] = PROGRAM
    ) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._program = program
        self._count = 0
        self._leaving: list[Worker] = []
        self.deaths = Deaths()
        self.workers = [self._hire(post) for post in posts]

    async def wait_ready(self) -> None:
        for worker in self.workers:
            await asyncio.to_thread(worker.process.wait_ready, 60)

    async def tend(self) -> None:
        """Replace the dead for ever."""
        while True:  # no deadline: it looks until the run cancels it
            await asyncio.sleep(POLL_SECONDS)
            for worker in [*self.workers, *self._leaving]:
                if not worker.is_alive:
                    self._note_end(worker)
            self._leaving = [worker for worker in self._leaving if worker.is_alive]
            for place, worker in enumerate(self.workers):
                if not worker.is_alive and time.monotonic() - worker.hired_at > SHORTEST_LIFE:
                    self.workers[place] = self._hire(worker.post)

    def relieve(self, worker: Worker) -> None:
        """Start its successor beside it."""
        self.workers[self.workers.index(worker)] = self._hire(worker.post)
        self._leaving.append(worker)

    def living(self, lane: Lane | None = None) -> list[Worker]:
        """Those that run: first the holders of the posts in their order, then those whose successors have started."""
        everybody = [*self.workers, *self._leaving]
        return [worker for worker in everybody if worker.is_alive and lane in (None, worker.post.lane)]

    def pids(self) -> set[int]:
        """Of those that run."""
        return {worker.pid for worker in self.living()}

    async def stop(self, silent: Collection[int] = ()) -> None:
        """Stop all politely, and by force those that are stubborn, or `silent` anyway."""
        for worker in self.living():
            if worker.pid in silent:
                worker.process.kill()
        for worker in self.living():
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self.living() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        self.bury()

    def bury(self) -> None:
        """End whoever is left, without more words."""
        for worker in self.living():
            worker.process.kill()

    def _note_end(self, worker: Worker) -> None:
        code = worker.process.process.returncode
        why = ENDS.get(code) or f"{UNEXPLAINED}, status {code}: {last_words(worker.process.log)}"
        self.deaths.workers.setdefault(worker.pid, why)
        if code:
            self.deaths.meet(worker.pid)

    def _hire(self, post: Post) -> Worker:
        log = self._folder / f"worker-{self._count:03}-{post.lane}-{post.host}.log"
        self._count += 1
        words = [*self._program, "--lane", post.lane, "--queues", "default,background"]
        words += ["--concurrency", str(post.concurrency), "--tools", TOOLS, "--no-builtins"]
        environment = {**self._environment, "FORGE_HOSTNAME": post.host}
        with log.open("wb") as output:
            process = warm_worker().start(
                words, cwd=ROOT, env=environment, stdout=output, stderr=output, death_signal=signal.SIGKILL
            )
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        return Worker(post, WorkerProcess(process, log), time.monotonic())


def last_words(log: Path) -> str:
    """What a worker logged when it gave up, with the traceback; the logs of a run may be gone when it is read."""
    text = log.read_text(errors="replace")
    return text[max(0, text.rfind("this worker ends")) :][:3000] if "this worker ends" in text else text[-500:]
