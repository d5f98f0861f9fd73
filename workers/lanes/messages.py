"""The messages that children brought from Celery: their rings wait for an idle child, their tasks for leave to return."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forge_tools.records import Ring

MOST_WAITING = 1000
"""Rings kept at most; what does not fit is pulled from SQL in its turn."""


@dataclass(slots=True)
class _Message:
    """`waiting` counts its rings that nobody has taken yet."""

    waiting: int
    rest: Callable[[], None]


class Messages:
    """Rings are served in the order in which they came, whichever child brought them.

    Celery brings no message to a child whose task waits here, and what a full worker does not take another one gets. So
    a task also waits, with all its rings taken, until a child is idle.
    """

    def __init__(self) -> None:
        self._rings: deque[tuple[Ring, _Message]] = deque()
        self._held: dict[int, _Message] = {}

    @property
    def waiting(self) -> int:
        """How many rings nobody has taken yet."""
        return len(self._rings)

    def add(self, holder: int, rings: Sequence[Ring], rest: Callable[[], None]) -> None:
        """Keep what came to the process `holder`, whose task waits until `rest` is called."""
        kept = rings[: MOST_WAITING - len(self._rings)]
        message = self._held[holder] = _Message(len(kept), rest)
        self._rings.extend((ring, message) for ring in kept)

    def take(self, count: int) -> list[Ring]:
        """The next rings, `count` of them at most."""
        taken = [self._rings.popleft() for _ in range(min(count, len(self._rings)))]
        for _, message in taken:
            message.waiting -= 1
        return [ring for ring, _ in taken]

    def holds(self, process: int) -> bool:
        """Whether the task of that process waits here."""
        return process in self._held

    def let_rest(self, count: int) -> None:
        """Let up to `count` tasks return whose rings were all taken."""
        done = [holder for holder, message in self._held.items() if message.waiting == 0]
        for holder in done[: max(0, count)]:
            self._held.pop(holder).rest()

    def forget(self, process: int) -> None:
        """Its task is gone with it; its rings stay."""
        self._held.pop(process, None)
