"""The Celery worker: the app that clients publish with, one task, and the engine behind it."""

import gc
import logging
import os
import warnings
from typing import Any

from celery import Celery, Task, signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from forge_tools.config import Settings
from forge_tools.dispatch import BULK, TASK, celery_app, queue_name, queue_of
from forge_tools.executor import ToolExecutor
from forge_tools.records import Ring
from workers.consumer import PatientConsumer
from workers.drain import Drain, take_signals
from workers.engine import Engine, Post
from workers.lanes.child import Child
from workers.lanes.children import ChildrenLane
from workers.pool import Pairs, pool_with
from workers.reception import ReceivingConnection

RING_THREADS = 4
"""Celery threads of the async lane; each hands one message of up to 128 ids to the engine at a time."""

COLLECT_EVERY = 100_000
"""New objects between two looks for garbage: calls make many, and hardly one that only the collector could free."""

logger = logging.getLogger(__name__)


def worker_app(settings: Settings, post: Post, engine: Engine, executor: ToolExecutor) -> Celery:
    """Bind the one task to this process's engine, or to the child that the pool forks; Celery's own ones are not there."""
    app = celery_app(settings.broker)
    app.amqp.Connection = ReceivingConnection
    app.conf.worker_consumer = PatientConsumer
    app.conf.broker_transport_options["reception"] = engine.reception
    app.steps["worker"].add(type("EngineDrain", (Drain,), {"engine": engine}))
    if isinstance(engine.lane, ChildrenLane):
        child = Child(executor, settings.max_output_bytes, memory_limit=settings.tool_memory)
        _serve_from_children(app, child, engine.lane)
    else:
        _serve_from_threads(app, engine)
    app.finalize()
    for name in set(app.tasks) - {TASK}:
        app.tasks.unregister(name)
    return app


def run_worker(app: Celery, settings: Settings, post: Post, engine: Engine) -> int:
    """Run until stopped; returns the exit code."""
    silence_warnings()
    if os.getuid() == 0:
        logger.warning("Running as root; tools run as root too. Use a user of its own outside a container.")
    worker = _worker_class(app, engine)(
        hostname=f"{post.lane}-{os.getpid()}@{settings.hostname}",
        concurrency=post.concurrency if post.lane == "process" else RING_THREADS,
        queues=[queue_name(queue, post.lane) for queue in post.queues],
        optimization="fair",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    silence_warnings()  # again: as it was made, Celery's worker put a filter before ours that shows its own
    gc.set_threshold(COLLECT_EVERY)
    gc.enable()
    gc.collect()
    gc.freeze()  # what is there by now stays: no need to walk it again, nor for a child to touch, and so copy, what it shares
    worker.start()
    return int(worker.exitcode or 0)


def silence_warnings() -> None:
    """What Celery and Python warn of although it is meant: what connections that are lost cost is a setting of ours."""
    warnings.filterwarnings("ignore", category=SecurityWarning)
    warnings.filterwarnings("ignore", message="This process .* is multi-threaded", category=DeprecationWarning)
    lost = r"\s*In Celery 5\.1 we introduced an optional breaking change which\s+on connection loss cancels"
    warnings.filterwarnings("ignore", message=lost, category=CPendingDeprecationWarning)


def _worker_class(app: Celery, engine: Engine) -> Any:
    """Celery's, without its way with signals, from the moment it takes them."""

    def take_over(self: Any, worker: Any) -> None:
        app.Worker.install_platform_tweaks(self, worker)
        take_signals()
        engine.fitness.begin()

    return type("Worker", (app.Worker,), {"install_platform_tweaks": take_over})


def _serve_from_threads(app: Celery, engine: Engine) -> None:
    app.conf.worker_pool = "threads"

    @app.task(name=TASK, bind=True, shared=False)
    def run(self: Task[Any, Any], rings: list[tuple[str, int]]) -> None:
        delivery = self.request.delivery_info or {}
        is_bulk = delivery.get("priority") == BULK
        engine.take([Ring(*ring) for ring in rings], queue_of(str(delivery.get("routing_key"))), is_bulk=is_bulk)


def _serve_from_children(app: Celery, child: Child, lane: ChildrenLane) -> None:
    parent = os.getpid()
    pairs = Pairs(lane.adopt)
    app.conf.worker_pool = pool_with(pairs)

    @signals.worker_process_init.connect(weak=False)
    def start(**_: object) -> None:
        child.start(parent, pairs.childs_end)

    @app.task(name=TASK, shared=False)
    def run(rings: list[tuple[str, int]]) -> None:
        child.ring(rings)
