"""Which child runs a call: one with its walls, which were applied before anything ran there and cannot be removed."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forge_tools.model import Claim
from forge_tools.sandbox.walls.profile import Profile
from workers.lanes.process import SPARED_SECONDS, PoolProcess

FORK_SECONDS = 60.0
"""How long a call waits for a child to be forked."""


@dataclass(slots=True)
class _Waiting:
    """A call for which a child `is_on_its_way` is to take the place of another."""

    claim: Claim
    profile: Profile | None
    since: float = field(default_factory=time.monotonic)
    is_on_its_way: bool = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class Assignment:
    """Calls that fit no idle child wait for one that runs; where none fits, an idle one makes room for a new one."""

    def __init__(self, profile_of: Callable[[Claim], Profile | None]) -> None:
        self._profile_of = profile_of
        self._uses: Counter[Profile | None] = Counter()
        self._waiting: list[_Waiting] = []

    @property
    def waiting(self) -> list[Claim]:
        return [one.claim for one in self._waiting]

    def unserved(self, running: int) -> int:
        """How many calls wait for which no child is on its way, beyond the one behind each of the running children."""
        return max(0, sum(not one.is_on_its_way for one in self._waiting) - running)

    def child_for(self, claim: Claim, idle: Sequence[PoolProcess]) -> PoolProcess | None:
        """Return an idle child that fits; None: the call waits for one."""
        asked = _Waiting(claim, self._profile_of(claim))
        self._uses[asked.profile] += 1
        if (child := _walled(asked, idle) or _fresh(asked, idle)) is None:
            self._waiting.append(asked)
        return child

    def next(self, idle: Sequence[PoolProcess]) -> tuple[PoolProcess, Claim] | None:
        """Take the first waiting call that fits one of these children; a fresh one is for whom it was forked."""
        by_promise = sorted(self._waiting, key=lambda one: not one.is_on_its_way)
        for fitting, order in ((_walled, self._waiting), (_fresh, by_promise)):
            for one in order:
                if (child := fitting(one, idle)) is not None:
                    self._waiting.remove(one)
                    return child, one.claim
        return None

    def to_replace(self, idle: Sequence[PoolProcess], running: Sequence[PoolProcess]) -> list[PoolProcess]:
        """Choose idle children that make room for calls that wait: those whose walls were used least.

        Where a running child has a call's walls, the call waits for that one, and only a child that nobody used for as
        long makes room: two workspaces by turns would replace children all the time.
        """
        soon = {child.profile for child in running}
        chosen: list[PoolProcess] = []
        for one in self._waiting:
            patient = one.profile in soon and one.seconds < SPARED_SECONDS
            left = [child for child in idle if child not in chosen and not (patient and child.was_just_used)]
            if left and not one.is_on_its_way:
                one.is_on_its_way = True
                chosen.append(min(left, key=lambda child: self._uses[child.profile]))
        return chosen

    def withdraw(self, execution_id: str, attempt: int) -> Claim | None:
        """Take that call back, if it waits."""
        found = next(
            (one for one in self._waiting if (one.claim.id, one.claim.attempt) == (execution_id, attempt)), None
        )
        if found is not None:
            self._waiting.remove(found)
        return None if found is None else found.claim

    def overdue(self, patience: float = FORK_SECONDS) -> list[Claim]:
        """Take back calls that have waited longer: the pool forks nothing."""
        late = [one for one in self._waiting if one.seconds >= patience]
        self._waiting = [one for one in self._waiting if one not in late]
        return [one.claim for one in late]


def _walled(one: _Waiting, idle: Sequence[PoolProcess]) -> PoolProcess | None:
    """Return one that already has these walls."""
    return next((child for child in idle if not child.is_fresh and child.profile == one.profile), None)


def _fresh(one: _Waiting, idle: Sequence[PoolProcess]) -> PoolProcess | None:
    """Return a fresh one, which fits any call and keeps its walls from then on."""
    if (child := next((child for child in idle if child.is_fresh), None)) is not None:
        child.profile, child.is_fresh = one.profile, False
    return child
