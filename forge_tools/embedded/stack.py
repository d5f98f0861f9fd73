"""The embedded stack itself: starts its processes in order, supervises them, and stops them within the promised time."""

import asyncio
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from forge_tools.config import Settings
from forge_tools.embedded import valkey
from forge_tools.embedded.forks import FORK_SERVER, SupervisedWorker, WorkerForks
from forge_tools.embedded.home import HomeLock, explained, open_home, prepare_socket
from forge_tools.embedded.supervision import ProcessStatus, SupervisedProcess
from forge_tools.errors import ForgeError, StackError
from forge_tools.model.tools import Lane
from forge_tools.project import broker_socket
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import instance_mark
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.secrets.encryption import KeyFolder, key_id
from forge_tools.signals import ENDINGS, handled, not_ignored
from forge_tools.storage import migrate, open_store
from forge_tools.urls import without_passwords

logger = logging.getLogger("forge_tools.embedded")

DRAIN_SECONDS = 6.0
"""How long calls may still run once the stack stops, unless `FORGE_DRAIN` is set: a person is waiting."""
START_SECONDS = 30.0
WORKER_MARGIN = 0.8
"""Additional seconds before a worker is killed."""
VALKEY_SECONDS = 0.9
"""How long Valkey may take to save and end. With the default drain, everything ends within ten seconds."""

HURRY_SECONDS = 3.0
"""How long workers have after a second signal to record which calls they interrupted."""

OUTLIVED_BEATS = 3
"""How many heartbeats after a worker's death its calls are settled: by then the database shows who outlived it.

Without that, the death would not count among those that make a call a suspect.
"""

ASYNC_CONCURRENCY = 200
_TEND_SECONDS = 0.2
_SIGNAL_SECONDS = 0.05
_POLL_SECONDS = 0.02
_PID_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    name: str
    lane: Lane
    queues: tuple[str, ...]
    concurrency: int
    tools: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        tools = (word for reference in self.tools for word in ("--tools", reference))
        queues = ("--queues", ",".join(self.queues))
        return ["--lane", self.lane, *queues, "--concurrency", str(self.concurrency), *tools]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """What runs where. URLs carry no passwords."""

    home: Path
    pid: int
    broker: str
    database: str
    processes: tuple[ProcessStatus, ...]


