"""Commands that a script starts with `&`: their shell has them ignore Ctrl-C, and SIGTERM ends them all the same."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cli_driver import TOOLS, Cli, Up, in_the_background, is_gone
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("background")
    (folder / "mytools.py").write_text(TOOLS)
    with in_the_background():
        up = Up(Cli(folder), "--tools", "mytools:TOOLS", from_nothing=True)
    yield up.wait_ready()
    tree = up.tree()
    assert up.stop() == 0, up.said()
    assert "no process is left" in up.said()
    assert [pid for pid in tree if not is_gone(pid)] == []


@pytest.fixture(scope="module")
def cli(up: Up) -> Cli:
    return Cli(up.log.parent)


def signals_in(mask: str) -> set[signal.Signals]:
    """Of a line such as SigIgn in /proc/PID/status."""
    return {n for n in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM) if int(mask, 16) >> (n - 1) & 1}


def test_a_stack_says_how_it_ends(up: Up) -> None:
    """It ends that way when these tests do."""
    assert "Ctrl-C" not in up.said()
    assert f"kill {up.process.pid} stops everything" in up.said()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_what_the_starter_ignores_stays_ignored(up: Up, cli: Cli, number: signal.Signals) -> None:
    up.process.send_signal(number)
    assert cli.run("run", "Add", "a=1", "b=1").stdout == "2\n"
    assert (up.process.poll(), "Stopping" in up.said()) == (None, False)


@pytest.mark.parametrize("tool", ["Ignored", "IgnoredAsync"])
def test_what_a_tool_starts_ignores_no_signal(cli: Cli, tool: str) -> None:
    assert signals_in(cli.run("run", tool).stdout.strip()) == set()
    bash = cli.run("run", "Bash", "command=grep SigIgn /proc/self/status")
    assert signals_in(bash.stdout.split()[1]) == set()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "Wait", "seconds=60", "--agent", "waits"), 130),
        (("run", "Block", "--local", "--tools", "mytools:TOOLS"), 130),
        (("export", "--to", "pipe"), 130),
        (("mcp",), 0),
        (("mcp", "--http", "127.0.0.1:0"), 0),
        (("worker", "--lane", "async", "--queues", "other"), 0),
        (("worker", "--lane", "process", "--queues", "other"), 0),
    ],
)
def test_a_command_in_the_background_ends_on_sigterm_and_not_on_ctrl_c(
    cli: Cli, words: Sequence[str], code: int
) -> None:
    if words[0] == "export":
        os.mkfifo(cli.folder / "pipe")
    log = cli.folder / "said"
    with in_the_background(), log.open("w") as said:
        process = cli.start(*words, stdout=said, stderr=said, stdin=subprocess.PIPE)
    with ended(process):
        wait_until(lambda: is_served(process.pid, words, log), 60, log.read_text)
        for number in (signal.SIGINT, signal.SIGQUIT):
            process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert "stops" not in log.read_text()
        process.terminate()
        assert process.wait(60) == code, log.read_text()


@contextmanager
def ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.kill()


def is_served(pid: int, words: Sequence[str], log: Path) -> bool:
    """Whether it is where SIGTERM is documented to end it in order."""
    if words[0] == "worker":
        return "Worker ready" in log.read_text()
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return signal.SIGTERM in signals_in(caught.split()[1])
