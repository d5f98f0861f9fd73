"""The Celery worker: the app that clients publish with, one task, the engine behind it, and how both end."""

import errno
import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery import Celery, bootsteps
from celery.exceptions import SecurityWarning
from celery.platforms import EX_FAILURE, EX_OK
from celery.worker import state as celery_state
from celery.worker.consumer import Consumer
from kombu.exceptions import OperationalError

from forge_tools.broker.celery_app import celery_app
from forge_tools.broker.message import BULK, TASK, queue_name, queue_of
from forge_tools.model.tools import Lane
from forge_tools.signals import keep_ignored_here, not_ignored
from workers.claims import Claims
from workers.engine import Engine
from workers.lanes.child import Child
from workers.lanes.children import ChildrenLane
from workers.pool import pool_with
from workers.reception import ReceivingConnection
from workers.worker import Setup

MESSAGES_AT_ONCE: Mapping[Lane, int] = {"async": 4, "process": 1}
"""How many messages a worker takes before one is acknowledged. In the process lane a full worker holds only its last one."""

COLLECT_EVERY = 100_000
"""New objects between two collections: calls create many, and hardly one that only the collector could free."""

AGAIN_SECONDS = 1.0
"""The pause between two tries; Celery warns of more than five restarts a second."""

POLL_SECONDS = 0.1

state: Any = celery_state  # celery-types knows only the initial values of its flags

logger = logging.getLogger(__name__)


def worker_app(setup: Setup, engine: Engine) -> Celery:
    """Bind the only task to this process's engine, or to the child that the pool forks; Celery's own are removed."""
    settings, lane = setup.settings, engine.worker.lane
    app = celery_app(settings.broker)
    app.amqp.Connection = ReceivingConnection
    app.conf.worker_consumer = partial(PatientConsumer, MESSAGES_AT_ONCE[setup.lane])
    app.conf.broker_transport_options["reception"] = setup.reception
    app.steps["worker"].add(drain_step(engine))
    if isinstance(lane, ChildrenLane):
        limits = {"max_output_bytes": settings.max_output_bytes, "memory_limit": settings.tool_memory}
        child = Child(setup.executor, **limits, user=setup.user)
        app.conf.worker_pool = pool_with(lane.adopt, partial(child.serve, os.getpid()), lane.standing_still)
    else:
        app.conf.worker_pool = "threads"  # no thread is ever started

    @app.task(name=TASK, shared=False, Strategy=HandOver(engine.worker.claims))
    def run(wakeups: object) -> None:
        raise NotImplementedError

    app.finalize()
    for name in set(app.tasks) - {TASK}:
        app.tasks.unregister(name)
    return app


def run_worker(app: Celery, setup: Setup, engine: Engine) -> int:
    """Run until stopped; returns the exit code."""
    silence_warnings()
    if os.getuid() == 0 and (setup.user is None or setup.lane == "async"):
        logger.warning(
            "Running as root; tools run as root too. Use a separate user outside a container. FORGE_RUN_AS gives one to "
            "the process lane only."
        )
    worker = _worker_class(app, engine)(
        hostname=f"{setup.lane}-{os.getpid()}@{setup.settings.hostname}",
        concurrency=setup.concurrency if setup.lane == "process" else 1,
        queues=[queue_name(queue, setup.lane) for queue in setup.queues],
        # What Celery's workers tell each other by messages is in SQL.
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    silence_warnings()  # again: Celery's worker, when created, put before ours a filter that shows its warning
    gc.set_threshold(COLLECT_EVERY)
    gc.enable()
    gc.collect()
    gc.freeze()  # what exists now stays: do not walk it again, nor make children touch, and so copy, shared pages
    worker.start()
    return int(worker.exitcode or 0)


def silence_warnings() -> None:
    """Ignore warnings of Celery and Python about intended behaviour."""
    warnings.filterwarnings("ignore", category=SecurityWarning)
    warnings.filterwarnings("ignore", message="This process .* is multi-threaded", category=DeprecationWarning)


class PatientConsumer(Consumer):
    """Retries when descriptors run out: Celery's own would end its worker, cutting off calls; the engine decides.

    It learns of a signal at once: Python resumes a wait that a signal interrupts, and Celery waits for up to a second.
    """

    def __init__(self, at_once: int, /, *arguments: Any, **options: Any) -> None:
        """`at_once`: how many messages it takes before one is acknowledged."""
        super().__init__(*arguments, **options | {"initial_prefetch_count": at_once})
        self._woken, waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def register_with_event_loop(self, hub: Any) -> None:
        super().register_with_event_loop(hub)
        hub.add_reader(self._woken, os.read, self._woken, 4096)

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc, valid-type]  # celery-types takes it for a variable
        def start(self, parent: Any) -> None:
            try:
                super().start(parent)
            except (OSError, OperationalError) as error:
                if not _is_for_want_of_descriptors(error):
                    raise
                time.sleep(AGAIN_SECONDS)
                raise ConnectionError(str(error)) from error  # without the number: Celery would recognize EMFILE

    def on_connection_error_before_connected(self, exc: BaseException) -> None:
        """Log the error without the URL: writing it takes a descriptor."""
        logger.error("The broker cannot be reached; it is retried", extra={"error": str(exc)})


