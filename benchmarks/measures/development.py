"""Development of a tool: the time from save to new answer under `forge-tools dev`, and from a failed call to its author's line."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.processes import ROOT
from benchmarks.scene import CONTEXT, Scene
from forge_tools.client import SyncExecutorClient
from forge_tools.config import Settings

START_SECONDS = 120.0
ANSWER_SECONDS = 60.0
PROJECT = '[tool.forge-tools]\ntools = ["mytools"]\n'
SOURCE = '''\
from forge_tools.tool import tool


@tool
def answer(key: str = "known") -> int:
    """Say which code this is."""
    return {"known": NUMBER}[key]
'''
LINE = "mytools.py:7 in answer"


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that `forge-tools dev` serves."""

    folder: Path
    environment: dict[str, str]

    def save(self, number: int) -> None:
        (self.folder / "mytools.py").write_text(SOURCE.replace("NUMBER", str(number)))

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "forge_tools.cli", *words]


@contextmanager
def project() -> Iterator[Project]:
    """Serve a new folder until this is left."""
    with tempfile.TemporaryDirectory(prefix="forge-bench-") as name:
        folder = Path(name)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FORGE_")}
        made = Project(folder, {**kept, "FORGE_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)})
        (folder / "pyproject.toml").write_text(PROJECT)
        made.save(0)
        log = folder / "dev.log"
        with log.open("wb") as output:
            words = made.command("dev")
            serving = subprocess.Popen(words, cwd=folder, env=made.environment, stdout=output, stderr=output)
        try:
            _wait_for(log, serving)
            yield made
        finally:
            serving.terminate()
            serving.wait(ANSWER_SECONDS)


def saves(scene: Scene) -> Readings:
    """Save, and call repeatedly until the new code answers."""
    took = []
    with project() as served, SyncExecutorClient(Settings(home=served.folder / "home")) as client:
        for number in range(1, scene.sizes.saves + 1):
            served.save(number)
            started = time.perf_counter()
            while client.execute("answer", CONTEXT).output != number:
                if time.perf_counter() - started > ANSWER_SECONDS:
                    raise RuntimeError(f"the code that was saved does not answer within {ANSWER_SECONDS:g} s")
            took.append((time.perf_counter() - started) * 1000)
    took.sort()
    return {"save p50": took[len(took) // 2], "save p95": took[min(len(took) - 1, int(len(took) * 0.95))]}


def line(scene: Scene) -> Readings:
    """Make a call fail, and show its record with one command."""
    took = []
    with project() as served, SyncExecutorClient(Settings(home=served.folder / "home")) as client:
        for _ in range(scene.sizes.starts + 1):
            assert not client.execute("answer", CONTEXT, key="unknown").success
            words, started = served.command("show", "@last"), time.perf_counter()
            done = subprocess.run(
                words, cwd=served.folder, env=served.environment, capture_output=True, text=True, check=True
            )
            took.append((time.perf_counter() - started) * 1000)
            assert LINE in done.stdout, done.stdout
    return {"line": sorted(took)[len(took) // 2]}


def _wait_for(log: Path, serving: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while "Ready." not in log.read_text():
        if serving.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"forge-tools dev does not serve:\n{log.read_text()}")
        time.sleep(0.05)


MEASURE = Measure(
    name="development",
    sides={"saves": saves, "line": line},
    rows=[
        Row(
            title="`dev`: from save to new answer, p50",
            unit="ms",
            key="save p50",
            ours="saves",
            bar=Bar("value", "at most", 1_500),
        ),
        Row(
            title="`dev`: from save to new answer, p95",
            unit="ms",
            key="save p95",
            ours="saves",
            bar=Bar("value", "at most", 3_000),
        ),
        Row(
            title="a call failed: its author's line by one command",
            unit="ms",
            key="line",
            ours="line",
            bar=Bar("value", "at most", 10_000),
        ),
    ],
)
