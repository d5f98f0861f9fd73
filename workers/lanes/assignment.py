"""Which child runs a call: one with its walls, which were applied before anything ran there and cannot be removed."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forge_tools.model import Claim
from forge_tools.sandbox.walls.profile import Profile
from workers.lanes.process import PoolProcess

PATIENCE = 60.0
"""Seconds that a call waits for a child to be forked."""


@dataclass(slots=True)
class _Waiting:
    claim: Claim
    profile: Profile | None
    since: float = field(default_factory=time.monotonic)


class Assignment:
    """Calls that fit no idle child wait for a new one, which replaces the idle one whose profile was used least."""

    def __init__(self, profile_of: Callable[[Claim], Profile | None]) -> None:
        self._profile_of = profile_of
        self._uses: Counter[Profile | None] = Counter()
        self._waiting: list[_Waiting] = []

    @property
    def waiting(self) -> list[Claim]:
        return [one.claim for one in self._waiting]

    def child_for(self, claim: Claim, idle: Sequence[PoolProcess]) -> PoolProcess | None:
        """Return an idle child that fits; None: the call waits for one, and `least_used` must make room."""
        asked = _Waiting(claim, self._profile_of(claim))
        self._uses[asked.profile] += 1
        if (child := _fitting(asked.profile, idle)) is None:
            self._waiting.append(asked)
        return child

    def next(self, idle: Sequence[PoolProcess]) -> tuple[PoolProcess, Claim] | None:
        """Take the first waiting call that fits one of these children."""
        for one in self._waiting:
            if (child := _fitting(one.profile, idle)) is not None:
                self._waiting.remove(one)
                return child, one.claim
        return None

    def least_used(self, idle: Sequence[PoolProcess]) -> PoolProcess:
        """Return the one of these children that may end."""
        return min(idle, key=lambda child: self._uses[child.profile])

    def withdraw(self, execution_id: str, attempt: int) -> Claim | None:
        """Take that call back, if it waits."""
        found = next(
            (one for one in self._waiting if (one.claim.id, one.claim.attempt) == (execution_id, attempt)), None
        )
        if found is not None:
            self._waiting.remove(found)
        return None if found is None else found.claim

    def overdue(self, patience: float = PATIENCE) -> list[Claim]:
        """Take back calls that have waited longer: the pool forks nothing."""
        late = [one for one in self._waiting if time.monotonic() - one.since >= patience]
        self._waiting = [one for one in self._waiting if one not in late]
        return [one.claim for one in late]


def _fitting(profile: Profile | None, idle: Sequence[PoolProcess]) -> PoolProcess | None:
    """Return one that already has these walls; or a fresh one, which fits any call and keeps its walls from then on."""
    walled = (child for child in idle if not child.is_fresh and child.profile == profile)
    child = next(walled, None) or next((child for child in idle if child.is_fresh), None)
    if child is not None:
        child.profile, child.is_fresh = profile, False
    return child
