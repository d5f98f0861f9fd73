"""The engine: one service loop on its own thread does all SQL, heartbeat, notifications, cancel watch and recovery."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from forge_tools import __version__
from forge_tools.broker import open_broker, queue_name
from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.executor import ToolExecutor
from forge_tools.records import Lane, Outcome, Scope, Wakeup, WorkerRecord, new_id
from forge_tools.registry import ScopedRegistry
from forge_tools.sandbox.configured import announced
from forge_tools.storage import open_store
from workers.affinity import Affinity
from workers.artifacts import ArtifactDesk
from workers.cancels import Cancels
from workers.changes import Changes
from workers.claiming import Claiming
from workers.clocks import ClockWatch
from workers.consumption import Consumption
from workers.demotion import Demotion, end_process, leave
from workers.fitness import Fitness
from workers.hosting import Hosting
from workers.lanes.base import BodyLane
from workers.lanes.children import ChildrenLane
from workers.lanes.loop import LoopLane
from workers.offering import Offering
from workers.opening import Opening
from workers.outcomes import ends_of_cut, stopped
from workers.pulse import Pulse
from workers.reception import Reception
from workers.recorder import Recorder
from workers.recovery import Recovery
from workers.reports import ReportDesk
from workers.retention import Keeper
from workers.rolling import Rolling
from workers.sealing import Sealing, signer_of
from workers.shells import Book, ShellWatch
from workers.tidying import Tidying
from workers.withdrawal import Withdrawal

START_DEADLINE = 60.0
STOP_MARGIN = 5.0
WARNING_SECONDS = 10.0
"""How long before calls are cut the log names them."""

LEISURE_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What one worker process is there for."""

    lane: Lane
    queues: tuple[str, ...]
    concurrency: int


