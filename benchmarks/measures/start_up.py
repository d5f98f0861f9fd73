"""The cost of a process before its first call: processor time of whole interpreters, and the time of the quickest command."""

import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Ours
from benchmarks.processes import ROOT, cpu_of
from benchmarks.scene import Scene
from forge_tools.embedded.stack import settings_environment

FLEET: Ours = "postgres-solo"
PROGRAMS = {
    "pydantic": ("-c", "import pydantic"),
    "client": ("-c", "import forge_tools.client"),
    "run": ("-m", "forge_tools.cli", "run", "NoOp"),
}


def processes(scene: Scene) -> Readings:
    """Run whole processes in turns and read user and system time: the differences are smaller than the machine's from second to second."""
    environment = {**_environment(), **settings_environment(scene.settings_of(FLEET))}
    took: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(scene.sizes.starts + 1):
        for name, arguments in PROGRAMS.items():
            took[name].append(cpu_of([sys.executable, *arguments], environment))
    return {name: median(times[1:]) for name, times in took.items()}  # the first turn fills the file cache


def help_text(scene: Scene) -> Readings:
    times = [_milliseconds("-m", "forge_tools.cli", "--help") for _ in range(scene.sizes.starts + 1)]
    return {"help": median(times[1:])}


def _milliseconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=_environment(), check=True, capture_output=True)
    return (time.perf_counter() - started) * 1000


def _environment() -> dict[str, str]:
    """Where modules stay compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


MEASURE = Measure(
    name="start-up",
    needs=frozenset({FLEET}),
    sides={"processes": processes, "help": help_text},
    rows=[
        *(
            Row(
                title=title,
                unit="ms",
                key=key,
                ours="processes",
                raw="processes",
                raw_key="pydantic",
                bar=Bar("ratio", "at most", most),
            )
            for title, key, most in (
                ("CPU of `import forge_tools.client` (`import pydantic`)", "client", 8),
                ("CPU of `forge-tools run NoOp` (`import pydantic`)", "run", 10),
            )
        ),
        Row(title="forge-tools --help", unit="ms", key="help", ours="help", bar=Bar("value", "at most", 300)),
    ],
)
