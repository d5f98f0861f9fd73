"""`python -m tests.soak`: the race fuzzer and the mixed calls, until they have finished or the time is up."""

import argparse
import asyncio
import json
import logging
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.shell_hosts import shell_host
from tests.soak.mixed import mix
from tests.soak.races import fuzz
from tests.unit.tools.every_tool import executor

CALLS = 10_000
RACES = 0.6  # of the time


def main() -> int:
    """Returns 1 if any promise broke."""
    options = parser().parse_args()
    seconds = options.minutes * 60
    logging.getLogger("forge_tools").setLevel(logging.CRITICAL)  # most of these calls are to fail
    print(f"seed {options.seed}", flush=True)
    broken: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="forge-tools-soak-") as folder,
        shell_host(Path(folder) / "shells") as shells,
    ):
        tempfile.tempdir = f"{folder}/tmp"  # so that what is left there is ours
        Path(tempfile.tempdir).mkdir()
        (Path(folder) / "races").mkdir()
        raced, started = Path(folder) / "races/raced", time.monotonic()
        found = asyncio.run(
            fuzz(executor(raced), raced, calls=options.calls, seconds=seconds * RACES, seed=options.seed)
        )
        broken += [*found.broken[:20], *found.footprint.broken()]
        told = {"each": min(found.calls.values()), "endings": dict(sorted(found.endings.items()))}
        _print("races", started, told | found.footprint.told(), broken)
        left, started = seconds - (time.monotonic() - started), time.monotonic()
        seen = asyncio.run(mix(Path(folder) / "calm", shells, calls=options.calls, seconds=left, seed=options.seed))
        broken += seen.broken()
        _print("mixed", started, seen.told(), broken)
    return bool(broken)


def _print(name: str, started: float, told: dict[str, object], broken: list[str]) -> None:
    seconds = round(time.monotonic() - started)
    print(json.dumps({name: {"seconds": seconds} | told | {"broken": broken}}, indent=2), flush=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m tests.soak", description="Races and very many calls.")
    found.add_argument("--minutes", type=float, default=30, help="how long at most (default 30)")
    found.add_argument("--calls", type=int, default=CALLS, help=f"of each tool, in each part (default {CALLS:,})")
    found.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="what decides the order")
    return found


if __name__ == "__main__":
    sys.exit(main())
