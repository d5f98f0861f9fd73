"""`python -m tests.soak`: the race fuzzer and the mixed calls, until they are through or the time is over."""

import argparse
import asyncio
import json
import logging
import secrets
import sys
import tempfile
from pathlib import Path

from tests.soak.mixed import mix
from tests.soak.races import fuzz
from tests.unit.tools.every_tool import executor

CALLS = 10_000
RACES = 0.7  # of the time


def main() -> int:
    """Returns 1 if any promise broke."""
    options = parser().parse_args()
    seconds = options.minutes * 60
    logging.getLogger("forge_tools").setLevel(logging.CRITICAL)  # most of these calls are to fail
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="forge-tools-soak-") as folder:
        raced, calm = Path(folder) / "raced", Path(folder) / "calm"
        found = asyncio.run(
            fuzz(executor(raced), raced, calls=options.calls, seconds=seconds * RACES, seed=options.seed)
        )
        told = {"calls": found.calls, "endings": dict(sorted(found.endings.items())), "broken": found.broken[:20]}
        print(json.dumps({"races": told}, indent=2), flush=True)
        seen = asyncio.run(
            mix(executor(calm), calm, calls=options.calls, seconds=seconds * (1 - RACES), seed=options.seed)
        )
        facts = {
            "calls": seen.calls,
            "grown by MiB": round(seen.growth / (1 << 20), 1),
            "handles": seen.handles,
            "p99 of the halves, ms": [round(seconds * 1000, 1) for seconds in seen.p99],
        }
        print(json.dumps({"mixed": facts | {"broken": seen.broken()}}, indent=2))
    return bool(found.broken or seen.broken())


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m tests.soak", description="Races and very many calls.")
    found.add_argument("--minutes", type=float, default=30, help="how long at most (default 30)")
    found.add_argument("--calls", type=int, default=CALLS, help=f"of each file tool, and mixed (default {CALLS:,})")
    found.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="what decides the order")
    return found


if __name__ == "__main__":
    sys.exit(main())
