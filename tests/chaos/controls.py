"""Negative controls: a protection taken away, the faults that it is there for, and the promises that must then break."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from forge_tools.model import Lane
from tests.chaos import checker
from tests.chaos.calls import MIX, SUCCEEDED, TIMED_OUT, Kind, Planned, kind
from tests.chaos.crew import Post
from tests.chaos.harness import Run, run
from tests.chaos.plan import Plan
from tests.chaos.schedule import Fault, Step
from tests.chaos.tools import FAMILIES

SECONDS = 5.0
"""How long calls are submitted."""

CALLS = 80

CONDEMNED_AFTER = 16.0
"""Seconds in which an instance is surely found dead: the recoverer's own lease may have to run out first."""

CREW = (Post("async", "host-a", 50), Post("async", "host-b", 50))
CHILDREN = Post("process", "host-a", 2)
SHORT_WORK = kind("Work", "async", [SUCCEEDED], longest=0.2)
LONG_WORK = kind("Work", "async", [SUCCEEDED], longest=2.0)
LONGER_WORK = kind("Work", "async", [SUCCEEDED], longest=9.0)
LONGEST_WORK = kind("Work", "async", [SUCCEEDED], longest=16.0)
WORK_OF_CHILDREN = kind("Work", "process", [SUCCEEDED], longest=0.2)
FAMILY = tuple(kind(shape.__name__, "async", [TIMED_OUT], timeout=1.0) for shape in FAMILIES)


def calls(*kinds: Kind, count: int = CALLS) -> list[Planned]:
    """So many, of each of the kinds in turn, as long as that lets them be."""
    return [_call(number, count, one) for number, one in zip(range(count), cycle(kinds), strict=False)]


def _call(number: int, count: int, one: Kind) -> Planned:
    may_run_again = number % 4 == 0 and one is not LONGEST_WORK  # that would take twice as long
    return Planned(SECONDS * number / count, f"{one.lane}-{number}", one, may_run_again, seconds=one.longest)


def once(shape: str, lane: Lane, at: float, seconds: float = 0.0) -> Planned:
    """One call of a shape as it is in the mix."""
    found = next(one for one in MIX if (one.shape, one.lane) == (shape, lane))
    return Planned(at, f"{shape}-{lane}-{at:g}", found, idempotent=False, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Control:
    """`broken` names the rules that must report violations. Some of the `calls` may be the fault.

    Where a worker is frozen on purpose the database is PostgreSQL: frozen in a write to SQLite, it would hold up all the others.
    """

    protection: str
    steps: Sequence[Step]
    broken: frozenset[str]
    database: str = "sqlite"
    calls: Sequence[Planned] = field(default_factory=lambda: calls(LONG_WORK))
    crew: Sequence[Post] = CREW

    async def run(self, folder: Path, start: asyncio.Semaphore) -> Run:
        program = ("tests.chaos.sabotage", self.protection)
        plan = Plan(0, self.database, SECONDS, self.calls, self.steps, self.crew, program, settle=CONDEMNED_AFTER + 7)
        return await run(plan, folder, start)


def step(at: float, fault: Fault, seconds: float = 0.0, *, worker: int = 0) -> Step:
    return Step(at, fault, seconds, worker / len(CREW), int(at * 1000))


REPETITIONS = [step(1 + number / 3, Fault.REPEAT_MESSAGES) for number in range(12)]
PAUSES = [step(1.5, Fault.PAUSE_WORKER, 2.2), step(4.2, Fault.PAUSE_WORKER, 2.2, worker=1)]
FREEZE = step(5.0, Fault.FREEZE_WORKER, CONDEMNED_AFTER)
DEATH = step(2.5, Fault.KILL_WORKER, worker=1)
ROLL = step(5.0, Fault.ROLL_WORKER, worker=1)
HOLE = step(6.0, Fault.SWALLOW_DATABASE, 7.0)
CLOCK = step(1.0, Fault.SET_CLOCK, 2.0)
GARBAGE = step(2.0, Fault.FORGE_MESSAGES)
LETTING_GO = once("LetGo", "async", 1.5)
STARVING = [once("Starve", "async", 1.0, seconds=3.0), *(once("Lower", "process", at) for at in (1.0, 2.0, 3.0))]
POSING = [once("Pose", "process", at) for at in (1.0, 2.5)]
SPEAKING = once("SpeakForOthers", "process", 2.0)

CONTROLS = (
    Control("compare_and_set", REPETITIONS, frozenset({checker.a_body_starts_only_as_often_as_allowed.__name__})),
    Control(
        "lone_claim",
        REPETITIONS,
        frozenset({checker.a_body_starts_only_as_often_as_allowed.__name__}),
        "postgres",
    ),
    Control("fencing", [FREEZE], frozenset({checker.the_end_never_changes.__name__}), "postgres", calls(LONGER_WORK)),
    Control("recovery", [DEATH], frozenset({checker.every_call_ends.__name__})),
    Control("heartbeat_rule", PAUSES, frozenset({checker.lost_only_where_something_died.__name__})),
    Control("sweep", [], frozenset({"nothing_is_left_running"}), calls=calls(*FAMILY, LONG_WORK)),
    Control(
        "drain",
        [ROLL],
        frozenset({checker.a_polite_stop_cuts_nothing_that_ends_in_time.__name__}),
        calls=calls(LONGER_WORK),
    ),
    Control(
        "own_beats",
        [HOLE],
        frozenset({checker.lost_only_where_something_died.__name__}),
        "postgres",
        calls=calls(LONGEST_WORK),
    ),
    Control(
        "steady_clock",
        [CLOCK],
        frozenset({checker.lost_only_where_something_died.__name__}),
        "postgres",
        calls=calls(LONGER_WORK),
    ),
    Control(
        "reception",
        [GARBAGE],
        frozenset({"workers_live_until_something_ends_them", "garbage_is_dropped_and_counted"}),
        calls=calls(SHORT_WORK, count=10),
        crew=CREW[:1],
    ),
    Control(
        "pairs",
        [],
        frozenset({checker.nobody_gets_what_is_anothers.__name__}),
        calls=[*calls(WORK_OF_CHILDREN, count=20), *POSING],
        crew=(CHILDREN,),
    ),
    Control(
        "fitness",
        [],
        frozenset({checker.no_body_begins_where_descriptors_are_short.__name__}),
        calls=[*calls(LONG_WORK, WORK_OF_CHILDREN, count=40), *STARVING],
        crew=(CREW[0], CHILDREN),
    ),
    Control(
        "ending_with_the_engine",
        [],
        frozenset({"whoever_lives_beats"}),
        calls=[*calls(LONG_WORK, count=20), LETTING_GO],
    ),
)
BASELINES = (
    Control(
        "nothing",
        [
            *REPETITIONS,
            *PAUSES,
            GARBAGE,
            step(6.5, Fault.FREEZE_WORKER, CONDEMNED_AFTER),
            step(7, Fault.KILL_WORKER, worker=1),
        ],
        frozenset(),
        "postgres",
        calls=[*calls(LONG_WORK, WORK_OF_CHILDREN), *STARVING, *POSING, SPEAKING, LETTING_GO],
        crew=(*CREW, CHILDREN),
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
        calls=calls(*FAMILY, LONG_WORK, LONGER_WORK),
    ),
)
