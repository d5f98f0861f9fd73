"""The promises under faults on real servers and workers, and the proof that broken promises would be seen."""

import asyncio
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.chaos.checker import by_rule
from tests.chaos.controls import BASELINES, CONTROLS, Control
from tests.chaos.harness import Run, run
from tests.chaos.plan import Plan
from tests.chaos.report import summary
from tests.chaos.schedule import Fault
from tests.services import Services

FIXED_SEED = 20261
STARTING_TOGETHER = 2

Keep = Callable[[Run], str]
Controls = Mapping[int, Run | Exception]


@pytest.fixture
def keep(services: Services, tmp_path: Path) -> Keep:
    """What a failing run says: its violations, its schedule, and where its logs are."""

    def describe(done: Run) -> str:
        shutil.copytree(
            done.folder, tmp_path / "run", ignore=shutil.ignore_patterns("postgres", "*.sock"), dirs_exist_ok=True
        )
        return f"{summary(done)}\nLogs: {tmp_path / 'run'}"

    return describe


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("database", "seed", "seconds", "calls", "long"),
    [
        ("postgres", FIXED_SEED, 40, 400, [Fault.FREEZE_WORKER, Fault.TAKE_DATABASE_AWAY]),
        ("sqlite", secrets.randbits(32), 23, 250, [Fault.FREEZE_WORKER]),
    ],
    ids=["postgres, fixed seed", "sqlite, random seed"],
)
def test_every_promise_holds_whatever_dies(
    services: Services, keep: Keep, database: str, seed: int, seconds: float, calls: int, long: list[Fault]
) -> None:
    plan = Plan.of(seed, database, seconds=seconds, calls=calls, long=long)
    print(plan)

    done = asyncio.run(run(plan, services.folder(f"chaos-{database}")))

    print(summary(done))
    assert not done.violations, keep(done)
    assert done.settled_after is not None


@pytest.fixture(scope="module")
def controls(services: Services) -> Controls:
    """Each control's run, by its `id`, and those of the same faults without sabotage, side by side; or why it failed."""

    async def run_all() -> list[tuple[int, Run | Exception]]:
        start = asyncio.Semaphore(STARTING_TOGETHER)
        every = enumerate((*CONTROLS, *BASELINES))
        return await asyncio.gather(*(run_one(number, one, start) for number, one in every))

    async def run_one(number: int, one: Control, start: asyncio.Semaphore) -> tuple[int, Run | Exception]:
        try:
            return id(one), await one.run(services.folder(f"control-{number}"), start)
        except Exception as error:  # it fails the test of this run alone
            return id(one), error

    return dict(asyncio.run(run_all()))


def run_of(control: Control, controls: Controls) -> Run:
    done = controls[id(control)]
    if isinstance(done, Exception):
        raise done
    return done


@pytest.mark.timeout(300)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.protection)
def test_a_protection_taken_away_is_noticed(services: Services, controls: Controls, control: Control) -> None:
    """Beside all the others a fault may come before what it is meant for: such a control has one more run, alone."""
    done = run_of(control, controls)
    if not is_noticed(control, done):
        print(f"{control.protection} runs again, alone: {summary(done)}")
        done = asyncio.run(control.run(services.folder(f"{control.protection}-alone"), asyncio.Semaphore()))

    assert is_noticed(control, done), summary(done)


def is_noticed(control: Control, done: Run) -> bool:
    return control.broken <= by_rule(done.violations).keys()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("baseline", BASELINES)
def test_the_faults_of_the_controls_are_harmless_where_nothing_is_taken_away(
    controls: Controls, keep: Keep, baseline: Control
) -> None:
    done = run_of(baseline, controls)

    assert not done.violations, keep(done)
