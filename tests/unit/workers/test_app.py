"""The Celery app of a worker: one task, and what it does with admitted wake-ups."""

import select
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge_tools.broker.message import BULK, TASK
from forge_tools.config import Settings
from forge_tools.model import Lane, new_id
from forge_tools.model.execution import Wakeup
from tests.unit.workers.engines import setup_of
from workers.app import worker_app
from workers.worker import lane_of


def app_of(lane: Lane, tmp_path: Path) -> tuple[Any, Any]:
    settings = Settings.load(home=tmp_path, broker_url="redis+socket:///nowhere/x.sock", database_url="sqlite:///x.db")
    setup = setup_of(settings, lane=lane, concurrency=1)
    engine: Any = SimpleNamespace(
        worker=SimpleNamespace(lane=lane_of(setup), claims=SimpleNamespace()), stopped=list[float]()
    )
    engine.stop = lambda *, drain: engine.stopped.append(drain)
    return worker_app(setup, engine), engine


@pytest.mark.parametrize("lane", ["async", "process"])
def test_a_worker_has_one_task_and_drains_its_own_engine(lane: Lane, tmp_path: Path) -> None:
    app, engine = app_of(lane, tmp_path)

    assert list(app.tasks) == [TASK]
    [step] = [step for step in app.steps["worker"] if step.__module__ == "workers.app"]
    step.terminate(None, SimpleNamespace(pool=SimpleNamespace(terminate=lambda: None)))
    assert engine.stopped == [0]


@pytest.mark.parametrize("lane", ["async", "process"])
@pytest.mark.parametrize(("priority", "is_bulk"), [(0, False), (BULK, True), (None, False)])
def test_a_message_is_taken_with_the_queue_it_came_by(
    lane: Lane, tmp_path: Path, priority: object, is_bulk: bool
) -> None:
    app, engine = app_of(lane, tmp_path)
    taken: list[tuple[list[Wakeup], str, bool]] = []
    acknowledged: list[object] = []

    def take(wakeups: list[Wakeup], queue: str, *, is_bulk: bool, taken: Callable[[], None], to: Any = taken) -> None:
        to.append((wakeups, queue, is_bulk))
        taken()

    engine.worker.claims.hand_over = take
    handle = app.tasks[TASK].start_strategy(app, SimpleNamespace(connection_errors=(OSError,)))
    one = Wakeup(new_id(), 0)
    delivery = {"routing_key": "forge.host.box.async", "priority": priority}

    handle(
        SimpleNamespace(delivery_info=delivery, body=[one]),
        None,
        lambda *told: acknowledged.append(told),
        None,
        [],
    )

    assert taken == [([one], "host.box", is_bulk)]
    assert [errors for _, errors in acknowledged] == [(OSError,)]


@pytest.mark.filterwarnings("ignore::celery.exceptions.SecurityWarning")
def test_a_signal_ends_a_wait_for_messages(tmp_path: Path) -> None:
    app, _ = app_of("async", tmp_path)
    before, handler = signal.set_wakeup_fd(-1), signal.signal(signal.SIGUSR1, lambda *_: None)
    worker = app.Worker(concurrency=1)
    try:
        worker.consumer.register_with_event_loop(worker.hub)
        signal.raise_signal(signal.SIGUSR1)

        waiting = list(worker.hub.readers)
        assert select.select(waiting, [], [], 0)[0]
        next(worker.hub.create_loop())
        assert not select.select(waiting, [], [], 0)[0]
    finally:
        worker.hub.close()
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