class Engine:
    """Its parts claim, hand over and record. Bodies run in its lane, never on its loop."""

    def __init__(
        self,
        settings: Settings,
        post: Post,
        executor: ToolExecutor,
        *,
        is_watched: bool = False,
        book: Book | None = None,
        artifacts: ArtifactDesk | None = None,
        secrets: Mapping[str, str] | None = None,
        hosting: Hosting | None = None,
    ) -> None:
        self.boot = new_id()
        self._artifacts = artifacts or ArtifactDesk(settings)
        self._book = book
        self._settings = settings
        self._post = post
        self._offering = Offering(settings, self.boot, executor)
        self._hosting = hosting or Hosting(None, ScopedRegistry())
        self._scope = Scope(
            boot=self.boot,
            hostname=settings.hostname,
            pid=os.getpid(),
            lane=post.lane,
            queues=post.queues,
            tool_keys=self._offering.keys,
        )
        self.reception = Reception()
        self._changes = Changes()
        self._reports = ReportDesk()
        self._broker = open_broker(settings.broker)
        self._recorder = Recorder(
            self._broker,
            self._changes.announce,
            retry_seconds=settings.heartbeat,
            tells_results=settings.result_notifications,
            requeued=self._changes.due_in,
            before=self._reports.settle,
        )
        hosted = self._offering.hosted
        self._demotion = Demotion(hosted if post.lane == "async" else {})
        self._withdrawal = Withdrawal(hosted)
        self._opening = Opening(settings, hosted, secrets or {})
        self._affinity = Affinity(
            self._scope, announced(settings), self._recorder, lease=settings.lease, heartbeat=settings.heartbeat
        )
        self.fitness = Fitness(self._is_acknowledged, self._changes.announce, lambda: bool(self.lane.running()))
        self._claiming = Claiming(
            settings,
            self._scope,
            self.fitness,
            recorder=self._recorder,
            demotion=self._demotion,
            changes=self._changes,
            affinity=self._affinity,
            withdrawal=self._withdrawal,
        )
        self.lane: BodyLane = self._make_lane(executor)
        self.lane.begin_reports = self._reports.begin
        self._pulse = Pulse(settings.lease if is_watched else None)
        self._consumption = Consumption(
            settings.broker, [queue_name(queue, post.lane) for queue in post.queues], settings.consumption_interval
        )
        self._thread = threading.Thread(target=self._serve, name="forge-engine", daemon=True)
        self._ready: Future[None] = Future()
        self._over = asyncio.Event()
        self._acknowledged_at = 0.0
        self._drain = settings.drain
        self._drained_by = self._ended_by = float("inf")
        self._winding_down: asyncio.Task[None] | None = None
        self.is_broken = False
        """Whether it ended by a fault of its own."""

    def start(self) -> None:
        """Connect, register this boot, publish the catalogue, start the lane.

        Raises:
            ForgeError: what keeps this worker from starting, said for an operator.
        """
        self._thread.start()
        try:
            self._ready.result(timeout=START_DEADLINE)
        except TimeoutError as error:
            raise ForgeError(
                f"The worker is not ready after {START_DEADLINE:g}s: the database, or the initialize() of a tool, hangs."
            ) from error

    def take(self, wakeups: list[Wakeup], queue: str, *, is_bulk: bool, taken: Callable[[], None]) -> None:
        """Have what a message that came by `queue` names claimed; returns at once. Called on the thread that receives.

        `taken` is called when the broker may send the next one: at once, or once slots were free for this one.
        """
        if self._claiming.has_room():
            taken()
            taken = _nothing
        receive = partial(self._claiming.receive, wakeups, queue, is_bulk=is_bulk, taken=taken)
        try:
            self._loop.call_soon_threadsafe(receive)
        except RuntimeError:  # the loop has ended; SQL keeps the rows
            taken()

    def stop(self, drain: float | None = None) -> None:
        """Stop claiming, let bodies finish within `drain` seconds (a second stop may shorten it), record the rest; bounded.

        Without `drain` they have what `FORGE_DRAIN` says. It returns as soon as they have ended, which their own timeouts see to.
        """
        if not self._ready.done() or self._ready.exception() is not None:
            return
        drain = self._drain if drain is None else drain
        self._ended_by = min(self._ended_by, time.monotonic() + drain + 3 * self._settings.kill_grace + STOP_MARGIN)
        stopping = self._on_engine(self._stop(drain))
        if stopping is not None:
            with suppress(TimeoutError, CancelledError):
                stopping.result(timeout=max(0.0, self._ended_by - time.monotonic()))
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(timeout=max(0.0, self._ended_by + STOP_MARGIN - time.monotonic()))

    def _on_engine(self, work: Coroutine[Any, Any, None]) -> Future[None] | None:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop has ended
            work.close()
            return None

    def _make_lane(self, executor: ToolExecutor) -> BodyLane:
        if self._post.lane == "process":
            return ChildrenLane(
                self._claiming.claim_woken,
                self._finished,
                hostname=self._settings.hostname,
                opened=self._changes.announce,
                answer=self._artifacts.answer_child,
                ladder=self._settings.ladder,
                max_output_bytes=self._settings.max_output_bytes,
                memory_limit=self._settings.tool_memory,
            )
        lane = LoopLane(
            executor,
            self._finished,
            concurrency=self._post.concurrency,
            ladder=self._settings.ladder,
            max_output_bytes=self._settings.max_output_bytes,
            demote=self._demotion.note,
            replace_process=self._leave,
        )
        self._demotion.ban = lane.ban
        return lane

    def _finished(self, outcome: Outcome) -> None:
        self.fitness.hear(outcome)
        self._recorder.add(outcome)

    def _serve(self) -> None:
        try:
            # The runner cancels at its end what is left, so that no thread waits for it in vain.
            with self._pulse, asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._live())
        except BaseException as error:  # whatever ends this thread ends the worker
            logger.critical("The engine's thread failed; this worker ends", exc_info=error)
            if not self._ready.done():
                self._ready.set_exception(error)
        if self._ready.exception() is None and not self._over.is_set():  # nobody told it to stop
            end_process(self.boot)

    async def _live(self) -> None:
        try:
            await self._open()
        except BaseException as error:  # noqa: BLE001 whatever keeps the engine from starting is the starter's to report
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        await self._over.wait()

    async def _open(self) -> None:
        settings = self._settings
        self._store = await open_store(
            settings.database,
            connect_timeout=settings.connect_timeout,
            patience=None,
            artifact_dir=settings.artifact_dir,
        )
        try:
            await self._begin()
        except BaseException:
            await self.lane.stop()
            await self._store.close()
            raise

    async def _begin(self) -> None:
        if self._book is not None:
            self._book.open(self._store.shells)
        self._artifacts.open(self._store)
        self._reports.open(self._store)
        await self.lane.start()
        await self._store.workers.register(
            WorkerRecord(
                id=self.boot,
                hostname=self._settings.hostname,
                pid=os.getpid(),
                lane=self._post.lane,
                queues=self._post.queues,
                concurrency=self._post.concurrency,
                version=__version__,
                servers=self._hosting.states(),
            )
        )
        await self._affinity.announce(self._store)
        await self._opening.check(self._store)
        await self._offer()
        self._acknowledged_at = time.monotonic()
        beat, lease = self._settings.heartbeat, self._settings.lease
        recovery = Recovery(self._store, self.boot, lease, ClockWatch(self._store, self.boot, lease))
        watch = ShellWatch(self._store.shells, self._settings, self.boot, lambda: recovery.living)
        past = (self._store, self.boot, self._settings, signer_of(self._settings), lambda: recovery.living)
        sealing = Sealing(*past, is_idle=self._has_leisure)
        tidying = Tidying(self._store, self.boot, lambda: recovery.living, lease)
        self._claiming.open(self._store, self._broker, self.lane, self._opening)
        services = (
            self._recorder.run(self._store),
            self._reports.write_for_ever(),
            self._look_for_ever(recovery, sealing, tidying),
            Cancels(self._broker, self.boot, self._store, self.lane).keep(),
            self._claiming.pull_for_ever(),
            recovery.keep(self._recorder.tell),
            self._demotion.keep(self._store, 2 * beat),
            tidying.keep(),
            self.fitness.keep(self._store, self.boot, beat),
            watch.keep(),
            self._artifacts.purge_for_ever(),
            sealing.keep(),
            Keeper(*past).keep(),
            self._hosting.keep(self._store, self.boot, self._offer, beat),
            Rolling(self._store, self.boot, lambda: recovery.living).keep(),
            self._consumption.leave_when_deaf(self._claiming.is_idle, lambda: self._claiming.woken_at),
        )
        self._pulsing = asyncio.create_task(self._pulse.beat_for_ever(beat))
        self._services = [asyncio.create_task(service) for service in services]
        for service in self._services:
            service.add_done_callback(self._end_process_if_broken)

    async def _offer(self) -> None:
        await self._offering.renew(self._store, self._demotion, self._withdrawal, self._claiming)

    # Stopping: one winding down, however many ask for it.

    async def _stop(self, drain: float) -> None:
        self._drained_by = min(self._drained_by, time.monotonic() + drain)
        await self._claiming.close()
        if self._winding_down is None:
            facts = {"running": len(self.lane.running()), "seconds": round(self._drained_by - time.monotonic())}
            logger.info("Worker stops; what runs may finish, unless a second signal cuts it", extra=facts)
            self._winding_down = asyncio.create_task(self._wind_down())
        await asyncio.shield(self._winding_down)

    def _is_at_rest(self) -> bool:
        """Whether nothing of a call is on its way to or from SQL; bodies may run."""
        return self._claiming.is_quiet and self._recorder.is_idle

    def _has_leisure(self) -> bool:
        """Whether no message came for a while: what takes long on the engine's loop would delay calls that come singly."""
        return self._is_at_rest() and time.monotonic() - self._claiming.woken_at > LEISURE_SECONDS

    async def _wind_down(self) -> None:
        await self._let_bodies_end()
        for claim in await self.lane.stop():
            self._recorder.add(stopped(claim, self._settings.hostname))
        await self._changes.until(self._is_at_rest, self._settings.kill_grace + STOP_MARGIN)
        for service in self._services:
            service.cancel()
        await asyncio.gather(*self._services, return_exceptions=True)
        await self._bounded(self._store.workers.stop(self.boot))
        await self._broker.close()
        await self._store.close()

    async def _let_bodies_end(self) -> None:
        """Wait for them while they have time, and say in advance which calls are about to be cut."""
        warned_by = float("inf")
        if self.lane.running() and self._drained_by > time.monotonic():
            await self._bounded(self._store.workers.withdraw(self.boot))
        while running := self.lane.running():
            left = max(0.0, self._drained_by - time.monotonic())
            is_near = left <= WARNING_SECONDS
            if is_near and self._drained_by < warned_by:
                warned_by = self._drained_by
                ends = ends_of_cut(running, self._settings.hostname)
                logger.warning("Calls are cut unless they end before", extra={"in_seconds": round(left), **ends})
            if not left:
                return
            await self._changes.until(self._is_drained, left if is_near else left - WARNING_SECONDS)

    def _is_drained(self) -> bool:
        return not self.lane.running() or self._drained_by <= time.monotonic()

    async def _bounded(self, step: Coroutine[Any, Any, None]) -> None:
        """Take a step that a database which is away does not hold up."""
        with suppress(ForgeError, TimeoutError):
            async with asyncio.timeout(self._settings.kill_grace):
                await step

    def _leave(self, why: str) -> None:
        self._leaving = asyncio.create_task(leave(why, self.boot, self._demotion.step(self._store), self._stop(0)))

    # Watching: one statement a heartbeat says that we live, and brings what everybody here judges by.

    async def _look_for_ever(self, recovery: Recovery, sealing: Sealing, tidying: Tidying) -> None:
        while True:
            question = replace(self._claiming.question(sealing.question()), dropped=self.reception.dropped)
            recovery.ask()
            sent_at = time.monotonic()  # not when the answer came: in between this process may have been suspended
            try:
                look = await self._store.workers.look(question)
                if time.monotonic() - self._acknowledged_at > self._settings.lease:  # when it came: they judge by that
                    await self._affinity.renew(self._store)
            except ForgeError as error:
                recovery.interrupted()
                logger.warning("Heartbeat failed", extra={"error": str(error)})
            else:
                self._acknowledged_at = sent_at
                for wakeup in look.cancels:
                    self.lane.cancel(wakeup.id, wakeup.attempt)
                recovery.hear(look)
                self._demotion.hear(look)
                self._withdrawal.hear(look.disabled, look.pinned)
                self._claiming.hear(question, look)
                sealing.hear(question, look)
                tidying.hear(look)
            await asyncio.sleep(self._settings.heartbeat)

    def _is_acknowledged(self) -> bool:
        return time.monotonic() - self._acknowledged_at <= self._settings.lease

    def _end_process_if_broken(self, service: asyncio.Task[None]) -> None:
        """A worker without its engine would only look alive: end it, so that its supervisor starts another."""
        if not service.cancelled() and service.exception() is not None:
            logger.critical("The engine failed; this worker ends", exc_info=service.exception())
            self.is_broken = True
            self._drain = min(self._drain, self._settings.lease)  # then others may take it for dead
            os.kill(os.getpid(), signal.SIGTERM)


def _nothing() -> None: ...
