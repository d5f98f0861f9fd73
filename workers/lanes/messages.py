"""The messages that children brought from Celery: their ids wait for an idle child, their tasks for leave to return."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forge_tools.model import Wakeup

MOST_WAITING = 1000
"""Wakeups kept at most; what does not fit is pulled from SQL in its turn."""


@dataclass(slots=True)
class _Message:
    """`waiting` counts its ids that nobody has taken yet."""

    waiting: int
    rest: Callable[[], None]


class Messages:
    """Wakeups are served in the order in which they came, whichever child brought them.

    Celery brings no message to a child whose task waits here, and what a full worker does not take another one gets. So
    a task also waits, with all its ids taken, until a child is idle.
    """

    def __init__(self) -> None:
        self._wakeups: deque[tuple[Wakeup, _Message]] = deque()
        self._held: dict[int, _Message] = {}

    @property
    def waiting(self) -> int:
        """How many ids nobody has taken yet."""
        return len(self._wakeups)

    def add(self, holder: int, wakeups: Sequence[Wakeup], rest: Callable[[], None]) -> None:
        """Keep what came to the process `holder`, whose task waits until `rest` is called."""
        kept = wakeups[: MOST_WAITING - len(self._wakeups)]
        message = self._held[holder] = _Message(len(kept), rest)
        self._wakeups.extend((wakeup, message) for wakeup in kept)

    def take(self, count: int) -> list[Wakeup]:
        """The next ids, `count` of them at most."""
        taken = [self._wakeups.popleft() for _ in range(min(count, len(self._wakeups)))]
        for _, message in taken:
            message.waiting -= 1
        return [wakeup for wakeup, _ in taken]

    def holds(self, process: int) -> bool:
        """Whether the task of that process waits here."""
        return process in self._held

    def let_rest(self, count: int) -> None:
        """Let up to `count` tasks return whose ids were all taken."""
        done = [holder for holder, message in self._held.items() if message.waiting == 0]
        for holder in done[: max(0, count)]:
            self._held.pop(holder).rest()

    def forget(self, process: int) -> None:
        """Its task is gone with it; its ids stay."""
        self._held.pop(process, None)
