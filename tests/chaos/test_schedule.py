"""The schedule: a seed replays, long faults take turns, and nothing impossible is planned."""

import random
from itertools import islice, pairwise

import pytest

from tests import rabbit
from tests.chaos.__main__ import parser, plans
from tests.chaos.plan import Plan
from tests.chaos.schedule import LONG, Fault, plan_faults


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_seed_replays(database: str) -> None:
    first, second = (Plan.of(7, database, seconds=60, calls=300) for _ in range(2))

    assert str(first) == str(second)
    assert first.calls == second.calls
    assert str(first) != str(Plan.of(8, database, seconds=60, calls=300))


def test_long_faults_take_turns_and_end_before_the_schedule_does() -> None:
    steps = plan_faults(random.Random(1), seconds=600, possible=frozenset(Fault))
    long = [step for step in steps if step.fault in LONG]

    assert len(long) > 10
    assert all(step.seconds > 15 for step in long)
    assert all(step.at + step.seconds < later.at for step, later in pairwise(long))
    assert long[-1].at + long[-1].seconds <= 600


def test_a_file_has_no_server_to_kill() -> None:
    planned = {step.fault for step in Plan.of(1, "sqlite", seconds=600, calls=1).steps}

    assert planned == set(Fault) - {
        Fault.KILL_DATABASE,
        Fault.CUT_DATABASE,
        Fault.SWALLOW_DATABASE,
        Fault.SET_CLOCK,
    }


@pytest.mark.parametrize(
    ("wanted", "named", "played"),
    [
        ("", [], ["postgres valkey", "sqlite valkey", "postgres valkey"]),
        ("1", [], ["postgres valkey", "postgres rabbitmq", "sqlite valkey"]),
        ("", ["--broker", "rabbitmq"], ["postgres rabbitmq", "sqlite rabbitmq", "postgres rabbitmq"]),
    ],
)
def test_brokers_take_turns_where_rabbitmq_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, wanted: str, named: list[str], played: list[str]
) -> None:
    monkeypatch.setenv(rabbit.VARIABLE, wanted)

    rounds = islice(plans(parser().parse_args(["--seconds", "1", *named])), 3)

    assert [f"{one.database} {one.broker}" for one in rounds] == played


def test_what_replays_a_round_names_its_broker() -> None:
    plan = Plan.of(7, "sqlite", seconds=60, calls=300, broker="rabbitmq")

    assert "--broker rabbitmq" in plan.replay
    assert plan.steps == Plan.of(7, "sqlite", seconds=60, calls=300).steps
