"""One call at a time, in three rhythms: submit, run, result."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import quantiles

from benchmarks import fleets
from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Fleet
from benchmarks.meter import Meter
from benchmarks.pairs import lone_calls
from benchmarks.scene import Scene

OURS: Fleet = "postgres-solo"
RAW: Fleet = "raw"
SQLITE: Fleet = "sqlite-solo"
BACK_TO_BACK, SHORT, LONG = "back to back", "after 50 ms of silence", "after 1.5 s of silence"


def by_turns(scene: Scene) -> Readings:
    """Ours and raw Celery in one turn, call by call; SQLite takes part back to back."""
    with ExitStack() as cleanup:
        ours, raw, sqlite = (cleanup.enter_context(fleets.client(scene, fleet)) for fleet in (OURS, RAW, SQLITE))
        meters = {
            OURS: Meter.of(scene, OURS, client=ours.pid),
            RAW: Meter.of(scene, RAW, client=raw.pid),
        }
        times = {BACK_TO_BACK: lone_calls([ours, raw, sqlite], scene.sizes.round_trips)}
        costs = {name: meter.read(scene.sizes.round_trips) for name, meter in meters.items()}
        times[SHORT] = lone_calls([ours, raw], scene.sizes.short_silences, 0.05)
        times[LONG] = lone_calls([ours, raw], scene.sizes.long_silences, 1.5)
    return {
        **{f"{name} {key}": cost for name, read in costs.items() for key, cost in read.items()},
        **{
            f"{name} {rhythm} {key}": time
            for rhythm, took in times.items()
            for name, milliseconds in took.items()
            for key, time in _percentiles(milliseconds).items()
        },
    }


def _percentiles(milliseconds: Sequence[float]) -> Mapping[str, float]:
    tenths = quantiles(milliseconds, n=10, method="inclusive")
    return {"p50": tenths[4], "p90": tenths[8]}


def _row(
    title: str, key: str, *, unit: str = "ms", ours: str = OURS, most: float | None = None, is_alone: bool = False
) -> Row:
    return Row(
        title=title,
        unit=unit,
        key=f"{ours} {key}",
        ours="all",
        raw=None if is_alone else "all",
        raw_key=f"{RAW} {key}",
        bar=None if most is None else Bar("ratio", "at most", most),
    )


MEASURE = Measure(
    name="round-trip",
    needs=frozenset({OURS, SQLITE, RAW}),
    sides={"all": by_turns},
    rows=[
        *(_row(f"lone call p50, {rhythm}", f"{rhythm} p50", most=most)
          for rhythm, most in ((BACK_TO_BACK, 1.25), (SHORT, 1.1), (LONG, 1.4))),
        *(_row(f"lone call p90, {rhythm}", f"{rhythm} p90", most=1.5) for rhythm in (BACK_TO_BACK, SHORT, LONG)),
        _row("CPU of a lone call: client, workers, database", "cpu", unit="us", most=0.75),
        *(_row(f"CPU of a lone call: {party}", party, unit="us") for party in ("client", "workers", "database")),
        _row("statements of a lone call", "statements", unit="", is_alone=True),
        *(_row(f"lone call {key}, back to back, SQLite", f"{BACK_TO_BACK} {key}", ours=SQLITE) for key in ("p50", "p90")),
    ],
)  # fmt: skip
