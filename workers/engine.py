"""The engine: one loop on its own thread does all of a worker's SQL, heartbeats and notifications, under a watchdog."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from forge_tools.artifacts.parts import folder_of
from forge_tools.errors import DatabaseUnavailableError, ForgeError
from forge_tools.sandbox.processes.endings import end
from forge_tools.sandbox.processes.environment import instance_mark
from forge_tools.sandbox.walls.cgroups import Limits
from forge_tools.storage import open_store
from workers.outcomes import ends_of_cut, stopped
from workers.watchdog import FAREWELL
from workers.worker import Setup, Worker

T = TypeVar("T")

START_DEADLINE = 60.0
DATABASE_SECONDS = 30.0
"""How long a worker that starts waits for a database that does not answer yet."""

AGAIN_SECONDS = 0.5
STOP_MARGIN = 5.0
WARNING_SECONDS = 10.0
"""How long before calls are cut off the log names them."""

LEAVE_SECONDS = 20.0

THREADS = min(32, (os.cpu_count() or 1) + 4)
"""For what blocks: as many as Python's default."""

WATCHDOG = str(Path(__file__).with_name("watchdog.py"))
WATCHDOG_END_SECONDS = 2.0

logger = logging.getLogger(__name__)


class Engine:
    """Starts a worker on its thread and stops it. Bodies run in its lane, never on its loop."""

    worker: Worker
    """Set once it has started."""

    def __init__(self, setup: Setup, *, is_watched: bool = False, leave: Callable[[], None] = lambda: None) -> None:
        """`leave` is called once it claims no more."""
        settings = setup.settings
        self.worker_id = setup.worker_id
        self.is_broken = False
        """Whether it ended by its own fault."""
        self._setup = setup
        self._leave_claims = leave
        self._kill_grace = settings.kill_grace
        self._lifeline = Lifeline(settings.lease if is_watched else None)
        self._thread = threading.Thread(target=self._serve, name="forge-engine", daemon=True)
        self._ready: Future[None] = Future()
        self._over = asyncio.Event()
        self._waits_until: float | None = None
        self._drain = settings.drain
        self._drained_by = self._ended_by = float("inf")
        self._winding_down: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, start the lane, register this worker instance, publish the catalogue.

        A database that does not answer is waited for, for `DATABASE_SECONDS`.

        Raises:
            ForgeError: why this worker cannot start, worded for an operator.
        """
        self._thread.start()
        try:
            self._ready.result(timeout=START_DEADLINE)
        except TimeoutError as error:
            raise ForgeError(
                f"The worker is not ready after {START_DEADLINE:g}s: the database hangs, or the initialize() of a tool, "
                "which the log then names."
            ) from error

    def stop(self, drain: float | None = None) -> None:
        """Stop claiming, let bodies finish within `drain` seconds (a second stop may shorten it), record the rest; bounded.

        Without `drain` they have `FORGE_DRAIN` seconds. It returns as soon as they have ended, which their own timeouts
        ensure.
        """
        if not self._ready.done() or self._ready.exception() is not None:
            return
        drain = self._drain if drain is None else drain
        self._ended_by = min(self._ended_by, time.monotonic() + drain + 3 * self._kill_grace + STOP_MARGIN)
        work = self._stop(drain)
        try:
            stopping = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop has ended
            work.close()
        else:
            with suppress(TimeoutError, CancelledError):
                stopping.result(timeout=max(0.0, self._ended_by - time.monotonic()))
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(timeout=max(0.0, self._ended_by + STOP_MARGIN - time.monotonic()))

    # The thread.

    def _serve(self) -> None:
        try:
            # At its end the runner cancels what is left, so that no thread waits for it in vain.
            with self._lifeline, asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._live())
        except BaseException as error:  # whatever ends this thread ends the worker
            logger.critical("The engine's thread failed; this worker ends", exc_info=error)
            if not self._ready.done():
                self._ready.set_exception(error)
        if self._ready.exception() is None and not self._over.is_set():  # nobody told it to stop
            end_process(self.worker_id)

    async def _live(self) -> None:
        try:
            asyncio.get_running_loop().set_default_executor(_with_all_threads())
            await self._open()
        except BaseException as error:  # noqa: BLE001 the starter reports whatever keeps the engine from starting
            self._ready.set_exception(error)
            return
        beating = asyncio.create_task(self._lifeline.beat_for_ever(self._setup.settings.heartbeat))
        self._ready.set_result(None)
        await self._over.wait()
        beating.cancel()

    async def _open(self) -> None:
        settings = self._setup.settings
        connect = partial(
            open_store,
            settings.database,
            connect_timeout=settings.connect_timeout,
            patience=None,  # claims and outcomes outlast any outage of the database
            artifact_dir=folder_of(settings),
        )
        store = await self._repeated(connect)
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(store.close)
            store.load()
            self.worker = Worker(self._setup, store, self)
            on_failure.push_async_callback(self.worker.lane.stop)
            await self.worker.lane.start(self.worker)
            await self._repeated(self.worker.start)
            on_failure.pop_all()

    async def _repeated(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat a step of the start while the database does not answer, for `DATABASE_SECONDS` in all."""
        while True:
            try:
                return await step()
            except DatabaseUnavailableError as error:
                now = time.monotonic()
                if not error.may_pass or (self._waits_until is not None and now >= self._waits_until):
                    raise
                if self._waits_until is None:
                    self._waits_until = now + DATABASE_SECONDS
                    facts = {"seconds": DATABASE_SECONDS, "error": error.message}
                    logger.warning("The database does not answer; this worker waits for it", extra=facts)
            await asyncio.sleep(AGAIN_SECONDS)

    # Stopping: one wind-down, however many ask for it.

    async def _stop(self, drain: float) -> None:
        self._drained_by = min(self._drained_by, time.monotonic() + drain)
        self.worker.claims.close()  # after that: it wakes a wind-down under way, which then sees the shorter time
        self._leave_claims()
        if self._winding_down is None:
            facts = {"running": len(self.worker.lane.running()), "seconds": round(self._drained_by - time.monotonic())}
            logger.info("Worker stops; running calls may finish, unless a second signal ends them", extra=facts)
            self._winding_down = asyncio.create_task(self._wind_down())
        await asyncio.shield(self._winding_down)  # `_leave` gives up after a while, but others still wait for it

    async def _wind_down(self) -> None:
        worker = self.worker
        await self._let_bodies_end()
        for claim in await worker.lane.stop():
            worker.recorder.add(stopped(claim, self._setup.settings.hostname))
        await worker.activity.until(worker.is_at_rest, self._kill_grace + STOP_MARGIN)
        await worker.stop()
        worker.recorder.give_up()

    async def _let_bodies_end(self) -> None:
        """Wait for bodies while they have time, and log in advance which calls are about to be cut off."""
        worker, warned_by = self.worker, float("inf")
        if worker.lane.running() and self._drained_by > time.monotonic():
            # Its bodies may take long, and nobody is to count on it for its queues meanwhile.
            await worker.bounded(worker.store.workers.withdraw(worker.id))
        while running := worker.lane.running():
            left = max(0.0, self._drained_by - time.monotonic())
            is_near = left <= WARNING_SECONDS
            if is_near and self._drained_by < warned_by:
                warned_by = self._drained_by
                ends = ends_of_cut(running, self._setup.settings.hostname)
                logger.warning(
                    "Calls will be stopped unless they end before", extra={"in_seconds": round(left), **ends}
                )
            if not left:
                return
            await worker.activity.until(
                lambda: not worker.lane.running() or self._drained_by <= time.monotonic(),
                left if is_near else left - WARNING_SECONDS,
            )

    # What cannot go on.

    def replace_process(self, why: str) -> None:
        """End this process by force, after a bounded time for its last steps: one of its threads will not come back."""
        self._leaving = asyncio.create_task(self._leave(why))

    def broken(self, error: BaseException) -> None:
        """End this worker, which would only look alive without its engine, so that its supervisor starts another."""
        logger.critical("The engine failed; this worker ends", exc_info=error)
        self.is_broken = True
        self._drain = min(self._drain, self._setup.settings.lease)  # after that, others may take it for dead
        os.kill(os.getpid(), signal.SIGTERM)

    async def _leave(self, why: str) -> None:
        """Leave, first ending what its tools left running: nobody looks after a worker that has settled its calls."""
        logger.critical("This worker ends, so that its supervisor starts a new one", extra={"why": why})
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                for step in (self.worker.tools.settle(), self._stop(0)):
                    with suppress(ForgeError):
                        await step
        finally:
            end_process(self.worker_id)


