"""`forge-tools dev`: saved code answers, broken code changes nothing, and calls scroll by."""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from forge_tools import ExecutionContext
from forge_tools.client import SyncExecutorClient
from forge_tools.config import Settings
from forge_tools.sandbox.processes.trees import descendants
from tests.e2e.cli_driver import COMMAND, Cli, is_gone, workers_below
from tests.e2e.terminal import Terminal
from tests.waiting import wait_until

SOURCE = '''
import asyncio

from forge_tools.tool import tool


@tool
def say(text: str) -> str:
    """Say it."""
    if text == "bad":
        raise ValueError("no such word")
    return f"OLD {text}"


@tool
async def dawdle(seconds: float) -> str:
    """Wait, then say which code this is."""
    await asyncio.sleep(seconds)
    return "OLD"
'''
CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "mytools.py").write_text(SOURCE)
    (tmp_path / "pyproject.toml").write_text('[tool.forge-tools]\ntools = ["mytools"]\n')
    return Cli(tmp_path, FORGE_HOME=str(tmp_path / ".home"))


@pytest.fixture
def terminal(cli: Cli) -> Iterator[Terminal]:
    with Terminal(cli, "dev", size=(40, 200)) as terminal:
        wait_until(
            lambda: "Ready." in terminal.written or terminal.process.poll() is not None, 90, lambda: terminal.written
        )
        yield terminal


@pytest.fixture
def client(cli: Cli, terminal: Terminal) -> Iterator[SyncExecutorClient]:
    with SyncExecutorClient(Settings(home=cli.folder / ".home")) as client:
        yield client


def test_a_day_with_it(cli: Cli, terminal: Terminal, client: SyncExecutorClient) -> None:
    def shows(text: str) -> None:
        wait_until(lambda: text in terminal.written, 60, lambda: terminal.written)

    tools = cli.folder / "mytools.py"
    shows("run dawdle seconds=1")
    assert client.execute("say", CONTEXT, text="hi").output == "OLD hi"
    running = client.submit("dawdle", {"seconds": 6}, CONTEXT)
    waiting = client.submit("say", {"text": "waited"}, CONTEXT, delay=3.0)
    wait_until(lambda: running.status() == "running", 60)

    tools.write_text(SOURCE.replace("OLD", "NEW"))
    shows("New code serves after")
    assert client.execute("say", CONTEXT, text="hi").output == "NEW hi"
    assert running.result(timeout=60).output == "OLD", "what runs goes on with its own code"
    assert waiting.result(timeout=60).output == "NEW waited", "what waits is run by the new code"

    half = SOURCE[: SOURCE.index("such word")]
    tools.write_text(half)
    line = half.count("\n") + 1
    shows(
        f"failed at {tools}:{line} with SyntaxError: unterminated string literal (detected at line {line}). The old code goes on."
    )
    tools.write_text("")
    shows("mytools has no tool. Decorate a function in it with @tool. The old code goes on.")
    assert client.execute("say", CONTEXT, text="hi").output == "NEW hi"

    tools.write_text(SOURCE.replace("OLD", "ODD"))
    wait_until(lambda: client.execute("say", CONTEXT, text="again").output == "ODD again", 60)
    shows("ODD again")
    assert not client.execute("say", CONTEXT, text="bad").success
    shows("✗ say")

    os.write(terminal.keyboard, b"f")
    shows("no such word")
    before = len(client.history.list(tool="say"))
    os.write(terminal.keyboard, b"r")
    wait_until(lambda: len(client.history.list(tool="say")) == before + 1, 60)

    tree = [process.pid for process in descendants(terminal.process.pid)]
    assert terminal.end(signal.SIGINT) == 0
    assert "no process is left" in terminal.written
    assert [pid for pid in tree if not is_gone(pid)] == []


def test_new_code_is_announced_once_the_old_code_answers_no_more(
    terminal: Terminal, client: SyncExecutorClient, cli: Cli
) -> None:
    supervisors = [psutil.Process(worker).parent() for worker in workers_below(terminal.process.pid)]
    with ExitStack() as resumed:
        for supervisor in supervisors:
            supervisor.suspend()  # it passes on no signal
            resumed.callback(supervisor.resume)
        (cli.folder / "mytools.py").write_text(SOURCE.replace("OLD", "NEW"))
        wait_until(lambda: client.execute("say", CONTEXT, text="hi").output == "NEW hi", 60)
        assert "New code serves" not in terminal.written

    wait_until(lambda: "New code serves" in terminal.written, 60, lambda: terminal.written)
    assert {client.execute("say", CONTEXT, text="hi").output for _ in range(20)} == {"NEW hi"}


