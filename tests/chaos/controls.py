"""Negative controls: a protection taken away, the faults that it is there for, and the promises that must then break."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from tests.chaos import checker
from tests.chaos.calls import SUCCEEDED, TIMED_OUT, Kind, Planned, kind
from tests.chaos.crew import Post
from tests.chaos.harness import Run, run
from tests.chaos.plan import Plan
from tests.chaos.schedule import Fault, Step
from tests.chaos.tools import FAMILIES

SECONDS = 5.0
"""How long calls are submitted."""

CALLS = 80

CONDEMNED_AFTER = 16.0
"""Seconds in which a boot is surely found dead: the recoverer's own lease may have to run out first."""

CREW = (Post("async", "host-a", 50), Post("async", "host-b", 50))
LONG_WORK = kind("Work", "async", [SUCCEEDED], longest=2.0)
LONGER_WORK = kind("Work", "async", [SUCCEEDED], longest=9.0)
LONGEST_WORK = kind("Work", "async", [SUCCEEDED], longest=16.0)
FAMILY = tuple(kind(shape.__name__, "async", [TIMED_OUT], timeout=1.0) for shape in FAMILIES)


@dataclass(frozen=True, slots=True)
class Control:
    """`broken` names the rules that must report violations. Calls are of each of the `kinds` in turn, as long as that lets them be.

    Where a worker is frozen on purpose the database is PostgreSQL: frozen in a write to SQLite, it would hold up all the others.
    """

    protection: str
    steps: Sequence[Step]
    broken: frozenset[str]
    database: str = "sqlite"
    kinds: Sequence[Kind] = (LONG_WORK,)

    async def run(self, folder: Path, start: asyncio.Semaphore) -> Run:
        kinds = zip(range(CALLS), cycle(self.kinds), strict=False)
        calls = [self._call(number, one) for number, one in kinds]
        program = ("-m", "tests.chaos.sabotage", self.protection)
        plan = Plan(0, self.database, SECONDS, calls, self.steps, CREW, program, settle=CONDEMNED_AFTER + 7)
        return await run(plan, folder, start)

    @staticmethod
    def _call(number: int, one: Kind) -> Planned:
        may_run_again = number % 4 == 0 and one is not LONGEST_WORK  # that would take twice as long
        return Planned(SECONDS * number / CALLS, f"call-{number}", one, may_run_again, seconds=one.longest)


def step(at: float, fault: Fault, seconds: float = 0.0, *, worker: int = 0) -> Step:
    return Step(at, fault, seconds, worker / len(CREW), int(at * 1000))


REPETITIONS = [step(1 + number / 3, Fault.REPEAT_RINGS) for number in range(12)]
PAUSES = [step(1.5, Fault.PAUSE_WORKER, 2.2), step(4.2, Fault.PAUSE_WORKER, 2.2, worker=1)]
FREEZE = step(5.0, Fault.FREEZE_WORKER, CONDEMNED_AFTER)
DEATH = step(2.5, Fault.KILL_WORKER, worker=1)
ROLL = step(5.0, Fault.ROLL_WORKER, worker=1)
HOLE = step(6.0, Fault.SWALLOW_DATABASE, 7.0)
CLOCK = step(1.0, Fault.SET_CLOCK, 2.0)

CONTROLS = (
    Control("compare_and_set", REPETITIONS, frozenset({checker.a_body_starts_only_as_often_as_allowed.__name__})),
    Control("fencing", [FREEZE], frozenset({checker.the_end_never_changes.__name__}), "postgres", (LONGER_WORK,)),
    Control("recovery", [DEATH], frozenset({checker.every_call_ends.__name__})),
    Control("heartbeat_rule", PAUSES, frozenset({checker.lost_only_where_something_died.__name__})),
    Control("sweep", [], frozenset({"nothing_is_left_running"}), kinds=(*FAMILY, LONG_WORK)),
    Control(
        "drain",
        [ROLL],
        frozenset({checker.a_polite_stop_cuts_nothing_that_ends_in_time.__name__}),
        kinds=(LONGER_WORK,),
    ),
    Control(
        "own_beats",
        [HOLE],
        frozenset({checker.lost_only_where_something_died.__name__}),
        "postgres",
        kinds=(LONGEST_WORK,),
    ),
    Control(
        "steady_clock",
        [CLOCK],
        frozenset({checker.lost_only_where_something_died.__name__}),
        "postgres",
        kinds=(LONGER_WORK,),
    ),
)
BASELINES = (
    Control(
        "nothing",
        [*REPETITIONS, *PAUSES, step(6.5, Fault.FREEZE_WORKER, CONDEMNED_AFTER), step(7, Fault.KILL_WORKER, worker=1)],
        frozenset(),
        "postgres",
    ),
    Control(
        "nothing",
        [
            step(1.0, Fault.SET_CLOCK, 2.0),
            step(4.0, Fault.ROLL_WORKER, worker=1),
            step(5.0, Fault.SWALLOW_DATABASE, 7.0),
        ],
        frozenset(),
        "postgres",
        kinds=(*FAMILY, LONG_WORK, LONGER_WORK),
    ),
)