def _with_all_threads() -> ThreadPoolExecutor:
    """Return an executor that starts no thread any more: a tool may leave room for none, just when it is to be ended."""
    executor, are_started = ThreadPoolExecutor(THREADS, "forge-blocking"), threading.Event()
    try:
        for _ in range(THREADS):
            executor.submit(are_started.wait)  # so none is idle, and the next one starts another
    finally:
        are_started.set()
    return executor


def end_process(worker_id: str) -> NoReturn:
    """End what the tools of this process left running, and then this process, whatever its threads do."""
    try:
        with suppress(OSError):
            end(instance_mark(worker_id))
            Limits.given().end_worker(worker_id)
    finally:
        os._exit(os.EX_TEMPFAIL)


class Lifeline:
    """While entered, a watchdog kills this process after `limit` seconds without a beat.

    It also kills it if our end of the socket closes without the farewell that is sent on leaving without an exception.
    Forked children close the sockets they inherit, so the watchdog sees our end whoever outlives us.
    With `limit` None, or without /proc, there is no watchdog.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit if Path("/proc/self/stat").exists() else None
        self._lifeline: socket.socket | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def watchdog(self) -> int | None:
        """The pid of the watchdog."""
        return None if self._watchdog is None else self._watchdog.pid

    def __enter__(self) -> Self:
        if self._limit is None:
            return self
        self._lifeline, theirs = socket.socketpair()
        self._lifeline.settimeout(0)
        facts = [theirs.fileno(), os.getpid(), self._limit]
        try:
            with theirs:
                self._watchdog = subprocess.Popen(
                    [sys.executable, "-I", "-S", WATCHDOG, *map(str, facts)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is meant for the worker, which then drains
                )
        except OSError as error:
            logger.warning("This worker runs without its watchdog", extra={"error": str(error)})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lifeline is not None:
            with suppress(OSError):
                if kind is None:
                    self._lifeline.send(FAREWELL)
            self._lifeline.close()
        if self._watchdog is None or kind is not None:
            return
        try:
            self._watchdog.wait(WATCHDOG_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()

    def beat(self) -> None:
        """Signal that this process is alive. A watchdog that is gone or behind is no reason to stop."""
        if self._lifeline is not None:
            with suppress(OSError):
                self._lifeline.send(b".")

    async def beat_for_ever(self, seconds: float) -> None:
        """Send a beat whenever the loop gets to it, whatever the database does."""
        while True:
            self.beat()
            await asyncio.sleep(seconds)
