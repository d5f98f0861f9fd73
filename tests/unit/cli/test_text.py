"""Times and durations as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from forge_tools.cli.text import age, compact, iso, parse_since, took

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("1h", NOW - timedelta(hours=1)),
        ("1.5d", NOW - timedelta(hours=36)),
        ("2026-04-30", datetime(2026, 4, 30, tzinfo=UTC)),
        ("2026-04-30T10:00+02:00", datetime(2026, 4, 30, 8, tzinfo=UTC)),
        ("2026-04-30T10:00Z", datetime(2026, 4, 30, 10, tzinfo=UTC)),
    ],
)
def test_since_is_an_age_or_a_time(text: str, moment: datetime) -> None:
    assert parse_since(text, NOW) == moment


@pytest.mark.parametrize("text", ["yesterday", "1y", "", "99999999999999999w", "-1h", "0001-01-01T00:00+05:00"])
def test_what_is_not_a_time_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time\. Write 90s"):
        parse_since(text, NOW)


def test_a_recent_time_has_seconds_and_its_age() -> None:
    assert compact(NOW - timedelta(minutes=2, seconds=5), NOW) == "11:57:55Z 2m"


def test_an_old_time_has_its_date() -> None:
    assert compact(NOW - timedelta(days=3), NOW) == "04-28 12:00Z 3d"


def test_a_time_that_is_not_there_is_a_dash() -> None:
    assert compact(None) == "-"


def test_a_clock_ahead_shows_no_negative_age() -> None:
    assert age(-3) == "0s"


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (None, "-"),
        (0.04, "0.0 ms"),
        (0.95, "1 ms"),
        (3.4, "3 ms"),
        (999.6, "1.0 s"),
        (59_940, "59.9 s"),
        (59_960, "1m 00s"),
        (250_000, "4m 10s"),
        (7_260_000, "2h 01m"),
    ],
)
def test_durations_are_short(milliseconds: float | None, said: str) -> None:
    assert took(milliseconds) == said


def test_programs_get_utc_with_milliseconds() -> None:
    assert iso(NOW) == "2026-05-01T12:00:00.000Z"
    assert iso(None) is None