def drain_step(engine: Engine) -> type[bootsteps.StartStopStep]:
    """Return the step of Celery's worker that stops before its pool does."""

    class Drain(bootsteps.StartStopStep):
        requires = ("celery.worker.components:Pool",)

        def stop(self, parent: Any) -> None:
            drain(engine)
            parent.pool.terminate()

        def terminate(self, parent: Any) -> None:
            engine.stop(drain=0)
            parent.pool.terminate()

    return Drain


def leave_on_signals() -> None:
    """Handle signals until Celery runs: what is starting ends at once, and `drain` then sees which signal it was."""
    keep_ignored_here()
    _handle(_leave, at_once=_leave_at_once)


def take_signals() -> None:
    """Replace Celery's handlers, which ignore a second SIGTERM and cancel what its threads cannot cancel."""
    _handle(_stop, at_once=_terminate)


def drain(engine: Engine) -> None:
    """Let bodies finish within their time; SIGQUIT, or a second SIGTERM or Ctrl-C, cuts it short."""
    state.should_stop = EX_OK
    take_signals()
    stopping = threading.Thread(target=engine.stop, name="forge-drain")
    try:
        stopping.start()
    except RuntimeError:  # a tool left room for no thread: bodies still have their time, which no signal cuts short
        engine.stop()
    while stopping.is_alive() and state.should_terminate is None:
        stopping.join(POLL_SECONDS)
    engine.stop(drain=0)  # if a signal ended the wait, this cuts bodies off; otherwise nothing is left to stop


def _worker_class(app: Celery, engine: Engine) -> Any:
    class Worker(app.Worker):  # type: ignore[name-defined, misc]  # made by Celery for each app
        def install_platform_tweaks(self, worker: Any) -> None:
            super().install_platform_tweaks(worker)
            take_signals()  # at once: Celery has just put its own handlers in place of ours
            engine.worker.fitness.begin()  # only now: it compares the handlers with those that are to stay

    return Worker


class HandOver:
    """Celery's hook for handling a task's message: this passes its ids on to be claimed, without a request or a thread.

    A message is acknowledged once there is room for its calls, so that the broker keeps the rest for other workers.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def __call__(self, _task: object, _app: object, consumer: Any) -> Callable[..., None]:
        return partial(self._take, consumer.connection_errors)

    def _take(self, lost: Any, message: Any, _payload: object, acknowledge: Callable[..., None], *_: object) -> None:
        if state.should_stop is not None:  # Celery's loop learns of the signal only after this message
            self._claims.close()
        delivery = message.delivery_info or {}
        queue, is_bulk = queue_of(str(delivery.get("routing_key"))), delivery.get("priority") == BULK
        self._claims.hand_over(message.body, queue, is_bulk=is_bulk, taken=partial(acknowledge, logger, lost))


def _is_for_want_of_descriptors(error: BaseException | None) -> bool:
    while error is not None:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _handle(handler: Callable[..., None], *, at_once: Callable[..., None]) -> None:
    handlers = {signal.SIGTERM: handler, signal.SIGINT: handler, signal.SIGQUIT: at_once}
    for number in not_ignored(*handlers):
        signal.signal(number, handlers[number])


def _leave(*_: object) -> None:
    take_signals()  # a second signal must not interrupt the exit that the first one began
    state.should_stop = EX_OK  # for Celery's first check, since Python ignores exceptions raised inside a `__del__`
    sys.exit(EX_OK)


def _leave_at_once(*_: object) -> None:
    take_signals()
    _terminate()
    sys.exit(EX_FAILURE)


def _stop(*_: object) -> None:
    if state.should_stop is None:
        state.should_stop = EX_OK
    else:
        _terminate()


def _terminate(*_: object) -> None:
    state.should_terminate = EX_FAILURE
