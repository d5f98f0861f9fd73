"""Run pytest in settled surroundings, within a limit, and leave nothing behind: `python -m tests [WHAT PYTEST TAKES]`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from forge_tools.sandbox.processes.trees import adopt_orphans, child_pids
from tests import pooler, rabbit
from tests.limits import FAILED, NOT_INSTALLED, RUNNING, STACKS
from tests.session_folder import MEMORY_FOLDER, RUN_FOLDER, SessionFolder, roomy_memory
from tests.surroundings import settle, settle_streams

MINUTES = 45.0
MOST_PATIENCE = 4.0
OVERDUE_SECONDS = 30.0
"""How long after its limit a test process that does not heed it is killed."""
END_SECONDS = 20.0
LEAVE_SECONDS = 3.0
FAILURES, TIMED_OUT = 1, 124
MOST_SECOND_TRIES = 20

WORK = (
    "import time; began = time.perf_counter(); sum(n * n for n in range(1_500_000)); print(time.perf_counter() - began)"
)
WORK_SECONDS = 0.21
"""What WORK takes on two cores of 2025 that four processes share."""


class Run:
    """What one command started, in a folder of its own, until an end that is known from the start."""

    def __init__(self, folder: Path, memory: Path, minutes: float, patience: float) -> None:
        self.folder = folder
        self.causes: dict[str, str] = {}
        """Why each test that needed a second try failed at first."""
        self._memory = memory
        self._patience = patience
        self._ends = time.monotonic() + 60 * minutes * patience
        self._process: subprocess.Popen[bytes] | None = None
        (memory / "t").mkdir()
        signal.signal(signal.SIGCHLD, self._bury_orphans)

    def pytest(self, *arguments: str) -> int:
        """Run it; cut what takes too long, with names and stacks. Return the exit code."""
        environment = {
            "TMPDIR": str(self._memory / "t"),
            RUN_FOLDER: str(self.folder),
            MEMORY_FOLDER: str(self._memory),
            "FORGE_TESTS_PATIENCE": f"{self._patience:.2f}",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", f"--basetemp={self._memory / 'b'}", *arguments],
            env=os.environ | environment,
            start_new_session=True,  # no terminal of ours: what the keyboard sends comes through us
        )
        while time.monotonic() < self._ends:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(1)
            for pid, due, test in self._current():
                if time.monotonic() > due + OVERDUE_SECONDS * self._patience:
                    self._show(pid, f"{test} does not end, and its process is killed. Its stacks:")
                    kill(pid)
        for pid, _, test in self._current():
            self._show(pid, f"The run took too long and is ended. {test} still ran. Its stacks:")
        return TIMED_OUT

    def failed(self) -> dict[str, str]:
        """What failed in the last run, and why."""
        try:
            found: dict[str, str] = json.loads((self.folder / FAILED).read_text())
        except FileNotFoundError:
            return {}
        return found

    def interrupt(self) -> None:
        """Have it end, and give it a moment for that."""
        if self._process:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)

    def _bury_orphans(self, _number: int, _frame: FrameType | None) -> None:
        for pid in child_pids(os.getpid()):
            if self._process and pid != self._process.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _current(self) -> Iterator[tuple[int, float, str]]:
        for note in (self.folder / RUNNING).glob("*"):
            due, _, test = note.read_text().partition(" ")
            if test and command_of(int(note.name)):
                yield int(note.name), float(due), test

    def _show(self, pid: int, sentence: str) -> None:
        say(sentence)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS)
            time.sleep(1)  # it writes them itself


class Interrupted(BaseException):
    """Somebody wants this run to end: the number of the signal."""


def main(words: list[str]) -> int:
    settle_streams()
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # under nohup it goes on
    settle()
    parser = ArgumentParser(prog="python -m tests", description="The rest is for pytest.", allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the limit of the run")
    parser.add_argument(
        "--most-second-tries", type=int, default=MOST_SECOND_TRIES, help="a run with more of them fails"
    )
    parser.add_argument(
        "--patience", type=float, help="what limits of time are multiplied by, if that was measured before"
    )
    own, arguments = parser.parse_known_args(words)
    patience = own.patience or measured_patience()
    say(f"Limits of time are multiplied by {patience:.2f}, by what some work took at the start.")
    adopt_orphans()
    began = time.monotonic()
    with run_folders() as (folder, memory), interruptible(hangs_up):
        run = Run(folder, memory, own.minutes, patience)
        try:
            code = run.pytest(*arguments)
            if code == FAILURES:
                code = second_try(run, own.most_second_tries)
        except Interrupted as interrupted:
            run.interrupt()
            code = 128 + interrupted.args[0]
        left = end_all()
    for command in left:
        say(f"Left behind, now ended: {command}")
    for server, variable in ((rabbit, rabbit.VARIABLE), (pooler, pooler.VARIABLE)):
        if not server.is_wanted():
            say(f"Not covered: what {server.NAME} does. Install it and set {variable}=1.")
    if NOT_INSTALLED.exists():
        say("Not covered: what the conformance suite of MCP checks. It comes from npm, whose registry was not reached.")
    say(f"The run took {(time.monotonic() - began) / 60:.1f} minutes.")
    for nodeid, cause in run.causes.items():  # last: of a long log people see the end
        say(f"\nFirst try of {nodeid}: {cause}")
    return code


def second_try(run: Run, most: int) -> int:
    """Run what failed once more, alone and in a fresh process: on a busy machine a process may come late."""
    failed = run.failed()
    if not 0 < len(failed) <= MOST_SECOND_TRIES:
        return FAILURES
    say(f"{len(failed)} failed, see above; they get a second try.")
    (run.folder / FAILED).unlink()
    (again := run.folder / "again").write_text("\n".join(failed))
    code = run.pytest(f"@{again}")
    failed_again = run.failed() if code in (0, FAILURES) else failed
    run.causes = {nodeid: cause for nodeid, cause in failed.items() if nodeid not in failed_again}
    say(f"Tests that needed a second try: {len(run.causes)}." + "".join(f"\n  {nodeid}" for nodeid in run.causes))
    if code == 0 and len(run.causes) > most:
        say(f"More than {most} may not be needed: this run failed.")
        return FAILURES
    return code


def measured_patience() -> float:
    """How much longer some work takes here, done four times at once, than where the limits come from."""

    def take(_: int) -> float:
        return float(subprocess.check_output([sys.executable, "-I", "-S", "-c", WORK]))

    with ThreadPoolExecutor(4) as pool:
        took = sum(pool.map(take, range(4))) / 4
    return min(max(took / WORK_SECONDS, 1), MOST_PATIENCE)


@contextlib.contextmanager
def run_folders() -> Generator[tuple[Path, Path]]:
    """One on a disk, and one for what tests and their servers write, in memory if there is room: no commit waits for a disk."""
    folder, memory = SessionFolder(), SessionFolder(roomy_memory())
    try:
        yield folder.path, memory.path
    finally:
        folder.remove()
        memory.remove()


@contextlib.contextmanager
def interruptible(hangs_up: bool) -> Generator[None]:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt if hangs_up else _ignore)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; what is ignored by its disposition would be ignored by children, too."""


def end_all() -> list[str]:
    """Leave nothing below this process: what does not end by itself at once is killed. Return the command lines of those."""
    commands: dict[int, str] = {}
    kills_at = time.monotonic() + LEAVE_SECONDS
    deadline = kills_at + END_SECONDS
    while (pids := child_pids(os.getpid())) and time.monotonic() < deadline:
        for pid in pids if time.monotonic() > kills_at else ():
            commands.setdefault(pid, command_of(pid))
            kill(pid)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    return [command for command in commands.values() if command]


def command_of(pid: int) -> str:
    """Its words; nothing of one that has ended already."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return ""


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
