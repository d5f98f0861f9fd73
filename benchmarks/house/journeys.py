"""What one call and one page of history execute, traced in every process of an embedded stack."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median_low

from forge_tools.cli.up import until_ready
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.embedded.stack import EmbeddedStack
from forge_tools.tool.base import ExecutionContext

TRACING = Path(__file__).with_name("tracing")
TRACE_FOLDER = "HOUSE_TRACE"
SILENCE_SECONDS = 1.5
AFTERMATH_SECONDS = 0.05
"""What the worker still does when its caller has been answered."""
TOUCHES_THE_CALL = ("INSERT INTO execution_queue", "UPDATE execution_queue SET status = 'running'")
ROUNDS = 5
WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Journey:
    """The numbers of function calls, of their files, of changes of file within a thread, and of changes of thread."""

    calls: int
    files: int
    jumps: int
    hand_overs: int
    records: tuple[str, ...]
    statements: tuple[str, ...]
    calls_before_insert: int


@dataclass(frozen=True, slots=True)
class Event:
    at: int
    thread: str
    kind: str
    what: str

    @property
    def process(self) -> str:
        return self.thread.partition(".")[0]


def one_read() -> Journey:
    """A `Read` on the embedded stack after 1.5 s of silence: the median of five, by calls."""
    with tempfile.TemporaryDirectory() as folder:
        windows = json.loads(_traced(Path(folder), "-m", "benchmarks.house.journeys"))
        journeys = journeys_in(Path(folder), windows)
    chosen = median_low(one.calls for one in journeys)
    return next(one for one in journeys if one.calls == chosen)


def journeys_in(traces: Path, windows: Sequence[tuple[int, int]]) -> list[Journey]:
    """What the files of a folder of traces say of each time from one moment to another, in nanoseconds."""
    events = list(_events(traces))
    return [_journey(_within(events, began, ended)) for began, ended in windows]


def a_page_of_history() -> int:
    """Functions that `forge-tools history --limit 3` starts, its imports included."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        _some_reads(home, Path(folder), 0)
        _traced(Path(folder), "-m", "forge_tools.cli", "history", "--limit", "3", FORGE_HOME=str(home))
        return sum(event.kind == "call" for event in _events(Path(folder)))


def _traced(folder: Path, *words: str, **more: str) -> str:
    environment = {**os.environ, **more, TRACE_FOLDER: str(folder), "PYTHONPATH": str(TRACING)}
    done = subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _events(traces: Path) -> Iterator[Event]:
    for file in traces.glob("*.trace"):
        for line in file.read_text(errors="replace").splitlines():
            at, thread, kind, what = line.split("\t", 3)
            yield Event(int(at), thread, kind, what)


def _within(events: Sequence[Event], began: int, ended: int) -> list[Event]:
    """What the client and the worker that claims the call do in that time."""
    inside = sorted((event for event in events if began <= event.at <= ended), key=lambda event: event.at)
    involved = {event.process for event in inside if event.kind == "sql" and event.what.startswith(TOUCHES_THE_CALL)}
    return [event for event in inside if event.process in involved]


def _journey(events: Sequence[Event]) -> Journey:
    calls = [event for event in events if event.kind == "call"]
    statements = [event for event in events if event.kind == "sql"]
    inserted = next((event.at for event in statements if event.what.startswith("INSERT INTO execution_queue")), 0)
    return Journey(
        calls=len(calls),
        files=len({_file(event) for event in calls}),
        jumps=sum(_jumps(calls, thread) for thread in {event.thread for event in calls}),
        hand_overs=sum(one.thread != next_one.thread for one, next_one in pairwise(calls)),
        records=tuple(dict.fromkeys(event.what for event in events if event.kind == "record")),
        statements=tuple(event.what for event in statements),
        calls_before_insert=sum(event.at < inserted for event in calls),
    )


def _jumps(calls: Sequence[Event], thread: str) -> int:
    files = [_file(event) for event in calls if event.thread == thread]
    return sum(one != next_one for one, next_one in pairwise(files))


def _file(event: Event) -> str:
    return event.what.partition("\t")[0]


def _some_reads(home: Path, workspace: Path, rounds: int) -> list[tuple[int, int]]:
    settings = Settings.load(home=home, workspace=workspace, broker_url="", database_url="")
    with EmbeddedStack(settings, concurrency=1) as stack:
        return asyncio.run(_reads(settings, stack, rounds))


async def _reads(settings: Settings, stack: EmbeddedStack, rounds: int) -> list[tuple[int, int]]:
    """Read a file some times; from when to when each that counts took, in nanoseconds."""
    await until_ready(settings, stack.status, is_given_up=lambda: False)
    windows = []
    context = ExecutionContext(working_dir=str(settings.workspace))
    Path(settings.workspace, "notes.txt").write_text("One line.\n")
    async with ExecutorClient(settings) as client:
        for number in range(WARM_UPS + rounds):
            await asyncio.sleep(SILENCE_SECONDS if number >= WARM_UPS else 0)
            began = time.monotonic_ns()
            result = await client.execute("Read", context, file_path="notes.txt")
            assert result.success, result.error
            await asyncio.sleep(AFTERMATH_SECONDS)
            if number >= WARM_UPS:
                windows.append((began, time.monotonic_ns()))
    return windows


def main() -> None:
    """Run the stack and print the windows; the parent process has it traced."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_some_reads(Path(folder, "home"), Path(folder), ROUNDS)))


if __name__ == "__main__":
    main()
