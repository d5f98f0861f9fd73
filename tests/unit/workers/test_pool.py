"""Celery's pool forks children that share a pair with the engine, and a child that has just died does not end its worker."""

import errno
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency import prefork
from kombu.asynchronous import Hub

from forge_tools.errors import ConfigurationError
from forge_tools.sandbox.processes.trees import child_pids
from forge_tools.sandbox.walls.cgroups import Cgroup
from forge_tools.time_limits import CeleryLimits
from tests.waiting import is_alive, within
from workers import pool as pool_module
from workers.capture import ChildOutput
from workers.pool import pool_with


def serve(end: socket.socket, output: ChildOutput, _: Cgroup) -> None:
    """Say something, answer once, and then only live."""
    os.write(output.pipes["stderr"][1], b"last words")
    threading.Thread(target=lambda: end.send(end.recv(1)), daemon=True).start()


def let_go(_: Any, end: socket.socket, __: object, output: ChildOutput, ___: Cgroup) -> None:
    end.close()
    output.close()


Start = Callable[..., prefork.TaskPool]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a pool of these children, as many of which say that they have a pair."""

    def start(children: list[SimpleNamespace], adopted: int) -> prefork.TaskPool:
        started = SimpleNamespace(_pool=children, adopted=adopted, did_start_ok=lambda: False)
        started.register_with_event_loop = lambda hub: hub.extend(vars(child) for child in children)
        monkeypatch.setattr(prefork.TaskPool, "on_start", lambda self: vars(self).update(_pool=started))
        kind = pool_with(let_go, serve, nullcontext)
        pool = kind.__new__(kind)
        pool.on_start()
        return pool

    return start


@pytest.fixture
def pool(start: Start) -> prefork.TaskPool:
    """A pool of three children: one watched, one whose death was seen, one new."""
    children = [SimpleNamespace(_sentinel_poll=7), SimpleNamespace(_sentinel_poll=None), SimpleNamespace()]
    return start(children, adopted=3)


def test_a_pool_whose_child_died_before_the_first_look_is_no_failure(pool: Any) -> None:
    assert pool.did_start_ok()


def test_a_dead_child_is_watched_again_when_the_consumer_restarts(pool: Any) -> None:
    watched: list[dict[str, Any]] = []

    pool.register_with_event_loop(watched)

    assert watched == [{"_sentinel_poll": 7}, {}, {}]


def test_a_pool_whose_children_have_no_pairs_refuses_to_start(start: Start) -> None:
    """As with a release of billiard that forks in another way."""
    with pytest.raises(ConfigurationError, match="2 children, and 0 of them can speak"):
        start([SimpleNamespace(), SimpleNamespace()], adopted=0)


Adopted = tuple[Any, socket.socket, ChildOutput]
"""A process of the pool, the engine's end of its pair, and its output."""


