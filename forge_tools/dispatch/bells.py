"""What goes to the broker: (execution id, attempt) pairs for one queue and lane, in as few messages as are fair."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from forge_tools.records import Lane, Ring

RINGS_PER_MESSAGE: Mapping[Lane, int] = {"async": 128, "process": 16}
MESSAGES_PER_WORKER: Mapping[Lane, int] = {"async": 2, "process": 8}
"""Into how many messages a burst is cut for each worker that shares it, so that competing consumers get equal parts.

A worker of the process lane runs few calls at a time, and they are long: the rest of its message waits for it.
"""
LEAST_SHARED: Mapping[Lane, int] = {"async": 8, "process": 1}
"""Rings that stay together all the same: messages cost more than who runs a handful of calls is worth."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a timeout becomes as Celery time limits, in whole seconds rounded up.

    A child may wait `claim_patience` for its claim before the body starts, so the soft limit allows for it, and the hard
    one adds the grace in which a cancelled body may clean up. They tell whoever looks at the broker. Our workers enforce the
    row's own timeout, to the millisecond and from the start of the body; a message can be forged, and may have waited.
    """

    soft: int
    hard: int

    @classmethod
    def of(cls, timeout: float, *, claim_patience: float, kill_grace: float) -> "Limits":
        soft = timeout + claim_patience
        return cls(soft=math.ceil(soft), hard=math.ceil(soft + kill_grace))


@dataclass(frozen=True, slots=True)
class Bells:
    """Rings that go to one queue, with the limits their messages carry. What is `is_bulk` lets all others go first."""

    queue: str
    lane: Lane
    rings: tuple[Ring, ...]
    limits: Limits
    is_bulk: bool = False


def queue_name(queue: str, lane: Lane) -> str:
    """The broker queue that serves `queue` in that lane."""
    return f"forge.{queue}.{lane}"


def queue_of(name: str) -> str:
    """The queue whose broker queue has that name."""
    return name.removeprefix("forge.").rpartition(".")[0]


def merge(bells: Sequence[Bells], workers: Mapping[tuple[str, str], int] = MappingProxyType({})) -> list[Bells]:
    """Put rings for one queue into as few messages as its lane and the number of its workers allow.

    A message carries its longest limits.
    """
    groups: dict[tuple[str, Lane, bool], list[Bells]] = {}
    for one in bells:
        groups.setdefault((one.queue, one.lane, one.is_bulk), []).append(one)
    return [message for group in groups.values() for message in _messages(group, workers)]


def _messages(group: Sequence[Bells], workers: Mapping[tuple[str, str], int]) -> list[Bells]:
    queue, lane = group[0].queue, group[0].lane
    rings = [(ring, one.limits) for one in group for ring in one.rings]
    size = _size(lane, len(rings), workers.get((queue, lane), 1))
    messages = []
    for start in range(0, len(rings), size):
        part = rings[start : start + size]
        longest = max((limits for _, limits in part), key=lambda limits: limits.hard)
        messages.append(Bells(queue, lane, tuple(ring for ring, _ in part), longest, group[0].is_bulk))
    return messages


def _size(lane: Lane, count: int, workers: int) -> int:
    """How many rings go into one message: one worker takes a whole message, so several workers need several."""
    most = RINGS_PER_MESSAGE[lane]
    if workers < 2:
        return most
    return min(most, max(LEAST_SHARED[lane], math.ceil(count / (MESSAGES_PER_WORKER[lane] * workers))))
