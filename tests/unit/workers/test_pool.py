"""Celery's pool forks children that share a pair with the engine, and a child that has just died does not end its worker."""

import os
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency import prefork
from kombu.asynchronous import Hub

from forge_tools.errors import ConfigurationError
from workers.pool import Pairs, pool_with


@pytest.fixture
def pairs() -> Pairs:
    return Pairs(lambda _, end: end.close())


@pytest.fixture
def pool(pairs: Pairs) -> Any:
    """A pool of three children: one watched, one whose death was seen, one new."""
    kind = pool_with(pairs)
    made: Any = kind.__new__(kind)
    children = [SimpleNamespace(_sentinel_poll=7), SimpleNamespace(_sentinel_poll=None), SimpleNamespace()]
    pool = SimpleNamespace(_pool=children, did_start_ok=lambda: False)
    pool.register_with_event_loop = lambda hub: hub.extend(vars(child) for child in children)
    made._pool = pool
    return made


def test_a_pool_whose_child_died_before_the_first_look_is_no_failure(pool: Any) -> None:
    assert pool.did_start_ok()


def test_a_dead_child_is_watched_again_when_the_consumer_starts_anew(pool: Any) -> None:
    watched: list[dict[str, Any]] = []

    pool.register_with_event_loop(watched)

    assert watched == [{"_sentinel_poll": 7}, {}, {}]


def test_the_child_has_one_end_the_engine_the_other_and_the_pool_none() -> None:
    adopted: list[tuple[Any, socket.socket]] = []
    pairs = Pairs(lambda process, end: adopted.append((process, end)))

    def fork() -> str:
        kept.append(pairs.childs_end.dup())
        return "process"

    kept: list[socket.socket] = []
    assert pairs.fork(fork) == "process"

    [(process, ours)], [theirs] = adopted, kept
    with ours, theirs:
        ours.send(b"x")
        assert (process, theirs.recv(1), pairs.childs_end.fileno()) == ("process", b"x", -1)


def test_a_pool_whose_children_have_no_pairs_refuses_to_start(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a release of billiard that forks in another way."""
    pool = pool_with(pairs)

    def start(self: Any) -> None:
        self._pool = SimpleNamespace(_pool=[1, 2])

    monkeypatch.setattr(prefork.TaskPool, "on_start", start)
    with pytest.raises(ConfigurationError, match="2 children, and 0 of them can speak"):
        pool.__new__(pool).on_start()  # type: ignore[call-overload]  # without Celery's own start


def test_nothing_of_a_dead_childs_pipes_is_read_again(pairs: Pairs) -> None:
    """Their numbers are other files' next, and Celery reads from all that it remembers when it has connected anew."""
    pool = pool_with(pairs).Pool(processes=2, threads=False)
    pool.register_with_event_loop(Hub())
    try:
        for _ in range(2):
            for child in list(pool._pool):
                os.kill(child.pid, signal.SIGKILL)
                child.join()
            pool.maintain_pool()

            assert set(pool._fileno_to_outq) == {child.outqR_fd for child in pool._pool}
    finally:
        pool.terminate()
        pool.join()
