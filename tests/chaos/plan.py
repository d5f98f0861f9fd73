"""What a seed determines: the calls, the faults, and the processes that face them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.calls import Planned, plan_calls
from tests.chaos.crew import POSTS, PROGRAM, Post
from tests.chaos.databases import PostgresUnderFire, SqliteUnderFire
from tests.chaos.schedule import Fault, Step, plan_faults

DATABASES = {"postgres": PostgresUnderFire, "sqlite": SqliteUnderFire}


@dataclass(frozen=True, slots=True)
class Plan:
    """One run as it is meant to go. `settle` is how many seconds all may take to end after the last fault."""

    seed: int
    database: str
    seconds: float
    calls: Sequence[Planned]
    steps: Sequence[Step]
    posts: Sequence[Post] = POSTS
    program: Sequence[str] = PROGRAM
    settle: float = 90.0
    replay: str = "its schedule is always the same"
    broker: str = "valkey"

    @classmethod
    def of(
        cls,
        seed: int,
        database: str,
        *,
        seconds: float,
        calls: int,
        long: Sequence[Fault] | None = None,
        broker: str = "valkey",
    ) -> "Plan":
        """The plan of a seed: the same numbers give the same plan, for ever."""
        numbers = random.Random(seed)
        planned = plan_calls(numbers, seconds=seconds, count=calls, name=f"{seed:x}")
        steps = plan_faults(numbers, seconds=seconds, possible=DATABASES[database].faults, long=long)
        options = f"--seed {seed} --database {database} --broker {broker} --seconds {seconds:g} --calls {calls}"
        named = "".join(f" --long {fault.value}" for fault in long or ())
        replay = f"python -m tests.chaos {options}{named}"
        return cls(seed, database, seconds, planned, steps, replay=replay, broker=broker)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, {self.database}, {self.broker}, {self.seconds:g}s, {len(self.calls)} calls; faults:"
        ]
        return "\n".join([*lines, *map(str, self.steps)])
