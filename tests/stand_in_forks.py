"""`python stand_in_forks.py MODE`: takes requests for workers as `workers.forkserver` does, and starts stand-ins of this mode."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from forge_tools.sandbox.processes.launcher import serve, spawn

STAND_IN = Path(__file__).with_name("stand_in_worker.py")


def start(mode: str, command: Sequence[bytes], environment: Mapping[bytes, bytes], streams: Sequence[int]) -> int:
    """Start one; it is told what the worker would be."""
    words = [sys.executable, str(STAND_IN), mode]
    return spawn([*map(str.encode, words), *command], dict(environment), streams)


if __name__ == "__main__":
    serve((), partial(start, sys.argv[1]), spares_shells=True)
