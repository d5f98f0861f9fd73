"""The seeded schedule: which fault begins when, how long it lasts, and whom it meets."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What is done to the system; each is a method of `tests.chaos.faults.Faults`."""

    KILL_CHILD = "kill_child"
    KILL_WORKER = "kill_worker"
    STOP_WORKER = "stop_worker"
    ROLL_WORKER = "roll_worker"
    HURRY_WORKER = "hurry_worker"
    PAUSE_WORKER = "pause_worker"
    FREEZE_WORKER = "freeze_worker"
    SUSPEND_ALL = "suspend_all"
    KILL_BROKER = "kill_broker"
    PAUSE_BROKER = "pause_broker"
    CUT_BROKER = "cut_broker"
    FORGET_MESSAGES = "forget_messages"
    KILL_DATABASE = "kill_database"
    CUT_DATABASE = "cut_database"
    PAUSE_DATABASE = "pause_database"
    TAKE_DATABASE_AWAY = "take_database_away"
    SWALLOW_DATABASE = "swallow_database"
    SET_CLOCK = "set_clock"
    REPEAT_MESSAGES = "repeat_messages"
    REORDER_MESSAGES = "reorder_messages"
    FORGE_MESSAGES = "forge_messages"
    FORGE_LIMITS = "forge_limits"


@dataclass(frozen=True, slots=True)
class Habit:
    """How often a fault comes among the short ones, and between which seconds it lasts."""

    weight: float
    shortest: float = 0.0
    longest: float = 0.0


SHORT = {
    Fault.KILL_CHILD: Habit(8),
    Fault.KILL_WORKER: Habit(3),
    Fault.STOP_WORKER: Habit(1),
    Fault.ROLL_WORKER: Habit(2),
    Fault.HURRY_WORKER: Habit(1),
    Fault.PAUSE_WORKER: Habit(2, 0.5, 5.0),
    Fault.KILL_BROKER: Habit(2, 0.2, 3.0),
    Fault.PAUSE_BROKER: Habit(1, 0.5, 4.0),
    Fault.CUT_BROKER: Habit(2),
    Fault.FORGET_MESSAGES: Habit(2),
    Fault.KILL_DATABASE: Habit(2, 0.1, 2.0),
    Fault.CUT_DATABASE: Habit(3),
    Fault.PAUSE_DATABASE: Habit(2, 0.5, 9.0),
    Fault.REPEAT_MESSAGES: Habit(5),
    Fault.REORDER_MESSAGES: Habit(2),
    Fault.FORGE_MESSAGES: Habit(4),
    Fault.FORGE_LIMITS: Habit(2),
}
LONG = {
    Fault.FREEZE_WORKER: Habit(3, 21.0, 23.0),
    Fault.TAKE_DATABASE_AWAY: Habit(1, 16.5, 18.0),
    Fault.SUSPEND_ALL: Habit(1, 16.5, 18.0),
    Fault.SWALLOW_DATABASE: Habit(1, 40.0, 42.0),
    Fault.SET_CLOCK: Habit(1, 16.5, 18.0),
}
"""Each outlasts a lease of 15 s. Two never overlap: nobody is found dead while the database or everybody is away."""

BEFORE_THE_FIRST_LONG = 3.0
SHORTEST_BETWEEN_LONG, LONGEST_BETWEEN_LONG = 1.0, 12.0
SHORT_PER_SECOND = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One fault: `pick` chooses among those it could meet, `number` seeds what else it needs to choose."""

    at: float
    fault: Fault
    seconds: float
    pick: float
    number: int

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f}s" if self.seconds else ""
        return f"{self.at:6.1f}s {self.fault}{lasting} (pick {self.pick:.2f})"


def plan_faults(
    random_numbers: random.Random, *, seconds: float, possible: Collection[Fault], long: Sequence[Fault] | None = None
) -> list[Step]:
    """Faults for `seconds`: short ones at random moments, beside them one long one after the other.

    `long` names the long ones in order; by default they are chosen as long as they fit.
    """
    weights = [habit.weight * (fault in possible) for fault, habit in SHORT.items()]
    faults = random_numbers.choices(list(SHORT), weights, k=round(seconds * SHORT_PER_SECOND))
    steps = [_step(random_numbers, random_numbers.uniform(0.5, seconds), one, SHORT[one]) for one in faults]
    return sorted([*steps, *_long_steps(random_numbers, seconds, possible, long)], key=lambda step: step.at)


def _long_steps(
    random_numbers: random.Random, seconds: float, possible: Collection[Fault], wanted: Sequence[Fault] | None
) -> list[Step]:
    weights = [habit.weight * (fault in possible) for fault, habit in LONG.items()]
    faults = random_numbers.choices(list(LONG), weights, k=round(seconds / 15))
    steps: list[Step] = []
    at = BEFORE_THE_FIRST_LONG
    for fault in faults if wanted is None else wanted:
        step = _step(random_numbers, at, fault, LONG[fault])
        if wanted is None and step.at + step.seconds > seconds:
            continue
        steps.append(step)
        between = random_numbers.uniform(SHORTEST_BETWEEN_LONG, LONGEST_BETWEEN_LONG)
        at += step.seconds + (between if wanted is None else SHORTEST_BETWEEN_LONG)
    return steps


def _step(random_numbers: random.Random, at: float, fault: Fault, habit: Habit) -> Step:
    lasts = round(random_numbers.uniform(habit.shortest, habit.longest), 2)
    return Step(round(at, 2), fault, lasts, random_numbers.random(), random_numbers.getrandbits(32))
