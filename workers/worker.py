"""The composition root: one worker, built at once from finished parts when its Store is open."""

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from forge_tools import __version__
from forge_tools.broker.celery_app import open_broker
from forge_tools.broker.message import Message, queue_name
from forge_tools.config import Settings
from forge_tools.errors import ForgeError
from forge_tools.model.calls import DEFAULT_TIMEOUT, ExecutionContext
from forge_tools.model.execution import Scope, Wakeup, new_id
from forge_tools.model.overview import WorkerRecord
from forge_tools.model.tools import Lane
from forge_tools.sandbox.configured import User
from forge_tools.sandbox.reach import Reach
from forge_tools.storage import Store
from forge_tools.storage.heartbeat import Heartbeat, Question
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from workers.artifacts import ArtifactDesk
from workers.claims import Claims, Recorder
from workers.lanes.base import BodyLane
from workers.lanes.children import ChildrenLane
from workers.lanes.loop import LoopLane
from workers.lanes.walls import Walls
from workers.middleware.base import Activity, Middleware
from workers.middleware.decryption import Decryption
from workers.middleware.notifications import Notifications
from workers.middleware.reports import Reports
from workers.middleware.retries import Retries
from workers.middleware.workspaces import Workspaces
from workers.reception import Reception
from workers.remote_store import RemoteStore
from workers.services.fitness import Fitness
from workers.services.polling import Cancels, Delivery, DueCalls, FairShare
from workers.services.recovery import ClockWatch, Recovery
from workers.services.service import Heartbeats, Leadership, Lease, Service, ServiceRunner
from workers.services.shells import DesertedShells, ShellWatch
from workers.services.tools import HostedTools, Servers, ServerTools
from workers.services.upkeep import AuditChain, Expired, Leftovers, Retention, RollUps, signer_of

QUIET_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a worker is built from besides its Store, all made before that is opened."""

    settings: Settings
    lane: Lane
    queues: tuple[str, ...]
    concurrency: int
    executor: ToolExecutor
    artifacts: ArtifactDesk
    remote_store: RemoteStore = field(default_factory=RemoteStore)
    secrets: Mapping[str, str] = field(default_factory=dict)
    servers: Servers | None = None
    registry: ScopedRegistry = field(default_factory=ScopedRegistry)
    """Where the tools of the servers are registered: the executor's registry."""
    reception: Reception = field(default_factory=Reception)
    user: User | None = None
    """Whom children become."""
    worker_id: str = field(default_factory=new_id)

    def scope(self) -> Scope:
        """Return who claims, and where; not yet what."""
        return Scope(
            instance=self.worker_id,
            hostname=self.settings.hostname,
            pid=os.getpid(),
            lane=self.lane,
            queues=self.queues,
            tool_keys=(),
        )


class Supervisor(Protocol):
    """What ends a worker that cannot continue."""

    def broken(self, error: BaseException) -> None:
        """End the worker because a service ended with that error."""

    def replace_process(self, why: str) -> None:
        """End this process, which nothing can repair, so that another takes its place."""