def test_one_whose_terminal_is_gone_serves_on_until_it_is_ended(
    terminal: Terminal, client: SyncExecutorClient, cli: Cli
) -> None:
    # The last that it says.
    wait_until(lambda: "run dawdle seconds=1" in terminal.written, 60, lambda: terminal.written)
    terminal.close()
    assert client.execute("say", CONTEXT, text="hi").output == "OLD hi"

    process = psutil.Process(terminal.process.pid)
    used = sum(process.cpu_times()[:2])
    time.sleep(2)
    assert sum(process.cpu_times()[:2]) - used < 1

    (cli.folder / "mytools.py").write_text(SOURCE.replace("OLD", "NEW"))
    wait_until(lambda: client.execute("say", CONTEXT, text="hi").output == "NEW hi", 60)
    tree = [process.pid for process in descendants(terminal.process.pid)]
    assert terminal.end(signal.SIGHUP) == 0
    assert [pid for pid in tree if not is_gone(pid)] == []


def test_one_whose_reader_is_gone_loads_saved_code_and_stops_in_order(cli: Cli) -> None:
    errors = cli.folder / "errors.log"
    with errors.open("w") as stream, cli.start("dev", stderr=stream) as process, ExitStack() as ending:
        ending.callback(process.kill)
        assert process.stdout is not None
        assert any("Ready." in line for line in process.stdout)
        process.stdout.close()
        with SyncExecutorClient(Settings(home=cli.folder / ".home")) as client:
            for text in ("ONE", "TWO"):
                (cli.folder / "mytools.py").write_text(SOURCE.replace("OLD", text))
                wait_until(lambda said=f"{text} hi": client.execute("say", CONTEXT, text="hi").output == said, 30)
        tree = [one.pid for one in descendants(process.pid)]
        process.terminate()
        assert process.wait(60) == 0
        assert [pid for pid in tree if not is_gone(pid)] == []
    assert "Traceback" not in errors.read_text()


def test_one_in_the_background_of_a_terminal_serves_and_leaves_the_keys_to_others(cli: Cli) -> None:
    ours, theirs = pty.openpty()
    job = ["setsid", "--ctty", "--wait", "bash", "-mc", '"$@" > dev.log & wait', "bash", *COMMAND, "dev"]
    log, streams = cli.folder / "dev.log", {"stdin": theirs, "stderr": theirs}
    with ExitStack() as ending:
        process = ending.enter_context(subprocess.Popen(job, cwd=cli.folder, env=cli.environment(), **streams))
        ending.callback(process.kill)
        ending.callback(os.close, ours)
        os.close(theirs)
        wait_until(lambda: log.exists() and "Ready. f shows" in log.read_text(), 60)
        os.write(ours, b"f\n")
        (cli.folder / "mytools.py").write_text(SOURCE.replace("OLD", "NEW"))
        wait_until(lambda: "New code serves" in log.read_text(), 30, log.read_text)
        (dev,) = [one.pid for one in descendants(process.pid) if words_of(one.pid)[-2:] == [b"dev", b""]]
        os.kill(dev, signal.SIGTERM)
        assert process.wait(30) == 0


def words_of(pid: int) -> list[bytes]:
    with suppress(OSError):  # it is over
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def test_what_runs_on_new_code_that_never_took_over_ends_in_peace(
    terminal: Terminal, client: SyncExecutorClient, cli: Cli
) -> None:
    held, tools = cli.folder / "held", cli.folder / "mytools.py"
    held.touch()
    slow = 'import os, sys, time\nwhile "process" in sys.argv and os.path.exists("held"):\n    time.sleep(0.05)\n'
    tools.write_text(slow + SOURCE.replace("OLD", "ONE"))
    wait_until(lambda: client.execute("dawdle", CONTEXT, seconds=0).output == "ONE", 60)
    calls = [client.submit("dawdle", {"seconds": 4}, CONTEXT) for _ in range(10)]
    wait_until(lambda: all(call.status() == "running" for call in calls), 60)

    held.unlink()
    tools.write_text(SOURCE.replace("OLD", "TWO"))

    assert {call.result(timeout=60).output for call in calls} == {"OLD", "ONE"}


def test_workers_that_cannot_be_started_are_told_and_tried_again_at_the_next_save(
    terminal: Terminal, client: SyncExecutorClient, cli: Cli
) -> None:
    logs = cli.folder / ".home" / "logs"
    logs.rename(logs.with_name("away"))
    (cli.folder / "mytools.py").write_text(SOURCE.replace("OLD", "ONE"))
    wait_until(lambda: "cannot be started: No such file" in terminal.written, 30, lambda: terminal.written)
    assert client.execute("say", CONTEXT, text="hi").output == "OLD hi"

    logs.with_name("away").rename(logs)
    (cli.folder / "mytools.py").write_text(SOURCE.replace("OLD", "TWO"))
    wait_until(lambda: client.execute("say", CONTEXT, text="hi").output == "TWO hi", 60)


def test_a_worker_that_dies_is_started_again(terminal: Terminal, client: SyncExecutorClient, cli: Cli) -> None:
    for worker in workers_below(terminal.process.pid):
        os.kill(worker, signal.SIGKILL)

    wait_until(lambda: "worker ended with -9; another is started" in terminal.written, 60, lambda: terminal.written)
    assert client.execute("say", CONTEXT, text="hi").output == "OLD hi"
