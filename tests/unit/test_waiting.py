"""The waits of tests: what they return, and how they fail."""

import asyncio

import pytest

from tests import waiting
from tests.waiting import PATIENCE, reached, wait_until, within


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, "", "here"])
    assert wait_until(lambda: next(answers)) == "here"


async def test_a_condition_may_be_a_coroutine() -> None:
    answers = iter([None, 7])

    async def ask() -> int | None:
        return next(answers)

    assert await reached(ask) == 7


def test_what_never_comes_true_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 2)
    with pytest.raises(AssertionError, match=r"not within 0\.04 s: nobody came"):
        wait_until(lambda: False, 0.02, lambda: "nobody came")


async def test_a_condition_that_hangs_is_given_up() -> None:
    with pytest.raises(AssertionError, match="it hangs"):
        await reached(asyncio.Event().wait, 0.02, "it hangs")


def test_a_loop_is_told_what_is_left_until_nothing_is() -> None:
    rounds = []
    with pytest.raises(AssertionError, match="it goes on"):
        rounds.extend(within(0.02, "it goes on"))
    assert rounds == sorted(rounds, reverse=True)
    assert 0 < rounds[-1] <= rounds[0] <= 0.02 * PATIENCE
