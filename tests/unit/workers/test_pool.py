"""A child that has just died does not end its worker."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.prefork import TaskPool

from workers.pool import forgive_deaths


@pytest.fixture
def pool() -> Any:
    """A pool of three children: one watched, one whose death was seen, one new."""
    made: Any = TaskPool.__new__(TaskPool)
    children = [SimpleNamespace(_sentinel_poll=7), SimpleNamespace(_sentinel_poll=None), SimpleNamespace()]
    made._pool = SimpleNamespace(_pool=children, did_start_ok=lambda: False)
    made.register_with_event_loop = lambda hub: hub.extend(vars(child) for child in children)
    return made


def test_a_pool_whose_child_died_before_the_first_look_is_no_failure(pool: Any) -> None:
    forgive_deaths(pool)

    assert pool.did_start_ok()


def test_a_dead_child_is_watched_again_when_the_consumer_starts_anew(pool: Any) -> None:
    forgive_deaths(pool)
    watched: list[dict[str, Any]] = []

    pool.register_with_event_loop(watched)

    assert watched == [{"_sentinel_poll": 7}, {}, {}]


def test_other_pools_are_left_as_they_are() -> None:
    threads = SimpleNamespace()

    forgive_deaths(threads)

    assert vars(threads) == {}
