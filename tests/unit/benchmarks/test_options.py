"""What is run: measures and sets of them by name."""

from pathlib import Path

import pytest

from benchmarks.__main__ import _options
from benchmarks.measures import GROWTH, HISTORY, MEASURES, SETS, TOOLS


def names(*arguments: str) -> list[str]:
    return [measure.name for measure in _options(arguments).measures]


def test_without_names_all_but_the_long_ones_run() -> None:
    assert names() == [measure.name for measure in MEASURES]


def test_a_set_runs_by_its_name_and_all_runs_everything() -> None:
    assert names("growth") == [measure.name for measure in GROWTH]
    assert names("tools") == [measure.name for measure in TOOLS]
    assert names("--all") == list(dict.fromkeys(measure.name for measures in SETS.values() for measure in measures))


def test_a_measure_named_twice_runs_once() -> None:
    assert names("burst", "burst", "idle") == ["burst", "idle"]


def test_an_unknown_name_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        names("brust")

    assert "there is no measure 'brust'; there are burst," in capsys.readouterr().err


def test_a_history_is_kept_in_a_new_folder_and_measured_on_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (("history", "--keep", str(tmp_path)), "is there already"),
        (("history", "--kept", str(tmp_path)), "no history is kept in"),
    ):
        with pytest.raises(SystemExit):
            names(*arguments)
        assert said in capsys.readouterr().err

    (tmp_path / "history.json").write_text("{}")

    assert names("history", "--kept", str(tmp_path)) == [measure.name for measure in HISTORY]
    with pytest.raises(SystemExit):
        names("history", "burst", "--kept", str(tmp_path))
    assert "not for burst" in capsys.readouterr().err


def test_no_two_measures_share_a_name() -> None:
    known = [measure for measures in SETS.values() for measure in measures]

    assert len(known) == len({measure.name for measure in known})
    assert all(
        row.ours in measure.sides and row.raw in {None, *measure.sides} for measure in known for row in measure.rows
    )
