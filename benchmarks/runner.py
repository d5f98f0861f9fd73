"""Lets the sides of every measure take turns, round after round, and gathers what they read."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context

from benchmarks.figures import Measure, Readings, Result, Side
from benchmarks.scene import Scene, Sizes
from benchmarks.stage import stage


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rows of a run, and the sides that failed with the reason; their rows are missing."""

    results: list[Result]
    failures: dict[str, str] = field(default_factory=dict)


def run(measures: Sequence[Measure], sizes: Sizes, rounds: int, tell: Callable[[str], None]) -> Outcome:
    """Run `rounds` rounds of the measures; `tell` hears what is under way."""
    readings: dict[tuple[str, str], list[Readings]] = {}
    failures: dict[str, str] = {}
    tell("starting servers and workers")
    with stage(sizes, {need for measure in measures for need in measure.needs}) as scene:
        for number in range(rounds):
            for measure in measures:
                for side, perform in _turns(measure, number):
                    where = f"{measure.name} {side}"
                    if where in failures:
                        continue
                    tell(f"round {number + 1} of {rounds}: {where}")
                    try:
                        readings.setdefault((measure.name, side), []).append(_in_fresh_process(perform, scene))
                    except Exception as error:  # one side that cannot run must not cost the others their figures
                        failures[where] = f"{type(error).__name__}: {error}"
    return Outcome(_results(measures, readings, failures, sizes), failures)


def _in_fresh_process(perform: Side, scene: Scene) -> Readings:
    """Let a side perform where no other one has: what they load and leave behind slows the collector of garbage."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(perform, scene).result()


def _turns(measure: Measure, number: int) -> list[tuple[str, Side]]:
    """Each round begins with another side: whoever comes first finds the machine as the last one left it."""
    sides = list(measure.sides.items())
    start = number % len(sides)
    return sides[start:] + sides[:start]


def _results(
    measures: Sequence[Measure],
    readings: dict[tuple[str, str], list[Readings]],
    failures: dict[str, str],
    sizes: Sizes,
) -> list[Result]:
    results = []
    for measure in measures:
        for row in measure.rows:
            if {f"{measure.name} {row.ours}", f"{measure.name} {row.raw}"} & failures.keys():
                continue
            ours = [one[row.key] for one in readings[measure.name, row.ours]]
            raw = [one[row.raw_key or row.key] for one in readings[measure.name, row.raw]] if row.raw else []
            titled = replace(row, title=row.title.format_map(asdict(sizes)))
            results.append(Result(titled, ours, raw))
    return results
