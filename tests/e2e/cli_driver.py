"""The command line as its users run it: child processes, in a folder of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forge_tools.config import Settings
from forge_tools.embedded.stack import ensure_key
from forge_tools.project import Marker
from forge_tools.sandbox.processes.trees import descendants
from forge_tools.sandbox.walls.probe import given
from tests.fleet import WorkerProcess, warm_worker
from tests.migrated import migrated
from tests.waiting import is_alive, wait_until
from tests.warm import CALLER, Forked, WarmInterpreter, below, shared

MODULE = "forge_tools.cli"
COMMAND = (sys.executable, "-P", "-m", MODULE)

TOOLS = '''
"""Tools of a user's own."""

import asyncio
import subprocess
import time

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult


class Add(BaseTool):
    """Add two numbers."""

    name = "Add"
    category = ToolCategory.OTHER
    parameters = (
        ToolParameter(name="a", type="integer", description="One.", aliases=("first",)),
        ToolParameter(name="b", type="integer", description="Another."),
    )

    async def _execute(self, context: ExecutionContext, a: int, b: int) -> ToolResult:
        return ToolResult.ok(a + b)


class Wait(BaseTool):
    """Await some seconds."""

    name = "Wait"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (ToolParameter(name="seconds", type="number", description="How long."),)

    async def _execute(self, context: ExecutionContext, seconds: float) -> ToolResult:
        await asyncio.sleep(seconds)
        return ToolResult.ok(f"waited {seconds:g}s")


class Block(BaseTool):
    """Block for a minute."""

    name = "Block"
    category = ToolCategory.OTHER
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        time.sleep(60)
        return ToolResult.ok()


class BlockOnce(BaseTool):
    """Block for a minute at the first attempt."""

    name = "BlockOnce"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        if context.attempt == 1:
            time.sleep(60)
        return ToolResult.ok("again")


class Ignored(BaseTool):
    """Say which signals a process ignores that a tool starts, as the kernel's mask."""

    name = "Ignored"
    category = ToolCategory.OTHER
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        command = ["grep", "SigIgn", "/proc/self/status"]
        return ToolResult.ok(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1])


class IgnoredAsync(Ignored):
    """The same from the async lane."""

    name = "IgnoredAsync"
    lane = "async"


class Login(BaseTool):
    """Take a secret."""

    name = "Login"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (
        ToolParameter(name="user", type="string", description="Who."),
        ToolParameter(name="password", type="string", description="The secret.", sensitive=True),
    )

    async def _execute(self, context: ExecutionContext, user: str, password: str) -> ToolResult:
        return ToolResult.fail(f"{user} has no access with {password}", error_code="NO_ACCESS")


TOOLS = (Add, Wait, Block, BlockOnce, Ignored, IgnoredAsync, Login)
'''


class Cli:
    """`forge-tools` in a folder; `settings` are its only FORGE_ variables. State goes beside the folder."""

    def __init__(self, folder: Path, module: str = MODULE, **settings: str) -> None:
        self.folder = folder
        self.module = module
        self.settings = settings

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
        return {**kept, "COLUMNS": "80", "XDG_STATE_HOME": str(self.state), **self.settings}

    @property
    def state(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-state")

    @property
    def home(self) -> Path:
        """Where the stack of the folder has its data."""
        return Marker.find(self.folder, self.state / "forge-tools").home

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(
            [*COMMAND[:-1], self.module, *words], cwd=self.folder, env=self.environment(), text=True, **pipes | options
        )

    def run(self, *words: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end; no command ever shows a traceback or sends escapes to what is no terminal."""
        try:
            done = warm_command().run([self.module, *words], cwd=self.folder, env=self.environment(), timeout=timeout)
        except subprocess.TimeoutExpired as error:
            for log in self.state.rglob("logs/*.log"):
                error.add_note(f"{log.name}: {log.read_text(errors='replace')[-4000:]}")
            raise
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        assert "\x1b" not in done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        """Run a command with `--output json`; return its one document."""
        done = self.run(*words, "--output", "json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def lines(self, *words: str) -> list[Any]:
        """Run a command with `--output json`; return its object of each line."""
        done = self.run(*words, "--output", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def in_the_background() -> Iterator[None]:
    """What is started here ignores what shells have the jobs ignore that a script starts with `&`."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@shared
def warm_command() -> WarmInterpreter:
    """What forks the commands that a test runs to their end; those that it watches or kills start from nothing."""
    return WarmInterpreter(*below("forge_tools.cli"), *CALLER, "forge_tools.tool.executor")


class Up:
    """A running `forge-tools up` with its log; a fork of a warm command, unless it is started `from_nothing`."""

    process: "subprocess.Popen[str] | Forked"

    def __init__(self, cli: Cli, *words: str, from_nothing: bool = False) -> None:
        self.log = cli.folder / "up.log"
        words = ("up", "--concurrency", "1", *words)
        with self.log.open("w") as log:
            if from_nothing:
                self.process = cli.start(*words, stdout=log, stderr=log)
            else:
                where: dict[str, Any] = {"cwd": cli.folder, "env": cli.environment(), "stdout": log, "stderr": log}
                self.process = warm_command().start([MODULE, *words], **where)

    def wait_ready(self) -> "Up":
        wait_until(lambda: "Ready." in self.said() or self.process.poll() is not None, 60, self.said)
        assert self.process.poll() is None, self.said()
        return self

    def said(self) -> str:
        return self.log.read_text()

    def tree(self) -> list[int]:
        return [process.pid for process in descendants(self.process.pid)]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def working(cli: Cli) -> Iterator[Cli]:
    """Have a worker of each lane serve the folder, with the tools of its `mytools.py` if there is one.

    For tests of what commands say: these begin much sooner than a whole stack does, and serve the same.
    """
    settings = Settings.load(home=cli.home, broker_url=cli.settings["FORGE_BROKER_URL"])
    migrated(f"sqlite:///{settings.home / 'forge.db'}")
    ensure_key(settings)
    tools = ("--tools", "mytools:TOOLS") if (cli.folder / "mytools.py").exists() else ()
    workers = [_worker(cli, "--lane", lane, "--concurrency", "2", *tools) for lane in ("async", "process")]
    try:
        for worker in workers:
            worker.wait_ready()
        yield cli
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.stop()


def _worker(cli: Cli, *words: str) -> WorkerProcess:
    log = cli.folder / f"{words[1]}.log"
    words = ("workers", "--queues", "default,background", "--categories", "file,execution,other", *words)
    lacking = (
        {"FORGE_WALLS_OF": json.dumps({"Bash": given().of_commands("namespace")})} if given().no_namespaces else {}
    )  # or Bash would be left to other hosts
    with log.open("wb") as said:
        where: dict[str, Any] = {"cwd": cli.folder, "env": lacking | cli.environment(), "stdout": said, "stderr": said}
        process = warm_worker().start(words, **where)
    return WorkerProcess(process, log)


def workers_below(pid: int) -> list[int]:
    """The workers of a stack, without the processes of their pools."""
    tree = descendants(pid)
    words = {one.pid: Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0") for one in tree}
    workers = {pid for pid, said in words.items() if said[:2] == [b"workers", b"--lane"]}
    return [one.pid for one in tree if one.pid in workers and one.parent not in workers]


def is_gone(pid: int) -> bool:
    """Whether it has ended, even if who adopted it has not asked how."""
    return not is_alive(pid)
