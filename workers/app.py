"""The Celery worker: the app that clients publish with, one task, and the engine behind it."""

import gc
import logging
import os
import warnings
from typing import Any

from celery import Celery, Task, signals
from celery.exceptions import SecurityWarning
from celery.worker.request import Request

from forge_tools.config import Settings
from forge_tools.dispatch import BULK, TASK, celery_app, queue_name, queue_of
from forge_tools.executor import ToolExecutor
from forge_tools.records import Ring
from workers.drain import Drain, take_signals
from workers.engine import Engine, Post
from workers.lanes.child import Child
from workers.lanes.children import ChildrenLane
from workers.pool import ProcessPool

RING_THREADS = 4
"""Celery threads of the async lane; each hands one message of up to 128 ids to the engine at a time."""

COLLECT_EVERY = 100_000
"""New objects between two looks for garbage: calls make many, and hardly one that only the collector could free."""

logger = logging.getLogger(__name__)


def worker_app(settings: Settings, post: Post, engine: Engine, executor: ToolExecutor) -> Celery:
    """Bind the one task to this process's engine, or to the child that the pool forks."""
    app = celery_app(settings.broker)
    app.steps["worker"].add(type("EngineDrain", (Drain,), {"engine": engine}))
    if isinstance(engine.lane, ChildrenLane):
        child = Child(engine.lane.address, executor, settings.max_output_bytes, memory_limit=settings.tool_memory)
        _serve_from_children(app, child)
    else:
        _serve_from_threads(app, engine)
    return app


def run_worker(app: Celery, settings: Settings, post: Post, engine: Engine) -> int:
    """Run until stopped; returns the exit code."""
    warnings.filterwarnings("ignore", category=SecurityWarning)
    warnings.filterwarnings("ignore", message="This process .* is multi-threaded", category=DeprecationWarning)
    if os.getuid() == 0:
        logger.warning("Running as root; tools run as root too. Use a user of its own outside a container.")
    worker = _worker_class(app, engine)(
        hostname=f"{post.lane}-{os.getpid()}@{settings.hostname}",
        pool=ProcessPool if post.lane == "process" else "threads",
        concurrency=post.concurrency if post.lane == "process" else RING_THREADS,
        queues=[queue_name(queue, post.lane) for queue in post.queues],
        optimization="fair",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    gc.set_threshold(COLLECT_EVERY)
    gc.collect()
    gc.freeze()  # what is there by now stays: no need to walk it again, nor for a child to touch, and so copy, what it shares
    worker.start()
    return int(worker.exitcode or 0)


def _worker_class(app: Celery, engine: Engine) -> Any:
    """Celery's, without its way with signals, from the moment it takes them."""

    def take_over(self: Any, worker: Any) -> None:
        app.Worker.install_platform_tweaks(self, worker)
        take_signals()
        engine.fitness.begin()

    return type("Worker", (app.Worker,), {"install_platform_tweaks": take_over})


def _serve_from_threads(app: Celery, engine: Engine) -> None:
    @app.task(name=TASK, bind=True, shared=False)
    def run(self: Task[Any, Any], rings: object = None, *_: object) -> None:
        delivery = self.request.delivery_info or {}
        queue = queue_of(str(delivery.get("routing_key") or ""))
        engine.take(parse_rings(rings), queue, is_bulk=delivery.get("priority") == BULK)


class EngineTimed(Request):
    """A delivery whose limits Celery does not enforce; the engine enforces those of the row, from the start of the body.

    Celery's clock starts with the message, so a claim that waits for the database would be charged to the body; and whoever
    reaches the broker can write what limits he likes.
    """

    @property
    def time_limits(self) -> tuple[None, None]:
        return None, None

    @time_limits.setter
    def time_limits(self, limits: object) -> None:
        """Leave what the message says to those who read it."""


def _serve_from_children(app: Celery, child: Child) -> None:
    parent = os.getpid()

    @signals.worker_process_init.connect(weak=False)
    def start(**_: object) -> None:
        child.start(parent)

    @app.task(name=TASK, shared=False, Request=EngineTimed)
    def run(rings: object = None, *_: object) -> None:
        child.ring([(ring.id, ring.attempt) for ring in parse_rings(rings)])


def parse_rings(rings: object) -> list[Ring]:
    """Read rings from a message anybody may have written; what is not an id and a number is dropped."""
    return [
        Ring(ring[0], ring[1])
        for ring in (rings if isinstance(rings, list) else [])
        if isinstance(ring, list) and len(ring) == 2 and isinstance(ring[0], str) and type(ring[1]) is int
    ]
