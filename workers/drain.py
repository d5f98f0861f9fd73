"""How a worker ends: its engine drains before Celery stops its pool, because Celery does not see handed-over work."""

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.platforms import EX_FAILURE, EX_OK
from celery.worker import state as celery_state

from forge_tools.signals import heeded, keep_ignored_here
from workers.engine import Engine

POLL_SECONDS = 0.1

state: Any = celery_state  # celery-types knows the first values of its flags only


def drain_step(engine: Engine) -> type[bootsteps.StartStopStep]:
    """The step of Celery's worker that stops before its pool does."""

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
    """Until Celery runs: what starts is left at once, and `drain` then sees by which signal."""
    keep_ignored_here()
    _handle(_leave, at_once=_leave_at_once)


def take_signals() -> None:
    """From then on in place of Celery's handlers, which heed no second SIGTERM and cancel what its threads cannot cancel."""
    _handle(_stop, at_once=_terminate)


def drain(engine: Engine) -> None:
    """Let bodies finish within their time; SIGQUIT, or a second SIGTERM or Ctrl-C, cuts it short."""
    state.should_stop = EX_OK
    take_signals()
    stopping = threading.Thread(target=engine.stop, name="forge-drain")
    stopping.start()
    while stopping.is_alive() and state.should_terminate is None:
        stopping.join(POLL_SECONDS)
    engine.stop(drain=0)


def _handle(handler: Callable[..., None], *, at_once: Callable[..., None]) -> None:
    handlers = {signal.SIGTERM: handler, signal.SIGINT: handler, signal.SIGQUIT: at_once}
    for number in heeded(*handlers):
        signal.signal(number, handlers[number])


def _leave(*_: object) -> None:
    take_signals()  # a second signal must not interrupt what the first one has end
    state.should_stop = EX_OK  # for Celery's first look: Python ignores what is raised inside a `__del__`
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
