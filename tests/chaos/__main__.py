"""The long run: rounds of faults on one database and broker after the other, until the time is up."""

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from tests import rabbit
from tests.chaos import guarantees
from tests.chaos.brokers import BROKERS
from tests.chaos.harness import Run, run
from tests.chaos.plan import Plan
from tests.chaos.report import figures, summary
from tests.chaos.schedule import LONG, Fault
from tests.services import Services

DATABASES = ("postgres", "sqlite")
USUAL_BROKER = "valkey"
ROUND_SECONDS = 120.0
CALLS_PER_SECOND = 10
LOGS = Path(tempfile.gettempdir()) / "forge-tools-chaos"


def main() -> int:
    """Play rounds; returns 1 if any promise broke."""
    options = parser().parse_args()
    services = Services()
    began, done = time.monotonic(), []
    try:
        for number, plan in enumerate(plans(options)):
            print(f"--- round {number}\n{plan}", flush=True)
            done.append(play(plan, services.folder(f"chaos-{number}"), options.logs / f"{options.seed}-{number}"))
            if time.monotonic() - began >= options.minutes * 60:
                break
    finally:
        services.close()
    total = added(options.seed, done, time.monotonic() - began)
    print("--- in all\n" + json.dumps(total, indent=2))
    if options.record:
        guarantees.LONG_RUN.write_text(json.dumps(total, indent=2) + "\n")
        guarantees.PAGE.write_text(guarantees.page())
    return bool(total["violations"])


def plans(options: argparse.Namespace) -> Iterator[Plan]:
    """Round after round, each with the next seed; a named length, database or broker stays the same in all."""
    seed = options.seed
    calls = options.calls or round(options.seconds * CALLS_PER_SECOND)
    databases = [options.database] if options.database else DATABASES
    while True:  # no deadline: whoever asks for plans has the time
        for database, broker in product(databases, brokers(options.broker)):
            yield Plan.of(seed, database, seconds=options.seconds, calls=calls, long=options.long, broker=broker)
            seed += 1


def brokers(named: str | None) -> list[str]:
    """The brokers that take turns: the one that was named, else RabbitMQ too where the run is asked for it."""
    if named:
        return [named]
    return list(BROKERS) if rabbit.is_wanted() else [USUAL_BROKER]


def played_on(one: dict[str, Any]) -> str:
    """What a round was played on; the broker goes without saying where it is the usual one."""
    usual = one["broker"] == USUAL_BROKER
    return str(one["database"]) if usual else f"{one['database']} with {one['broker']}"


def added(seed: int, done: list[Run], seconds: float) -> dict[str, Any]:
    """The figures of all rounds together."""
    rounds = [figures(one) for one in done]
    counted = ("answers", "statuses", "events", "faults", "worker_deaths", "violations")
    sums = {name: dict(sorted(sum((Counter(one[name]) for one in rounds), Counter()).items())) for name in counted}
    settled = [one["settled_after"] for one in rounds if one["settled_after"] is not None]
    return {
        "seed": seed,
        "minutes": round(seconds / 60, 1),
        "rounds": dict(Counter(map(played_on, rounds))),
        "calls": sum(one["calls"] for one in rounds),
        "started_again": sum(one["started_again"] for one in rounds),
        "slowest_to_settle_seconds": max(settled, default=None),
        **sums,
    }


def play(plan: Plan, folder: Path, kept: Path) -> Run:
    """Play one round; unless it keeps every promise, its logs stay in `kept`."""
    is_sound = False
    try:
        done = asyncio.run(run(plan, folder))
        print(summary(done), flush=True)
        is_sound = not done.violations
    finally:
        if not is_sound:
            shutil.copytree(
                folder, kept, ignore=shutil.ignore_patterns("postgres", "data", "*.sock"), dirs_exist_ok=True
            )
            print(f"Logs: {kept}", flush=True)
        shutil.rmtree(folder)
    return done


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Break things for long, and check every promise."
    )
    parse.add_argument("--minutes", type=float, default=0.0, help="start no round after that; default: one round")
    parse.add_argument("--seed", type=int, default=secrets.randbits(32), help="of the first round; default: random")
    parse.add_argument("--database", choices=DATABASES, help="default: in turns")
    parse.add_argument(
        "--broker", choices=list(BROKERS), help="default: valkey, or in turns with FORGE_TEST_RABBITMQ=1"
    )
    parse.add_argument("--seconds", type=float, default=ROUND_SECONDS, help="of faults in a round")
    parse.add_argument("--calls", type=int, help=f"in a round; default: {CALLS_PER_SECOND} a second")
    parse.add_argument("--long", type=Fault, action="append", choices=list(LONG), help="the long faults, in order")
    parse.add_argument("--logs", type=Path, default=LOGS, help=f"where logs of violated rounds stay; default: {LOGS}")
    parse.add_argument("--record", action="store_true", help="keep the figures in docs/, for the page of guarantees")
    return parse


if __name__ == "__main__":
    sys.exit(main())