class LivePool:
    """Two real children, and a hub that turns on this thread."""

    def __init__(self) -> None:
        self.adopted: dict[int, Adopted] = {}
        self.hub = Hub()
        self.forked_in_peace: set[int] = set()
        self.pool: Any = pool_with(self._adopt, serve, self._standing_still).Pool(
            processes=2, threads=False, enable_timeouts=True
        )
        self.pool.register_with_event_loop(self.hub)

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        before = child_pids(os.getpid())
        yield
        self.forked_in_peace.update(set(child_pids(os.getpid())) - set(before))

    def _adopt(self, process: Any, end: socket.socket, _: object, output: ChildOutput, __: Cgroup) -> None:
        self.adopted[process.pid] = process, end, output

    @property
    def pids(self) -> list[int]:
        return [pid for pid in self.adopted if is_alive(pid)]

    @property
    def jobs(self) -> dict[int, Any]:
        return dict(self.pool._cache)  # noqa: SLF001  Celery has no public name for what it limits

    @property
    def is_starting(self) -> bool:
        return bool(self.pool._waiting_to_start)  # noqa: SLF001  Celery has no public name for children that start

    def turn(self, condition: Callable[[], object]) -> None:
        for _ in within(30, "it never came true"):
            self.hub.run_once()
            if condition():
                return

    def pass_time(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.turn(lambda: time.monotonic() >= end)


@pytest.fixture(scope="module")
def module_pool() -> Iterator[LivePool]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(pool_module, "FOLLOW_SECONDS", 0.1)
        live = LivePool()
        yield live
    live.pool.terminate()
    live.pool.join()
    live.hub.close()
    for _, end, output in live.adopted.values():
        let_go(None, end, None, output, Cgroup())


@pytest.fixture
def live(module_pool: LivePool) -> LivePool:
    module_pool.turn(lambda: len(module_pool.pids) == 2)
    return module_pool


def test_the_child_has_one_end_the_engine_the_other_and_the_pool_none(live: LivePool) -> None:
    pid = live.pids[0]
    _, ours, output = live.adopted[pid]
    ours.settimeout(30)

    ours.send(b"x")
    assert ours.recv(1) == b"x"

    os.kill(pid, signal.SIGKILL)
    live.turn(lambda: not is_alive(pid))
    assert ours.recv(1) == b"", "somebody else has the end of the child"
    assert list(output.last_words()) == [("stdout", b""), ("stderr", b"last words")]


def test_every_child_is_forked_while_the_engine_stands_still(live: LivePool) -> None:
    os.kill(live.pids[0], signal.SIGKILL)
    live.turn(lambda: len(live.adopted) > 2 and len(live.pids) == 2)

    assert live.forked_in_peace == live.adopted.keys()


def test_a_child_that_cannot_be_forked_now_is_forked_later(live: LivePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the limit of processes: the consumer, which turns the hub, hears of no error."""
    refused: list[int] = []

    def fork() -> int:
        refused.append(len(live.pids))
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patches:
        patches.setattr(os, "fork", fork)
        os.kill(live.pids[0], signal.SIGKILL)
        live.turn(lambda: refused)

    live.pool.register_with_event_loop(live.hub)  # as after a new connection, which looks at every child
    live.turn(lambda: len(live.pids) == 2)


def test_celery_ends_the_child_whose_body_outlasts_its_hard_limit_and_no_other(
    live: LivePool, caplog: pytest.LogCaptureFixture
) -> None:
    (one, other), began = live.pids, time.monotonic()
    live.pool.limit(one, CeleryLimits(soft=1, hard=2))

    live.turn(lambda: not is_alive(one))

    assert time.monotonic() - began >= 2
    assert is_alive(other)
    assert [record.message for record in caplog.records if record.name == pool_module.__name__] == [
        "Celery's soft time limit: a body should have been ended",
        "Celery's hard time limit ends a body",
    ]
    live.turn(lambda: not live.jobs and not live.pool.limits)
    live.turn(lambda: one not in live.pids)


def test_a_signal_that_ends_a_process_ends_a_child_and_raises_nothing_in_its_body(live: LivePool) -> None:
    [caught] = re.findall(r"SigCgt:\t(\w+)", Path(f"/proc/{live.pids[0]}/status").read_text())

    ends = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    assert not int(caught, 16) & sum(1 << number - 1 for number in ends)


def test_a_child_whose_body_ended_in_time_rests_as_long_as_it_likes(live: LivePool) -> None:
    """Whether its limits were armed, and whether Celery had warned."""
    pids = live.pids
    limits = [live.pool.limit(pids[0], CeleryLimits(soft=1, hard=2)) for _ in range(3)]

    for limit, seconds in zip(limits, (0.0, 0.5, 0.8), strict=True):
        live.pass_time(seconds)
        limit.stop()
    live.pass_time(1.2)

    assert live.pids == pids
    assert (live.jobs, live.pool.limits) == ({}, set())


def test_what_is_stopped_is_spared_although_the_hub_has_not_looked_since(live: LivePool) -> None:
    pid = live.pids[0]
    limit = live.pool.limit(pid, CeleryLimits(soft=5, hard=6))
    live.turn(lambda: live.jobs)
    [job] = live.jobs

    limit.stop()
    live.pool._on_hard_timeout(job)  # noqa: SLF001  what Celery's timer calls when it is late to look
    live.pass_time(0.5)

    assert is_alive(pid)


def test_a_hub_that_stood_still_leaves_the_engine_the_whole_time_between_both_limits(live: LivePool) -> None:
    """As after SIGSTOP: an outcome may be waiting that the engine has not read yet."""
    pids = live.pids
    limit = live.pool.limit(pids[0], CeleryLimits(soft=1, hard=2))
    live.turn(lambda: live.jobs)
    time.sleep(2.5)  # nothing turns the hub: that is the case

    live.pass_time(0.5)
    limit.stop()
    live.pass_time(1)

    assert live.pids == pids


def test_the_signal_of_celerys_soft_limit_changes_nothing_in_a_child(live: LivePool) -> None:
    pids = live.pids
    live.turn(lambda: not live.is_starting)
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    live.pass_time(0.5)

    assert live.pids == pids
    assert all(map(is_alive, pids))


def test_a_child_holds_nothing_by_which_the_pool_would_believe_it(live: LivePool) -> None:
    live.turn(lambda: not live.is_starting)

    for pid in live.pids:
        child, _, _ = live.adopted[pid]
        held = {entry.stat().st_ino for entry in Path(f"/proc/{pid}/fd").iterdir()}
        assert os.fstat(child.outqR_fd).st_ino not in held


def test_a_limit_that_is_far_away_is_no_timer_of_celerys_yet(live: LivePool) -> None:
    """Its timers keep what was cancelled until its time: each call would weigh on the worker for its whole timeout."""
    timers = len(live.hub.timer)  # some of them may be over meanwhile
    limit = live.pool.limit(live.pids[0], CeleryLimits(soft=100, hard=115))
    for _ in range(50):
        live.pool.limit(live.pids[0], CeleryLimits(soft=100, hard=115)).stop()

    live.pass_time(0.5)

    assert len(live.hub.timer) <= timers
    assert live.pool.limits == {limit}
    limit.stop()
