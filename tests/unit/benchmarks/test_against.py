"""When a commit counts as worse than another, and what it is measured with."""

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.against import arms
from benchmarks.against.changes import AGAIN, NEW, OLD, Change
from benchmarks.processes import ROOT

STILL = [10.0, 10.1, 9.9]


def change(new: list[float], *, again: list[float] = STILL, unit: str = "ms") -> Change:
    return Change("calls", unit, {OLD: [10.0, 10.0, 10.0], AGAIN: again, NEW: new})


@pytest.mark.parametrize(
    ("new", "again", "verdict"),
    [
        ([10.7, 10.6, 10.8], STILL, "worse"),
        ([10.4, 10.5, 10.3], STILL, ""),
        ([10.7, 10.6, 10.8], [10.0, 9.0, 10.0], ""),
        ([12.0, 12.0, 30.0], [10.0, 9.0, 10.0], "worse"),
        ([10.0, 30.0, 10.0], STILL, ""),
        ([9.0, 9.1, 9.0], STILL, "better"),
    ],
)
def test_worse_is_beyond_the_tolerance_and_beyond_what_the_old_commit_is_from_itself(
    new: list[float], again: list[float], verdict: str
) -> None:
    assert change(new, again=again).verdict == verdict


def test_of_a_rate_less_is_worse() -> None:
    assert change([9.0, 9.1, 9.0], unit="/s").verdict == "worse"
    assert change([11.0, 11.1, 11.2], unit="/s").verdict == "better"


def test_the_spread_is_the_worst_round_in_either_direction() -> None:
    assert change(STILL, again=[10.0, 8.0, 11.0]).spread == pytest.approx(0.25)


def test_a_tree_that_asks_for_the_same_packages_uses_this_interpreter(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    assert arms.interpreter(tmp_path) == sys.executable


def test_an_invalid_revision_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no-such-revision"):
        arms.check_out("no-such-revision", tmp_path)