class Worker:
    """Its parts claim, hand over and record; its lane runs bodies, for which it is the host. It lives on the engine's loop."""

    def __init__(self, setup: Setup, store: Store, supervisor: Supervisor) -> None:
        settings, scope = setup.settings, setup.scope()
        self.id = scope.instance
        self.store = store
        self.activity = Activity()
        self.lease = Lease(settings.lease)
        self._setup = setup
        self.broker = open_broker(settings.broker)
        self.lane = lane_of(setup)
        self.tools = HostedTools(store, scope, setup.executor, self.lane.ban, settings)
        self.fitness = Fitness(store, self.id, self.lease, self.activity, self.lane, interval=settings.heartbeat)
        self.reports = Reports(store)
        self.workspaces = Workspaces(store, scope, self.activity, self.send_on, settings)
        self._decryption = Decryption(settings, self.tools.specs, setup.secrets)
        self._notifications = Notifications(self.broker, with_results=settings.result_notifications)
        middleware: list[Middleware] = [  # in the order in which calls pass through them
            self.workspaces,  # first: the key of a call that is sent away may be missing here
            self._decryption,
            self.fitness,
            Retries(),
            self.reports,
            self._notifications,
        ]
        self.recorder = Recorder(store, self.activity, middleware, retry_seconds=settings.heartbeat)
        self.claims = Claims(
            store,
            self.lane,
            lambda: self.tools.scope,
            self.fitness,
            self.recorder,
            activity=self.activity,
            middleware=middleware,
            send_on=self.send_on,
            heartbeat=settings.heartbeat,
            keeps_rest=setup.lane == "process",
        )
        self.leadership = Leadership(self.id)
        self._runner = ServiceRunner(self.leadership, supervisor.broken)

        # The host of its lane: what the lane reports and asks goes directly to the part concerned.
        self.finished, self.begin_reports = self.recorder.add, self.reports.begin
        self.slot_opened, self.demote = self.activity.announce, self.tools.demote
        self.replace_process = supervisor.replace_process

    def _services(self) -> list[Service]:
        setup, store, settings, lead = self._setup, self.store, self._setup.settings, self.leadership
        lease, beat = settings.lease, settings.heartbeat
        signer = signer_of(settings)
        share = FairShare(store, self.tools.scope, heartbeat=beat, lease=lease)
        clocks = ClockWatch(store, self.id, lease)
        queues = [queue_name(queue, setup.lane) for queue in setup.queues]
        services: list[Service] = [
            Cancels(store, self.id, self.broker, self.lane),
            Recovery(store, self.id, lease, clocks, lead, tell=self._notifications.tell),
            self.tools,
            DueCalls(self.claims, share, self.activity),
            self.fitness,
            AuditChain(store, self.id, settings, signer, is_idle=self._is_quiet),
            Leftovers(store, self.id, lead, lease),
            Expired(store),
            RollUps(store),
            Retention(store, self.id, settings, signer),
            ShellWatch(store.shells, settings),
            DesertedShells(store.shells, settings),
            Delivery(settings.broker, queues, self.claims, settings.consumption_interval),
        ]
        if setup.servers is not None:
            services.append(ServerTools(setup.servers, setup.registry, self.tools, store, retry=beat))
        return [Heartbeats(store, beat, self.lease, self._heartbeat, services, lapsed=self.workspaces.renew), *services]

    async def start(self) -> None:
        """Register this worker instance, publish its tools, and begin to run calls; its lane has started.

        It may be repeated if the database failed to answer.
        """
        setup = self._setup
        setup.remote_store.open(self.store)
        await self.store.workers.register(
            WorkerRecord(
                id=self.id,
                hostname=setup.settings.hostname,
                pid=os.getpid(),
                lane=setup.lane,
                queues=setup.queues,
                concurrency=setup.concurrency,
                version=__version__,
                servers=() if setup.servers is None else setup.servers.states(),
                walls=self.tools.walls,
            )
        )
        await self.workspaces.announce()
        await self._decryption.check(self.store)
        await self.tools.publish()
        self.lease.renew(time.monotonic())  # registering set `last_seen_at`, as a heartbeat does
        self._runner.start(self._services(), self.recorder.run(), self.reports.run())

    async def stop(self) -> None:
        """End the services, record that this worker instance stopped, and close what it has open."""
        await self._runner.stop()
        await self.bounded(self.store.workers.stop(self.id))
        await self.broker.close()
        await self.store.close()

    async def bounded(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step, without letting an unreachable database hold it up."""
        with suppress(ForgeError, TimeoutError):
            async with asyncio.timeout(self._setup.settings.kill_grace):
                await step

    def is_at_rest(self) -> bool:
        """Return whether nothing of a call is on its way to or from SQL; bodies may run."""
        return self.activity.is_quiet and self.recorder.is_idle

    def _is_quiet(self) -> bool:
        """Return whether no message came for a while: slow work on the engine's loop would delay single calls."""
        return self.is_at_rest() and time.monotonic() - self.claims.woken_at > QUIET_SECONDS

    def _heartbeat(self, questions: tuple[Question[Any], ...]) -> Heartbeat:
        dropped, answering = self._setup.reception.dropped, self.lane.answering()
        return Heartbeat(self.tools.scope, questions, dropped=dropped, answering=answering)

    def send_on(self, wakeups: Sequence[Wakeup], queue: str, *, is_bulk: bool = False) -> None:
        """Send ids to a queue, for whoever has room for them."""
        limits = self._setup.settings.time_limits.limits(DEFAULT_TIMEOUT)
        for part in Message(queue, self._setup.lane, tuple(wakeups), limits, is_bulk).parts():
            self.broker.publish(part)

    async def answer(self, request: dict[str, Any], context: ExecutionContext) -> dict[str, Any]:
        return await self._setup.artifacts.answer(self.store.artifacts, request, context)


def lane_of(setup: Setup) -> BodyLane:
    """Create the lane where bodies run."""
    settings = setup.settings
    if setup.lane == "process":
        return ChildrenLane(
            hostname=settings.hostname,
            time_limits=settings.time_limits,
            max_output_bytes=settings.max_output_bytes,
            memory_limit=settings.tool_memory,
            walls=Walls(settings, setup.executor.reach or Reach(), setup.executor.specs(), user=setup.user),
        )
    return LoopLane(
        setup.executor,
        concurrency=setup.concurrency,
        time_limits=settings.time_limits,
        max_output_bytes=settings.max_output_bytes,
    )
