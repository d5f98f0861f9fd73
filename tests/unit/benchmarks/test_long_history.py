"""A long history: which moments its calls have, and what a kept one lacks."""

from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.long_history import STEP_MS, LongHistory, index_changes

LONG = LongHistory(rows=1_000, small=100, old=50, newest_ms=1_790_000_000_000)


def test_the_last_call_is_the_newest_and_each_comes_a_step_behind_the_one_before() -> None:
    assert LONG.moment(LONG.total) == LONG.newest
    assert LONG.moment(2) - LONG.moment(1) == timedelta(milliseconds=STEP_MS)


def test_what_was_loaded_is_read_back_and_an_empty_folder_has_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LongHistory.of_folder(tmp_path)

    LONG.note(tmp_path)

    assert LongHistory.of_folder(tmp_path) == LONG


def test_indexes_that_differ_are_made_again_and_others_left_alone() -> None:
    there = {"same": "CREATE INDEX same", "gone": "CREATE INDEX gone", "other": "CREATE INDEX other ON a"}
    made = {"same": "CREATE INDEX same", "other": "CREATE INDEX other ON b", "new": "CREATE INDEX new"}

    assert sorted(index_changes(there, made)) == [
        "CREATE INDEX new", "CREATE INDEX other ON b", "DROP INDEX gone", "DROP INDEX other"
    ]  # fmt: skip
