"""The calls: their kinds, how each may end, and a seeded plan of many."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from forge_tools.model import ExecutionStatus, Lane
from tests.chaos.tools import ERRANDS, FAMILIES, tool_name

SUCCEEDED, FAILED = ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED
TIMED_OUT, LOST = ExecutionStatus.TIMED_OUT, ExecutionStatus.LOST

LONG = 30.0
"""Seconds that no body of a well-behaved call comes near."""

KILL_GRACE = 1.0

ENDLESS = {"Hang", "Stubborn", "Block", "Family", *(shape.__name__ for shape in FAMILIES)}
"""What nothing but its timeout ends."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of call. Besides its `endings` any may end as lost where something died, or as cancelled where asked."""

    shape: str
    lane: Lane
    endings: frozenset[ExecutionStatus]
    weight: float = 1.0
    shortest: float = 0.0
    longest: float = 0.0
    timeout: float = LONG
    ends_process: bool = False

    @property
    def holds_loop(self) -> bool:
        """Whether its neighbours cannot go on meanwhile."""
        return self.lane == "async" and self.shape in {"Block", "Compute"}


@dataclass(frozen=True, slots=True)
class Planned:
    """One call that will be submitted `at` seconds after the start."""

    at: float
    mark: str
    kind: Kind
    idempotent: bool
    seconds: float
    cancel_after: float | None = None

    @property
    def tool(self) -> str:
        return tool_name(self.kind.shape, self.kind.lane, idempotent=self.idempotent)

    @property
    def takes(self) -> float:
        """Seconds within which its body ends, by itself or by its timeout."""
        return self.kind.timeout + 2 * KILL_GRACE if self.kind.shape in ENDLESS else self.seconds

    @property
    def max_starts(self) -> int:
        """How many bodies may start, whatever happens."""
        return 3 if self.idempotent else 1


def kind(shape: str, lane: Lane, endings: Sequence[ExecutionStatus], **more: float | bool) -> Kind:
    return Kind(shape, lane, frozenset(endings), **more)


MIX = (
    kind("Work", "async", [SUCCEEDED, TIMED_OUT], weight=40, longest=0.3),
    kind("Work", "async", [SUCCEEDED, TIMED_OUT], weight=25, shortest=1, longest=4),
    kind("Work", "async", [SUCCEEDED, TIMED_OUT], weight=6, shortest=0.7, longest=1.0, timeout=1.5),
    kind("Work", "async", [SUCCEEDED, TIMED_OUT], weight=3, shortest=4, longest=8),
    kind("Work", "process", [SUCCEEDED, TIMED_OUT], weight=10, longest=0.2),
    kind("Work", "process", [SUCCEEDED, TIMED_OUT], weight=1, shortest=2, longest=6),
    kind("Work", "process", [SUCCEEDED, TIMED_OUT], weight=3, shortest=0.5, longest=0.8, timeout=1.5),
    kind("Compute", "process", [SUCCEEDED, TIMED_OUT], weight=6, longest=0.5),
    kind("Errand", "process", [SUCCEEDED, TIMED_OUT], weight=3, longest=0.5),
    kind("Fail", "async", [FAILED, TIMED_OUT], weight=4, longest=0.2),
    kind("Fail", "process", [FAILED, TIMED_OUT], weight=2, longest=0.2),
    kind("Raise", "async", [FAILED, TIMED_OUT], weight=2, longest=0.2),
    kind("Raise", "process", [FAILED, TIMED_OUT], weight=1, longest=0.2),
    kind("Hang", "async", [TIMED_OUT], weight=4, timeout=1.0),
    kind("Hang", "process", [TIMED_OUT], weight=1, timeout=0.7),
    kind("Stubborn", "async", [TIMED_OUT], weight=1, timeout=0.7),
    kind("Stubborn", "process", [TIMED_OUT], weight=0.5, timeout=0.7),
    kind("Block", "process", [TIMED_OUT], weight=1, timeout=0.7),
    kind("Family", "process", [TIMED_OUT], weight=1.5, timeout=0.7),
    *(kind(shape.__name__, "async", [TIMED_OUT], weight=1, timeout=0.7) for shape in FAMILIES),
    *(kind(shape.__name__, "async", [SUCCEEDED, TIMED_OUT], weight=1.5, longest=1.5) for shape in ERRANDS),
    kind("Block", "async", [FAILED, TIMED_OUT], weight=0.3, timeout=5.0),
    kind("Compute", "async", [SUCCEEDED, FAILED, TIMED_OUT], weight=0.3, shortest=2, longest=3),
    kind("Kill", "async", [LOST], weight=0.2, ends_process=True),
    kind("Exit", "async", [LOST], weight=0.2, ends_process=True),
    kind("Exit", "process", [LOST], weight=0.7, ends_process=True),
    kind("Kill", "process", [LOST], weight=0.7, ends_process=True),
    kind("LetGo", "async", [LOST], weight=0.3, ends_process=True),
    kind("Starve", "async", [SUCCEEDED, TIMED_OUT], weight=0.6, shortest=1, longest=4),
    kind("Lower", "process", [SUCCEEDED, TIMED_OUT], weight=0.7),
    kind("Pose", "async", [SUCCEEDED, TIMED_OUT], weight=0.5),
    kind("Pose", "process", [SUCCEEDED, TIMED_OUT], weight=0.7),
    kind("SpeakForOthers", "process", [LOST], weight=0.7, timeout=10.0, ends_process=True),
)

CANCELLED_SHARE = 0.04


def plan_calls(random_numbers: random.Random, *, seconds: float, count: int, name: str) -> list[Planned]:
    """`count` calls of the mix, spread over `seconds`, in order of time."""
    moments = sorted(random_numbers.uniform(0, seconds) for _ in range(count))
    kinds = random_numbers.choices(MIX, [one.weight for one in MIX], k=count)
    return [
        Planned(
            at=at,
            mark=f"{name}-{number}",
            kind=one,
            idempotent=random_numbers.random() < 0.5,
            seconds=round(random_numbers.uniform(one.shortest, one.longest), 3),
            cancel_after=random_numbers.uniform(0, 2) if random_numbers.random() < CANCELLED_SHARE else None,
        )
        for number, (at, one) in enumerate(zip(moments, kinds, strict=True))
    ]
