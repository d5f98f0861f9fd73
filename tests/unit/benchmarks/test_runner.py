"""Sides take turns, each in its own process; a failing side loses only its own rows."""

import operator
from collections.abc import Iterator

import pytest

from benchmarks import runner
from benchmarks.figures import LeftOutError, Measure, Readings, Row, in_turn
from benchmarks.measures import in_process
from benchmarks.scene import QUICK, Scene
from tests.preloaded import turns_forked


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    with turns_forked("benchmarks.measures.in_process"):
        yield


def says_nothing(_: str) -> None: ...


def test_a_measure_yields_every_row_of_it() -> None:
    outcome = runner.run([in_process.MEASURE], QUICK, 1, says_nothing, retake=False)

    assert outcome.failures == {}
    assert len(outcome.results) == len(in_process.MEASURE.rows)
    assert all(0 < time < 10_000 for result in outcome.results for time in (*result.ours, *result.raw))


def test_a_side_that_fails_takes_only_its_own_rows_and_no_round_is_run_that_is_not_asked_for() -> None:
    def row(side: str) -> Row:
        return Row(title=f"{{in_process:,}} calls, {side}", unit="us", key="each", ours=side)

    sides = {"bare": in_process.bare, "broken": operator.itemgetter("nothing")}
    measure = Measure(name="try", sides=sides, rows=[row("bare"), row("broken")], rounds_at_most=1)

    outcome = runner.run([measure], QUICK, 3, says_nothing, retake=False)

    assert [(result.row.title, len(result.ours)) for result in outcome.results] == [("1,000 calls, bare", 1)]
    assert outcome.failures["try broken"].startswith("TypeError")


def nowhere(_: Scene) -> Readings:
    raise LeftOutError("it is not installed")


def test_what_is_not_to_be_had_here_is_left_out_with_a_word_and_is_no_failure() -> None:
    rows = [Row(title="calls", unit="us", key="each", ours="bare"), Row(title="no", unit="us", key="each", ours="gone")]
    measure = Measure(name="try", sides={"bare": in_process.bare, "gone": nowhere}, rows=rows)

    outcome = runner.run([measure], QUICK, 1, says_nothing, retake=False)

    assert [result.row.title for result in outcome.results] == ["calls"]
    assert (outcome.failures, outcome.left_out) == ({}, {"try gone": "LeftOutError: it is not installed"})


@pytest.mark.parametrize(("number", "first"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_each_round_begins_with_another_side(number: int, first: str) -> None:
    order = in_turn("abc", number)

    assert order[0] == first
    assert sorted(order) == ["a", "b", "c"]
