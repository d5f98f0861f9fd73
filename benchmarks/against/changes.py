"""What is measured for both commits, and when a figure counts as worse."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks.against.arms import Arm
from benchmarks.figures import Readings
from benchmarks.fleets import Database
from benchmarks.pairs import lone_calls

TOLERANCE = 0.05
OLD, AGAIN, NEW = "old", "old again", "new"
"""The arms: the old commit takes part twice."""


@dataclass(frozen=True, slots=True)
class Change:
    """A figure with the readings of every round, by arm."""

    title: str
    unit: str
    readings: dict[str, list[float]] = field(default_factory=dict)

    def add(self, read: Readings) -> None:
        """Add the readings of one more round."""
        for arm, reading in read.items():
            self.readings.setdefault(arm, []).append(reading)

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios, new to old (for a rate old to new), so that above 1 is worse."""
        return median(self._costs(NEW))

    @property
    def spread(self) -> float:
        """The largest relative difference between the two arms of the old commit: smaller changes cannot be detected."""
        return max(max(cost, 1 / cost) for cost in self._costs(AGAIN)) - 1

    @property
    def verdict(self) -> str:
        """`worse` or `better`, if it is so by more than the tolerance and by more than the spread."""
        bound = 1 + max(TOLERANCE, self.spread)
        return "worse" if self.ratio > bound else "better" if self.ratio < 1 / bound else ""

    def _costs(self, arm: str) -> list[float]:
        """The ratio of each round to the old commit; rounds that took less than a clock tick are left out."""
        pairs = [pair for pair in zip(self.readings[arm], self.readings[OLD], strict=True) if all(pair)]
        return [old / other if self.unit == "/s" else other / old for other, old in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much each arm does in a turn, and how many turns a round has."""

    lone: int = 100
    silences: int = 40
    burst: int = 2_000
    pages: int = 20
    files: int = 50
    turns: int = 3


QUICK = Sizes(lone=20, silences=3, burst=400, pages=3, files=5, turns=1)


@dataclass(frozen=True, slots=True)
class Figure:
    """What one round measures of every arm, by name."""

    title: str
    unit: str
    read: Callable[[Sequence[Arm], Sizes], Readings]


def _lone(silence: float, arms: Sequence[Arm], sizes: Sizes) -> Readings:
    calls = sizes.silences if silence else sizes.lone * sizes.turns
    took = lone_calls([arm.client for arm in arms], calls, silence)
    return {name: median(milliseconds) for name, milliseconds in took.items()}


def _turns(do: Callable[[Arm, Sizes], float], arms: Sequence[Arm], sizes: Sizes) -> Readings:
    done: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(sizes.turns):
        for arm in arms:
            done[arm.name].append(do(arm, sizes))
    return {name: median(readings) for name, readings in done.items()}


def _turn_by_turn(title: str, unit: str, do: Callable[[Arm, Sizes], float]) -> Figure:
    return Figure(title, unit, partial(_turns, do))


def _cpu(what: str, arm: Arm, calls: int) -> float:
    """Microseconds a call."""
    used = arm.cpu()
    arm.client.ask(what, calls=calls)
    return (arm.cpu() - used) / calls * 1e6


def _tool(name: str, **parameters: str) -> Figure:
    return _turn_by_turn(
        f"{name}, in process, nothing synced",
        "ms",
        lambda arm, sizes: arm.ask("tool", name=name, parameters=parameters, turns=sizes.files),
    )


CALLS = (
    Figure("lone call p50, back to back", "ms", partial(_lone, 0.0)),
    _turn_by_turn("CPU of a lone call", "us", lambda arm, sizes: _cpu("lone", arm, sizes.lone)),
    _turn_by_turn("many calls at once", "/s", lambda arm, sizes: arm.ask("burst", calls=sizes.burst)),
    _turn_by_turn("CPU of one of many calls", "us", lambda arm, sizes: _cpu("burst", arm, sizes.burst)),
)
FIGURES: Mapping[Database, Sequence[Figure]] = {
    "postgres": (
        *CALLS,
        Figure("lone call p50, after 50 ms of silence", "ms", partial(_lone, 0.05)),
        _turn_by_turn("page of history", "ms", lambda arm, sizes: arm.ask("history", pages=sizes.pages)),
        _turn_by_turn("CPU of `forge-tools history`", "ms", lambda arm, _: arm.command("history", "--limit", "3")),
        _tool("Read", file_path="text"),
        _tool("Write", file_path="other", content="one line of text\n" * 60),
    ),
    "sqlite": CALLS,
}
