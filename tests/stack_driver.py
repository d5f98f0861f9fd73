"""Runs an embedded stack with stand-ins for its workers, as a process that a test can signal and kill."""

import json
from pathlib import Path

from forge_tools.config import Settings
from forge_tools.embedded.stack import EmbeddedStack, StackStatus


def stand_ins(mode: str) -> list[str]:
    """The program that starts stand-ins of this mode."""
    return ["-P", "-m", "tests.stand_in_forks", mode]


def announce(status: StackStatus) -> None:
    pids = {process.name: process.pid for process in status.processes}
    print(json.dumps({"pid": status.pid, "home": str(status.home), "pids": pids}), flush=True)


def main(mode: str, home: str, drain: float) -> None:
    """Run a stack with stand-ins of this mode; print one JSON line when it is up."""
    settings = Settings.load(home=Path(home), drain=drain)
    EmbeddedStack(settings, program=stand_ins(mode), concurrency=1).run(announce)
