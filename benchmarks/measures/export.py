"""How much memory the commands that read all of history use: exports, and the comparison with the audit chain."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.fleets import Database
from benchmarks.processes import ROOT
from benchmarks.scene import Scene
from forge_tools.config import Settings
from forge_tools.embedded.stack import settings_environment

POLL_SECONDS = 0.02


def export(database: Database, format: str, scene: Scene) -> Readings:
    """`forge-tools export` of as many of the newest as SQLite has, to a file."""
    long = scene.long
    assert long is not None
    bounds = ("--since", long.moment(long.total - long.small + 1), "--until", long.newest + timedelta(seconds=0.1))
    with tempfile.TemporaryDirectory(dir=scene.folder) as folder:
        file = Path(folder) / "history"
        arguments = ("export", "--format", format, *map(str, bounds), "--to", str(file), "--output", "json")
        told, seconds, peak = _run(scene.past[database], arguments)
        rows = json.loads(told)["executions"]
        if abs(rows - long.small) > 1:
            raise RuntimeError(f"{rows:,} rows were exported instead of {long.small:,}")
        return {"rate": rows / seconds, "seconds": seconds, "peak": peak, "size": file.stat().st_size / 1e6}


def verify(scene: Scene) -> Readings:
    """`forge-tools audit verify` of the sealed history on SQLite."""
    told, seconds, peak = _run(scene.past["sqlite"], ("audit", "verify", "--output", "json"))
    rows = json.loads(told)["executions"]
    return {"rate": rows / seconds, "seconds": seconds, "peak": peak}


def _run(settings: Settings, arguments: Sequence[str]) -> tuple[str, float, float]:
    """Return what it printed, how long it took, and its peak memory in megabytes."""
    started, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "forge_tools.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **settings_environment(settings)},
        stdout=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None:
        peak = max(peak, _peak_megabytes(process.pid))
        time.sleep(POLL_SECONDS)
    seconds = time.perf_counter() - started
    said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"forge-tools {arguments[0]} ended with {process.returncode}: {said[-1000:]}")
    return said, seconds, peak


def _peak_megabytes(pid: int) -> float:
    """The kernel keeps the peak, but not of a process that has just ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


EXPORTS: Sequence[tuple[Database, str, str]] = (
    ("postgres", "PostgreSQL", "jsonl"),
    ("sqlite", "SQLite", "csv"),
)
LIMIT = Bar("value", "at most", 150)

EXPORT = Measure(
    name="export",
    needs=frozenset({"servers", "history"}),
    rounds_at_most=1,
    sides={f"{database} {form}": partial(export, database, form) for database, _, form in EXPORTS},
    rows=[
        row
        for database, name, form in EXPORTS
        for row in (
            Row(
                title=f"export of {{small_history:,}} rows, {name}, {form}: memory at most",
                unit="MB",
                key="peak",
                ours=f"{database} {form}",
                bar=LIMIT,
            ),
            Row(
                title=f"export of {{small_history:,}} rows, {name}, {form}",
                unit="/s",
                key="rate",
                ours=f"{database} {form}",
            ),
        )
    ],
)

VERIFY = Measure(
    name="verify",
    needs=frozenset({"servers", "history"}),
    rounds_at_most=1,
    sides={"ours": verify},
    rows=[
        Row(title="audit verify of {small_history:,} sealed rows, SQLite: time", unit="s", key="seconds", ours="ours"),
        Row(title="audit verify, executions", unit="/s", key="rate", ours="ours"),
        Row(title="audit verify: memory at most", unit="MB", key="peak", ours="ours"),
    ],
)
