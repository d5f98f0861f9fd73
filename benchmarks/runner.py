"""Lets the sides of every measure take turns, round after round, and gathers what they read."""

import gc
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from benchmarks.figures import LeftOutError, Measure, Readings, Result, Side, in_turn
from benchmarks.quiet import NOISY, Watch
from benchmarks.scene import Scene, Sizes
from benchmarks.stage import stage

REPEATABLE_SECONDS = 30.0
"""Turns that take longer are not taken again."""

START = "spawn"
"""How the process of a turn begins: with nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rows of a run, and the sides that failed or are not to be had here, with the reason; their rows are missing."""

    results: list[Result]
    failures: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side read in one round, and how much of the machine others used meanwhile."""

    readings: Readings
    others: float
    seconds: float


Turns = dict[str, list[Turn]]
"""Of each side, in the order of the rounds."""


def run(
    measures: Sequence[Measure],
    sizes: Sizes,
    rounds: int,
    tell: Callable[[str], None],
    *,
    retake: bool = True,
    kept: Path | None = None,
    done: Callable[[Result], None] = lambda _: None,
) -> Outcome:
    """Run each measure for so many rounds; `tell` gets what is under way, and `done` each row as soon as it is known.

    `retake` has disturbed turns taken again; `kept` is the folder of a long history.
    """
    outcome = Outcome([])
    with stage(sizes, tell, kept) as bare:
        for measure in measures:
            tell(f"{measure.name}: starting servers and workers")
            scene = bare.set_for(measure.needs)
            turns, failures = _perform(measure, scene, rounds, tell, retake=retake)
            for side, error in failures.items():
                missing = outcome.left_out if isinstance(error, LeftOutError) else outcome.failures
                missing[f"{measure.name} {side}"] = f"{type(error).__name__}: {error}"
            results = _results(measure, turns, failures, scene.sizes)
            for result in results:
                done(result)
            outcome.results.extend(results)
    return outcome


def _perform(
    measure: Measure, scene: Scene, rounds: int, tell: Callable[[str], None], *, retake: bool
) -> tuple[Turns, dict[str, Exception]]:
    turns: Turns = {}
    failures: dict[str, Exception] = {}
    rounds = min(rounds, measure.rounds_at_most or rounds)
    for number in range(rounds):
        for side, perform in in_turn(list(measure.sides.items()), number):
            if side in failures:
                continue
            tell(f"{measure.name}, round {number + 1} of {rounds}: {side}")
            try:
                turns.setdefault(side, []).append(_take_turn(perform, scene, retake=retake))
            except Exception as error:  # one side that cannot run must not cost the others their figures
                failures[side] = error
    return turns, failures


def _take_turn(perform: Side, scene: Scene, *, retake: bool) -> Turn:
    """Repeat a turn that others disturbed once; the quieter one counts."""
    turn = _watched(perform, scene)
    if retake and turn.others > NOISY and turn.seconds < REPEATABLE_SECONDS:
        turn = min(turn, _watched(perform, scene), key=lambda one: one.others)
    return turn


def _watched(perform: Side, scene: Scene) -> Turn:
    """Let a side perform where no other one has: what they load and leave behind slows the collector of garbage."""
    with ProcessPoolExecutor(1, mp_context=get_context(START)) as pool:
        watch = Watch()
        readings = pool.submit(_alone, perform, scene).result()
        return Turn(readings, watch.others(), watch.seconds())


def _alone(perform: Side, scene: Scene) -> Readings:
    """What the harness has loaded is no side's cost: the collector would walk all of it again in the midst of a burst."""
    gc.collect()
    gc.freeze()
    return perform(scene)


def _results(measure: Measure, turns: Turns, failures: Collection[str], sizes: Sizes) -> list[Result]:
    results = []
    for row in measure.rows:
        if {row.ours, row.raw} & set(failures):
            continue
        ours, raw = turns[row.ours], turns[row.raw] if row.raw else []
        results.append(
            Result(
                replace(row, title=row.title.format_map(asdict(sizes))),
                [turn.readings[row.key] for turn in ours],
                [turn.readings[row.raw_key or row.key] for turn in raw],
                max(turn.others for turn in (*ours, *raw)),
            )
        )
    return results
