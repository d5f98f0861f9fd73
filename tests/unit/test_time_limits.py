"""A timeout becomes whole seconds of Celery's, which leave our own steps the time that they may take."""

import pytest

from forge_tools.time_limits import CeleryLimits, TimeLimits

TIME_LIMITS = TimeLimits(grace=2, lease=15)


@pytest.mark.parametrize(
    ("timeout", "limits"),
    [
        (5, CeleryLimits(soft=9, hard=24)),
        (0.2, CeleryLimits(soft=5, hard=20)),
        (119.5, CeleryLimits(soft=124, hard=139)),
    ],
)
def test_a_timeout_becomes_whole_seconds_behind_our_own_steps(timeout: float, limits: CeleryLimits) -> None:
    assert TIME_LIMITS.limits(timeout) == limits


def test_celery_leaves_an_engine_that_lives_the_time_to_end_a_body_twice() -> None:
    """It waits for another grace where it was late, and is dead when it was late by a lease."""
    for timeout in (0.01, 1, 86_400):
        put_off = TIME_LIMITS.force(timeout) + TIME_LIMITS.lease + TIME_LIMITS.grace
        assert TIME_LIMITS.limits(timeout).hard >= put_off