class EmbeddedStack:
    """Valkey, a migrated database and three workers on this machine, which all end with this process.

    `concurrency` is the number of processes of each process lane, one for each CPU by default. `program` is what forks the
    workers. A broker or database URL in the settings replaces the embedded one. After the start, `settings` name the home
    that the stack holds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tools: Sequence[str] = (),
        concurrency: int | None = None,
        program: Sequence[str] = FORK_SERVER,
    ) -> None:
        is_set = "drain" in settings.model_fields_set
        self.settings = settings if is_set else settings.model_copy(update={"drain": DRAIN_SECONDS})
        self.program = program
        self.plans = plan_workers(tuple(tools), concurrency or os.cpu_count() or 1)
        self._lock: HomeLock | None = None
        self._spawner = Spawner()
        self._valkey: SupervisedProcess | None = None
        self._forks: WorkerForks | None = None
        self._workers: list[SupervisedWorker] = []
        self._tender: threading.Thread | None = None
        self._ended = threading.Event()
        # Plain flags: a signal handler may set them while any lock is held.
        self._is_signalled = False
        self._is_hurried = False

    @property
    def workers(self) -> tuple[ProcessStatus, ...]:
        return tuple(worker.status() for worker in self._workers)

    def status(self) -> StackStatus:
        broker = (self._valkey.status(),) if self._valkey else ()
        return StackStatus(
            home=self.settings.home,
            pid=os.getpid(),
            broker=without_passwords(self.settings.broker),
            database=without_passwords(self.settings.database),
            processes=broker + self.workers,
        )

    def run(self, on_ready: Callable[[StackStatus], None] = lambda _: None) -> None:
        """Start, call `on_ready`, and keep running until Ctrl-C, SIGTERM or SIGHUP; then stop. A second signal hurries.

        Only in the main thread. A signal during the start stops what has started so far.

        Raises:
            StackError: it cannot start; nothing is left running.
        """
        with handled(not_ignored(*ENDINGS), self._ask_to_stop):
            try:
                self.start()
                if not self._is_signalled:
                    on_ready(self.status())
                while not self._is_signalled:
                    time.sleep(_SIGNAL_SECONDS)
            except StackError:
                if not self._is_signalled:
                    raise
            finally:
                self.stop()

    def start(self) -> Self:
        """Start everything and return; a thread restarts processes that die."""
        try:
            self._take_home()
            log = self.settings.home / "logs" / "workers.log"
            self._forks = WorkerForks(self.program, server_environment(), log)
            self._forks.prepare()  # it imports meanwhile
            if not self.settings.broker_url:
                self._start_valkey()
            migrate.upgrade(self.settings.migration_database)
            ensure_key(self.settings)
            if self._valkey:  # only now: it loads its data while the database is migrated
                self._await_answer(self._valkey)
            if not self._is_signalled:
                self._start_workers()
        except BaseException:
            self.stop()
            raise
        return self

    def declare_ready(self) -> None:
        """Tell commands that the workers serve; whoever started the stack knows, and says so once."""
        if (lock := self._lock) is not None:
            lock.declare_ready()

    def hurry(self) -> None:
        """Do what a second signal does."""
        self._is_hurried = True

    def stop(self) -> None:
        """Stop workers, then Valkey, and free the folder: within `Settings.drain` plus two seconds, without leftovers."""
        self._ended.set()
        if self._tender is not None:
            self._tender.join()
            self._tender = None
        # The launchers kill at the end of the grace period: one that is there much longer is stuck.
        self._end(self._workers, self.settings.drain + WORKER_MARGIN + 0.2)
        if self._forks is not None:
            self._forks.close()
        if self._valkey is not None:
            self._end([self._valkey], VALKEY_SECONDS)
        self._spawner.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def make_workers(self, forks: WorkerForks, **overrides: object) -> list[SupervisedWorker]:
        """Return the workers of each plan, not started, with the stack's settings and these `overrides`."""
        settings = self.settings.model_copy(update=overrides)
        return [
            SupervisedWorker(
                plan.name,
                plan.arguments,
                forks=forks,
                died=self.died,
                log=settings.home / "logs" / f"{plan.name}.log",
                environment=worker_environment(settings),
                grace=self.settings.drain + WORKER_MARGIN,
            )
            for plan in self.plans
        ]

    def start_workers(self, forks: WorkerForks) -> None:
        """Start the first workers; a subclass may start them differently."""
        self._workers += self.make_workers(forks)
        for worker in self._workers:
            worker.start()

    def tend(self) -> None:
        """Restart what has died, and settle what it ran; called all the time."""
        for process in (*self._workers, *([self._valkey] if self._valkey else [])):
            process.tend()

    def _take_home(self) -> None:
        """Take the home of this folder; if a copy of the folder took it first, a new one."""
        settings, marker = self.settings, self.settings.marker
        home = open_home(settings.home if marker is None else marker.home)
        if marker is not None:
            marker.write()
        try:
            self._lock = HomeLock(home).acquire(lambda: self._is_signalled)
        except StackError:
            if settings.marker == marker:
                raise
            self._take_home()
            return
        if marker is not None:
            marker.keep()
            if "workspace" not in settings.model_fields_set:
                settings = settings.model_copy(update={"workspace": marker.folder})
            if marker.copied_from:
                logger.warning(
                    "%s is a copy of %s, which keeps the stack; this folder gets a new one with its own history: %s",
                    *(marker.folder, marker.copied_from, home),
                )
        self.settings = settings.model_copy(update={"home": home})

    def _start_valkey(self) -> None:
        home = self.settings.home
        socket_path = broker_socket(home)
        prepare_socket(socket_path, home)
        held = self._lock.server_fd if self._lock else None  # as long as it lives; it reads nothing from there
        self._valkey = SupervisedProcess(
            "valkey",
            valkey.server_argv(valkey.find_server(), home / "valkey", socket_path),
            log=home / "logs" / "valkey.log",
            environment=server_environment(),
            grace=VALKEY_SECONDS,
            stdin=held,
            spawner=self._spawner,
        )
        self._valkey.start()

    def _await_answer(self, server: SupervisedProcess) -> None:
        data = self.settings.home / "valkey" / "appendonlydir"
        is_there = self._answers_in_time(server)
        if not is_there and not server.is_alive and data.exists():
            shutil.rmtree(data)
            server.forget()
            server.start()
            logger.warning("Valkey's data were removed, since it did not start with them: the database has every call")
            is_there = self._answers_in_time(server)
        if not is_there:
            server.forget()
            raise StackError(
                f"Valkey did not start ({server.status().last_exit or 'no answer'}). The end of {server.log}:\n"
                f"{server.last_words()}\n"
                "Fix what it reports, or set FORGE_BROKER_URL to a Redis, Valkey or RabbitMQ that runs."
            )

    def _answers_in_time(self, server: SupervisedProcess) -> bool:
        socket_path, deadline = broker_socket(self.settings.home), time.monotonic() + START_SECONDS
        while not self._is_signalled and server.is_alive and time.monotonic() < deadline:
            if valkey.answers(socket_path):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _start_workers(self) -> None:
        if self._forks is not None:
            self.start_workers(self._forks)
        deadline = time.monotonic() + _PID_SECONDS  # a status is to have their process ids
        while any(worker.is_alive and worker.pid is None for worker in self._workers) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._tender = threading.Thread(target=self._tend, name="forge-tools-stack", daemon=True)
        self._tender.start()

    def _tend(self) -> None:
        while not self._ended.wait(_TEND_SECONDS):
            self.tend()

    def died(self, worker: SupervisedWorker, code: int) -> None:
        """Settle what a worker ran that has ended, long before others may conclude that from its silence."""
        settling = threading.Thread(
            target=self._settle_later, args=(worker.instance,), name="forge-tools-settle", daemon=True
        )
        try:
            settling.start()
        except RuntimeError as error:  # no more threads; whoever calls this is to go on
            _leave(worker.instance, error)

    def _settle_later(self, instance: str) -> None:
        if self._ended.wait(OUTLIVED_BEATS * self.settings.heartbeat):
            return  # the workers of the next start settle them
        try:
            end(instance_mark(instance))  # the launcher has ended its tree; a tool may have left something outside
            requeued, lost = asyncio.run(self._recover(instance))
        except (ForgeError, OSError, RuntimeError, MemoryError) as error:
            _leave(instance, error)
            return
        if requeued or lost:
            counts = {"worker": instance, "requeued": len(requeued), "lost": len(lost)}
            logger.warning("The executions of a dead worker are settled", extra=counts)

    async def _recover(self, instance: str) -> tuple[list[str], list[str]]:
        settings = self.settings
        async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
            return await store.transitions.recover(instance, "its process ended")

    def _end(self, processes: Sequence[SupervisedProcess], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in processes:
            process.terminate()
        is_hurrying = False
        while any(process.is_alive for process in processes):
            if self._is_hurried and not is_hurrying:
                is_hurrying, deadline = True, min(deadline, time.monotonic() + HURRY_SECONDS)
                for process in processes:
                    process.terminate()  # again: a second SIGTERM makes a worker cut its calls off
            if time.monotonic() > deadline:
                for process in processes:
                    process.kill()
            time.sleep(_POLL_SECONDS)
        for process in processes:
            process.forget()

    def _ask_to_stop(self, _number: int, _frame: object) -> None:
        self._is_hurried = self._is_signalled
        self._is_signalled = True


def _leave(instance: str, error: Exception) -> None:
    facts = {"worker": instance, "error": str(error)}
    logger.warning("What a dead worker ran is left to the others, after its lease", extra=facts)


def plan_workers(tools: tuple[str, ...], concurrency: int) -> tuple[WorkerPlan, ...]:
    """Plan three workers: background calls of the process lane have their own processes and never delay default ones."""
    both, default, background = ("default", "background"), ("default",), ("background",)
    return (
        WorkerPlan(name="async", lane="async", queues=both, concurrency=ASYNC_CONCURRENCY, tools=tools),
        WorkerPlan(name="process", lane="process", queues=default, concurrency=concurrency, tools=tools),
        WorkerPlan(name="background", lane="process", queues=background, concurrency=concurrency, tools=tools),
    )


def forget(settings: Settings) -> tuple[Path, ...]:
    """Remove `.forge` and the home that it names, with the history in it; return what was removed."""
    marker = settings.marker
    if marker is None:
        raise StackError(
            f"FORGE_HOME names {settings.home}, and only a home that .forge names is forgotten. Remove it yourself, "
            "or unset FORGE_HOME."
        )
    removed = [*filter(Path.is_dir, (marker.home,)), *filter(Path.is_file, (marker.file,))]
    if marker.home in removed:
        lock = HomeLock(open_home(marker.home)).acquire()
        try:
            with explained(marker.home):
                shutil.rmtree(marker.home)
            broker_socket(marker.home).unlink(missing_ok=True)
        finally:
            lock.release()
    marker.remove()
    return tuple(removed)


def server_environment() -> Mapping[str, str]:
    """Return our own environment without the variables of forge_tools."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}


def worker_environment(settings: Settings) -> Mapping[str, str]:
    """Return our own environment with exactly these settings."""
    return {**os.environ, **settings_environment(settings)}


def settings_environment(settings: Settings) -> Mapping[str, str]:
    """Return the variables that give a child process in this folder exactly these settings, except the project's own."""
    prefix = settings.model_config["env_prefix"]
    values = settings.model_dump(mode="json", exclude={"project", "tools"})
    return {
        f"{prefix}{name}".upper(): value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if value is not None  # a variable would be read as the text "null"
    }


def ensure_key(settings: Settings) -> None:
    """Create and publish a key if clients have none to encrypt with, or if this stack's workers do not hold it."""
    with ThreadPoolExecutor(1) as thread:  # the caller may have a running loop
        thread.submit(lambda: asyncio.run(_ensure_key(settings))).result()


async def _ensure_key(settings: Settings) -> None:
    folder = KeyFolder(settings.keys_folder)
    async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
        current = (await store.directories.read()).encryption_key
        if current is not None and (not settings.is_embedded or current.id in folder.ids()):
            return
        public = folder.new()
        await store.encryption_keys.publish(key_id(public), public)
