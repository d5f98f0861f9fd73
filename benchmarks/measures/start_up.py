"""What a process pays before its first call: whole interpreters, timed from outside."""

import json
import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.processes import ROOT
from benchmarks.scene import Scene

CLIENT = "import forge_tools.client"

# Every module that the import brings in and that is not ours, Celery aside, in the order it comes.
LIST = f"""
import sys, json
before = set(sys.modules)
{CLIENT}
ours = ("forge_tools", "celery")
print(json.dumps([m for m in sys.modules if m not in before and m.partition(".")[0] not in ours]))
"""


def imports(scene: Scene) -> Readings:
    """Take turns process by process: what is compared here differs less than the machine does from second to second."""
    libraries = f"for module in {_library_names()!r}: __import__(module)"
    pairs = [(_milliseconds("-c", CLIENT), _milliseconds("-c", libraries)) for _ in range(scene.sizes.starts + 1)]
    client, alone = zip(*pairs[1:], strict=True)  # the first pair fills the file cache
    return {"client": median(client), "libraries": median(alone)}


def help_text(scene: Scene) -> Readings:
    times = [_milliseconds("-m", "forge_tools.cli", "--help") for _ in range(scene.sizes.starts + 1)]
    return {"help": median(times[1:])}


def _library_names() -> tuple[str, ...]:
    """The modules, without those that only exist as names: a loop of imports must be able to find each."""
    listed = json.loads(_run("-c", LIST))
    probe = f"""
import json, importlib
found = []
for name in {listed!r}:
    try:
        importlib.import_module(name)
        found.append(name)
    except ImportError:
        pass
print(json.dumps(found))
"""
    return tuple(json.loads(_run("-c", probe)))


def _milliseconds(*arguments: str) -> float:
    started = time.perf_counter()
    _run(*arguments)
    return (time.perf_counter() - started) * 1000


def _run(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


MEASURE = Measure(
    name="start-up",
    sides={"imports": imports, "help": help_text},
    rows=[
        Row(
            title="import of the client (its libraries)",
            unit="ms",
            key="client",
            ours="imports",
            raw="imports",
            raw_key="libraries",
            bar=Bar("ratio", "at most", 1.1),
        ),
        Row(title="forge-tools --help", unit="ms", key="help", ours="help", bar=Bar("value", "at most", 300)),
    ],
)
