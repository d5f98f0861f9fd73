"""A release at work on a host: programs that run with its packages, forked by an interpreter that has imported them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.fleet import WorkerProcess
from tests.waiting import wait_until
from tests.warm import Forked, WarmInterpreter

HERE = Path(__file__).parent
SECONDS = 60.0
HEARTBEAT = 3.0


class Agent:
    """`agent.py`, which makes calls when it is told to, with all that it has answered."""

    def __init__(self, process: Forked, orders: IO[str], answers: Path, log: Path) -> None:
        self._process = process
        self._orders = orders
        self._answers = answers
        self._log = log

    def call(self, how: str, name: str, count: int, seconds: float = 0.0) -> None:
        print(how, name, count, seconds, file=self._orders, flush=True)

    def wait_for(self, count: int, seconds: float = SECONDS) -> None:
        """Wait until there are so many answers in all.

        Raises:
            AssertionError: they did not come in time.
        """
        wait_until(lambda: self._answered() >= count, seconds, lambda: f"{self._answered()} of {count} came")

    def _answered(self) -> int:
        return self._answers.read_text().count("\n")

    def finish(self) -> list[Any]:
        """Let it end; return its answers."""
        self._orders.close()
        assert self._process.wait(SECONDS) == 0, self._log.read_text()
        return [json.loads(line) for line in self._answers.read_text().splitlines()]


class Release:
    """A release on a host with this home, beside others that use the same servers."""

    def __init__(self, packages: WarmInterpreter, home: Path, database_url: str, broker_url: str) -> None:
        self._packages = packages
        self._home = home
        settings = {
            "HEARTBEAT": HEARTBEAT,
            "HOME": home,
            "WORKSPACE": home,
            "BROKER_URL": broker_url,
            "DATABASE_URL": database_url,
        }
        self._environment = {**os.environ, **{f"FORGE_{name}": str(value) for name, value in settings.items()}}

    def prepare(self) -> None:
        """Make the tables, and the key with which clients encrypt."""
        for words in (["db", "upgrade"], ["keys", "new", "--if-none"]):
            command = ["forge_tools.cli", *words]
            done = self._packages.run(command, cwd=self._home, env=self._environment, timeout=SECONDS)
            assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def work(self, lane: str, name: str) -> Iterator[WorkerProcess]:
        """A worker that serves."""
        words = ["workers", "--lane", lane, "--no-builtins", "--tools", f"{HERE / 'greetings.py'}"]
        log = self._home / f"{name}.log"
        with self._started(words, log, log) as process:
            worker = WorkerProcess(process, log)
            worker.wait_ready()
            yield worker

    @contextmanager
    def agent(self, tool: str) -> Iterator[Agent]:
        answers, log = self._home / "answers", self._home / "agent.log"
        theirs, ours = os.pipe()
        words = ["-c", (HERE / "agent.py").read_text(), tool]
        with (
            os.fdopen(ours, "w") as orders,
            os.fdopen(theirs) as stdin,
            self._started(words, answers, log, stdin=stdin) as process,
        ):
            stdin.close()
            yield Agent(process, orders, answers, log)

    @contextmanager
    def _started(self, words: list[str], output: Path, errors: Path, **streams: Any) -> Iterator[Forked]:
        with output.open("ab") as stdout, errors.open("ab") as stderr:
            process = self._packages.start(
                words, cwd=self._home, env=self._environment, stdout=stdout, stderr=stderr, **streams
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(SECONDS)
