"""Which child runs a call: one with its walls, which were applied before anything ran there and cannot be removed."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from forge_tools.model import Claim
from forge_tools.sandbox.walls.profile import Profile
from workers.lanes.process import PoolProcess

FORK_SECONDS = 60.0
"""How long a call waits for a child to be forked."""

SPARED_SECONDS = 1.0
"""How long a call waits behind a running child of its walls before another makes room, unless nobody used that for as long."""


@dataclass(slots=True)
class _Waiting:
    """A call without a child yet. `is_on_its_way`: an idle child has made room, and its successor is for this call."""

    claim: Claim
    profile: Profile | None
    since: float = field(default_factory=time.monotonic)
    is_on_its_way: bool = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def is_late(self) -> bool:
        return self.seconds >= SPARED_SECONDS


class Assignment:
    """Calls that fit no idle child wait for one that runs; where none fits, an idle one makes room for a new one."""

    def __init__(self, profile_of: Callable[[Claim], Profile | None]) -> None:
        self._profile_of = profile_of
        self._uses: Counter[Profile | None] = Counter()
        self._waiting: list[_Waiting] = []

    @property
    def waiting(self) -> list[Claim]:
        return [one.claim for one in self._waiting]

    def unserved(self, running: Sequence[PoolProcess]) -> int:
        """How many idle children these calls still need.

        None for those whose child is on its way, nor for as many as there are running children that may run them soon.
        """
        asking = [one for one in self._waiting if not one.is_on_its_way]
        patient = sum(self._is_patient(one, running) for one in asking)
        return len(asking) - patient + max(0, patient - len(running))

    def child_for(self, claim: Claim, idle: Sequence[PoolProcess]) -> PoolProcess | None:
        """Return an idle child that fits; None: the call waits for one."""
        asked = _Waiting(claim, self._profile_of(claim))
        self._uses[asked.profile] += 1
        if (child := _walled(asked, idle) or _fresh(asked, idle)) is None:
            self._waiting.append(asked)
        return child

    def next(self, idle: Sequence[PoolProcess]) -> tuple[PoolProcess, Claim] | None:
        """Take the first waiting call that fits one of these children; fresh ones go first to calls that made room."""
        by_promise = sorted(self._waiting, key=lambda one: not one.is_on_its_way)
        for fitting, order in ((_walled, self._waiting), (_fresh, by_promise)):
            for one in order:
                if (child := fitting(one, idle)) is not None:
                    self._waiting.remove(one)
                    return child, one.claim
        return None

    def to_replace(
        self, idle: Sequence[PoolProcess], running: Sequence[PoolProcess], *, coming: int, most: int
    ) -> list[PoolProcess]:
        """Choose at most so many idle children that make room for calls that wait: those whose walls were used least.

        A call waits for a running child of its walls, and until it is late only a child that nobody used for as long
        makes room: two workspaces by turns would replace children all the time. Nor does one make room for a call that
        one of the `coming` children is free for.
        """
        now = time.monotonic()
        chosen: list[PoolProcess] = []
        free = coming - sum(one.is_on_its_way for one in self._waiting)
        for one in [one for one in self._waiting if not one.is_on_its_way]:
            is_patient = self._is_patient(one, running)
            left = [
                child
                for child in idle
                if child not in chosen and not (is_patient and now - child.idle_since < SPARED_SECONDS)
            ]
            if free > 0 and not is_patient:
                free -= 1
                one.is_on_its_way = True
            elif left and len(chosen) < most:
                one.is_on_its_way = True
                chosen.append(min(left, key=lambda child: self._uses[child.profile]))
        return chosen

    def withdraw(self, execution_id: str, attempt: int) -> list[Claim]:
        """Take that call back, if it waits."""
        return self._withdrawn(
            [one for one in self._waiting if (one.claim.id, one.claim.attempt) == (execution_id, attempt)]
        )

    def withdraw_all(self) -> list[Claim]:
        """Take back every call that waits."""
        return self._withdrawn(self._waiting)

    def given_up(self, *, is_full: bool) -> list[Claim]:
        """Take back calls for which the pool forks nothing, and late ones where `is_full`: no child is idle."""
        return self._withdrawn(
            [
                one
                for one in self._waiting
                if one.seconds >= FORK_SECONDS or (is_full and one.is_late and not one.is_on_its_way)
            ]
        )

    def _is_patient(self, one: _Waiting, running: Iterable[PoolProcess]) -> bool:
        """Return whether it may wait for a child with its walls: one of these, or one that is on its way."""
        soon = {child.profile for child in running}
        soon.update(other.profile for other in self._waiting if other.is_on_its_way)
        return not one.is_late and one.profile in soon

    def _withdrawn(self, some: list[_Waiting]) -> list[Claim]:
        self._waiting = [one for one in self._waiting if one not in some]
        return [one.claim for one in some]


def _walled(one: _Waiting, idle: Sequence[PoolProcess]) -> PoolProcess | None:
    """Return one that already has these walls."""
    return next((child for child in idle if not child.is_fresh and child.profile == one.profile), None)


def _fresh(one: _Waiting, idle: Sequence[PoolProcess]) -> PoolProcess | None:
    """Return a fresh one, which fits any call and keeps its walls from then on."""
    if (child := next((child for child in idle if child.is_fresh), None)) is not None:
        child.profile, child.is_fresh = one.profile, False
    return child
