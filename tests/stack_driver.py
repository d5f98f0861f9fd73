"""Runs an embedded stack with stand-ins for its workers, as a process that a test can signal and kill."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from forge_tools.config import Settings
from forge_tools.embedded.stack import EmbeddedStack, StackStatus, WorkerPlan


def worker_argv(mode: str) -> Callable[[WorkerPlan], list[str]]:
    stand_in = Path(__file__).with_name("stand_in_worker.py")
    return lambda plan: [sys.executable, str(stand_in), mode, plan.name]


def announce(status: StackStatus) -> None:
    pids = {process.name: process.pid for process in status.processes}
    print(json.dumps({"pid": status.pid, "home": str(status.home), "pids": pids}), flush=True)


def main(mode: str, home: str, drain: float) -> None:
    """Run a stack with stand-ins of this mode; print one JSON line when it is up."""
    settings = Settings.load(home=Path(home), drain=drain)
    EmbeddedStack(settings, worker_argv(mode), concurrency=1).run(announce)
