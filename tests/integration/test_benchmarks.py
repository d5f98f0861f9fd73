"""Measures that start servers, workers and clients, with so few calls that no figure means anything."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import runner
from benchmarks.against import arms
from benchmarks.against.changes import FIGURES, QUICK
from benchmarks.measures import capturing, parts, round_trip
from benchmarks.scene import Sizes
from tests.fleet import copy_packages
from tests.preloaded import turns_forked
from tests.session_folder import SessionFolder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    session = SessionFolder()
    yield session.path
    session.remove()


@pytest.fixture(scope="module")
def _forks() -> Iterator[None]:
    with turns_forked("benchmarks.measures.capturing", "benchmarks.measures.parts"):
        yield


def test_an_arm_runs_its_own_tree_and_yields_every_figure(folder: Path) -> None:
    tree = folder / "tree"
    copy_packages(tree)

    with arms.arm("old", tree, sys.executable, "sqlite", folder) as old:
        assert old.client.ask("source") == str(tree / "forge_tools" / "__init__.py")
        read = [figure.read([old], QUICK) for figure in FIGURES["postgres"]]

    assert all(reading["old"] > 0 for reading in read)


def test_a_lone_call_is_measured_in_every_rhythm_beside_raw_celery() -> None:
    sizes = replace(Sizes(), round_trips=2, short_silences=2, long_silences=2)

    outcome = runner.run([round_trip.MEASURE], sizes, 1, lambda _: None, retake=False)

    assert outcome.failures == {}
    assert [result.row for result in outcome.results] == list(round_trip.MEASURE.rows)
    assert all(result.ratio for result in outcome.results if result.row.bar and result.row.unit == "ms")


@pytest.mark.usefixtures("_forks")
def test_a_worker_that_captures_nothing_takes_turns_with_one_that_does() -> None:
    [row] = [row for row in capturing.MEASURE.rows if row.ours == "process"]
    measure = replace(capturing.MEASURE, sides={"process": capturing.MEASURE.sides["process"]}, rows=[row])

    outcome = runner.run([measure], replace(Sizes(), burst=40), 1, lambda _: None, retake=False)

    assert outcome.failures == {}
    assert all(result.value > 0 and result.ratio for result in outcome.results)


@pytest.mark.usefixtures("_forks")
def test_an_image_takes_turns_with_sql_by_hand_and_a_large_file_is_watched() -> None:
    side = "SQLite, process lane"
    rows = [row for row in parts.MEASURE.rows if row.ours == side]
    copies = replace(parts.MEASURE, needs={"sqlite-process"}, sides={side: parts.MEASURE.sides[side]}, rows=rows)
    sizes = replace(Sizes(), image_copies=1, image_bytes=1_500_000, file_bytes=3_000_000)

    outcome = runner.run([copies, parts.MEMORY], sizes, 1, lambda _: None, retake=False)

    assert outcome.failures == {}
    assert [result.row.key for result in outcome.results] == ["ours each", "ours cpu", *["worker", "client"] * 2]
    assert all(result.ratio for result in outcome.results[:2])
