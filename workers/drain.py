"""The bootstep that drains the engine before Celery stops its pool: Celery does not see handed-over work."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from celery import bootsteps
from celery.platforms import EX_FAILURE
from celery.worker import state

from workers.engine import Engine

POLL_SECONDS = 0.1


class Drain(bootsteps.StartStopStep):
    """Stops before the pool does. A second SIGTERM or Ctrl-C, or SIGQUIT, cuts the wait short."""

    requires = ("celery.worker.components:Pool",)
    engine: ClassVar[Engine]

    def start(self, parent: Any) -> None:
        signal.signal(signal.SIGQUIT, _terminate)  # Celery's handler cancels tasks one by one, which threads cannot do

    def stop(self, parent: Any) -> None:
        hurry = threading.Event()
        stopping = threading.Thread(target=self.engine.stop, name="forge-drain")
        with _on_signals(hurry.set):
            stopping.start()
            while stopping.is_alive() and not (hurry.is_set() or state.should_terminate):
                stopping.join(POLL_SECONDS)
            self.engine.stop(drain=0)
        parent.pool.terminate()

    def terminate(self, parent: Any) -> None:
        self.engine.stop(drain=0)
        parent.pool.terminate()


def _terminate(*_: object) -> None:
    state.should_terminate = EX_FAILURE  # type: ignore[assignment]  # celery-types knows its first value only


@contextmanager
def _on_signals(act: Callable[[], None]) -> Iterator[None]:
    """Celery takes no second SIGTERM; while we wait, each signal that asks for the end does `act`."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.signal(number, lambda *_: act()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
