"""Calls counted in this process, by what they are told apart by; the times of each group are kept, and ranked at the end."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, fsum
from typing import Any

from sqlalchemy import Row, Select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.records import CallFigures, ExecutionStatus, Times

PERCENTILES = (50, 95, 99)
FAILED = (ExecutionStatus.FAILED, ExecutionStatus.TIMED_OUT, ExecutionStatus.EXPIRED, ExecutionStatus.LOST)
ROWS = 1_000
"""So many are fetched and counted at once: others of the same event loop wait as long."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The calls of one group: how many ended how, and their times in milliseconds."""

    ends: Counter[str] = field(default_factory=Counter)
    durations: "array[float]" = field(default_factory=lambda: array("d"))
    waits: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def calls(self) -> int:
        return self.ends.total()

    @property
    def failed(self) -> int:
        """Every end but success, rejection and cancel."""
        return sum(self.ends[status] for status in FAILED)

    def add(self, other: "Tally") -> None:
        """Count the calls of another group here, too."""
        self.ends.update(other.ends)
        self.durations.extend(other.durations)
        self.waits.extend(other.waits)

    def figures(self, key: str | None) -> CallFigures:
        """What is told of the group."""
        return CallFigures(
            key=key,
            calls=self.calls,
            succeeded=self.ends[ExecutionStatus.SUCCEEDED],
            failed=self.failed,
            rejected=self.ends[ExecutionStatus.REJECTED],
            duration_ms=_spread(self.durations),
            wait_ms=_spread(self.waits),
        )


Tallies = defaultdict[Any, Tally]
"""Groups by their keys: `Tallies(Tally)` has none yet."""


async def count(
    connection: AsyncConnection, calls: Select[Any], key_of: Callable[[Row[Any]], Any], into: Tallies
) -> None:
    """Add rows, whose last columns are status, duration and wait, each to the group of its key. No row is held."""
    async with connection.stream(calls) as rows:
        async for part in rows.partitions(ROWS):
            for row in part:
                status, duration, wait = row[-3:]
                group = into[key_of(row)]
                group.ends[status] += 1
                if duration is not None:
                    group.durations.append(duration)
                if wait is not None:
                    group.waits.append(wait)


def lines(groups: Mapping[str | None, Tally]) -> list[CallFigures]:
    """The figures of each group, in the order of their keys, None last."""
    return in_order([group.figures(key) for key, group in groups.items()])


def in_order(figures: Iterable[CallFigures]) -> list[CallFigures]:
    """By their keys, None last, as every database and this process have it."""
    return sorted(figures, key=lambda one: (one.key is None, one.key or ""))


def _spread(times: Sequence[float]) -> Times:
    """Percentiles are by nearest rank: a time that was measured, and the same one wherever it is ranked."""
    if not times:
        return Times(mean=None, max=None, **{f"p{percent}": None for percent in PERCENTILES})
    ranked = sorted(times)
    return Times(
        mean=fsum(ranked) / len(ranked),
        max=ranked[-1],
        **{f"p{percent}": ranked[ceil(len(ranked) * percent / 100) - 1] for percent in PERCENTILES},
    )
