"""What a measure yields: readings of each side, the rows made of them, and the bars that rows must meet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from benchmarks.scene import Needs, Scene

Readings = Mapping[str, float]
"""What one side read in one round, by name."""

Side = Callable[["Scene"], Readings]


T = TypeVar("T")


def in_turn(sides: Sequence[T], number: int) -> list[T]:
    """Begin each round with another side: the first one finds the machine as the last one left it."""
    start = number % len(sides) if sides else 0
    return [*sides[start:], *sides[:start]]


class LeftOutError(RuntimeError):
    """A reference is not available on this machine: the rows that need it are left out, with this reason."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about one row: its own value, or its ratio to the other side, is at most or at least `limit`."""

    of: Literal["value", "ratio"]
    kind: Literal["at most", "at least"]
    limit: float

    def shortfall(self, figure: float) -> float:
        """How far `figure` misses the bar, relative to it; 0 or less means that it is met."""
        miss = figure - self.limit if self.kind == "at most" else self.limit - figure
        return miss / self.limit if self.limit else miss

    def shown(self, unit: str) -> str:
        sign = "≤" if self.kind == "at most" else "≥"
        return (f"{sign} {self.limit:g}" + ("x" if self.of == "ratio" else f" {unit}")).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: the reading `key` of one side, beside that of another (`raw`) if there is one.

    `raw_key` is the other side's reading if its name differs.
    """

    title: str
    unit: str
    key: str
    ours: str
    raw: str | None = None
    raw_key: str | None = None
    bar: Bar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Something to measure. Its sides take turns, once per round; `needs` is what must run before the first.

    `rounds_at_most` is for slow measures that hardly differ from round to round.
    """

    name: str
    sides: Mapping[str, Side]
    rows: Sequence[Row]
    needs: "frozenset[Needs]" = frozenset()
    rounds_at_most: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A row with the readings of every round, in their order."""

    row: Row
    ours: Sequence[float]
    raw: Sequence[float] = ()
    others: float = 0.0
    """The largest part of the machine that others used while a side of this row performed."""

    @property
    def value(self) -> float:
        return median(self.ours)

    @property
    def ratio(self) -> float | None:
        """The median of each round's own ratio: rounds differ more than sides do, because the machine is never quiet."""
        ratios = [ours / raw for ours, raw in zip(self.ours, self.raw, strict=True) if raw] if self.raw else []
        return median(ratios) if ratios else None

    @property
    def verdict(self) -> str:
        """`met`, `missed by 12 %`, or nothing without a bar."""
        bar = self.row.bar
        figure = None if bar is None else self.value if bar.of == "value" else self.ratio
        if bar is None or figure is None:
            return ""
        short = bar.shortfall(figure)
        return "met" if short <= 0 else f"missed by {short:.0%}"
