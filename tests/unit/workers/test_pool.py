"""A child that has just died does not end its worker."""

from types import SimpleNamespace
from typing import Any

import pytest

from workers.pool import ProcessPool


@pytest.fixture
def pool() -> Any:
    """A pool of three children: one watched, one whose death was seen, one new."""
    made: Any = ProcessPool.__new__(ProcessPool)
    children = [SimpleNamespace(_sentinel_poll=7), SimpleNamespace(_sentinel_poll=None), SimpleNamespace()]
    register = lambda hub: hub.extend(vars(child) for child in children)  # noqa: E731 one line says it
    made._pool = SimpleNamespace(_pool=children, did_start_ok=lambda: False, register_with_event_loop=register)
    return made


def test_a_pool_whose_child_died_before_the_first_look_is_no_failure(pool: Any) -> None:
    assert pool.did_start_ok()


def test_a_dead_child_is_watched_again_when_the_consumer_starts_anew(pool: Any) -> None:
    watched: list[dict[str, Any]] = []

    pool.register_with_event_loop(watched)

    assert watched == [{"_sentinel_poll": 7}, {}, {}]
