"""What a row shows: its median, its ratio, and whether it meets its bar."""

import pytest

from benchmarks.figures import Bar, Result, Row


def row(bar: Bar | None = None) -> Row:
    return Row(title="calls", unit="/s", key="rate", ours="ours", raw="raw", bar=bar)


def test_the_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    result = Result(row(), ours=[10.0, 40.0, 30.0], raw=[10.0, 20.0, 10.0])

    assert result.ratio == 2.0
    assert result.value == 30.0


def test_a_row_without_another_side_has_no_ratio() -> None:
    assert Result(row(), ours=[10.0]).ratio is None


@pytest.mark.parametrize(
    ("bar", "verdict"),
    [
        (Bar("ratio", "at least", 2.0), "met"),
        (Bar("ratio", "at least", 4.0), "missed by 50%"),
        (Bar("ratio", "at most", 1.6), "missed by 25%"),
        (Bar("value", "at most", 30.0), "met"),
        (Bar("value", "at most", 0.0), "missed by 3000%"),
        (None, ""),
    ],
)
def test_a_bar_is_met_or_missed_by_a_part_of_itself(bar: Bar | None, verdict: str) -> None:
    assert Result(row(bar), ours=[30.0], raw=[15.0]).verdict == verdict


def test_a_bar_is_shown_with_its_sign_and_unit() -> None:
    assert Bar("ratio", "at least", 1.5).shown("/s") == "≥ 1.5x"
    assert Bar("value", "at most", 0.27).shown("s") == "≤ 0.27 s"
    assert Bar("value", "at most", 0).shown("") == "≤ 0"
