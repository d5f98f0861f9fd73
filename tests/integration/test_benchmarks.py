"""Measures that start servers, workers and clients, with so few calls that no figure means anything."""

from dataclasses import replace

from benchmarks import runner
from benchmarks.measures import round_trip
from benchmarks.scene import Sizes


def test_a_lone_call_is_measured_in_every_rhythm_beside_raw_celery() -> None:
    sizes = replace(Sizes(), round_trips=2, short_silences=2, long_silences=2)

    outcome = runner.run([round_trip.MEASURE], sizes, 1, lambda _: None, retake=False)

    assert outcome.failures == {}
    assert [result.row for result in outcome.results] == list(round_trip.MEASURE.rows)
    assert all(result.ratio for result in outcome.results if result.row.bar and result.row.unit == "ms")
