"""What a call reports at the command line: to people live on the error stream, to programs as usual."""

import json
import re

import pytest

from tests.e2e.cli_driver import Cli
from tests.e2e.test_cli_calls import on_a_terminal
from tests.waiting import wait_until

TOOLS = '''
"""A tool that tells how far it is, and blocks between two words."""

import time

from forge_tools.tool import tool
from forge_tools.model import ExecutionContext


@tool
def build(context: ExecutionContext, files: int = 3, seconds: float = 0.7, nasty: bool = False) -> str:
    """Compile some files."""
    for number in range(1, files + 1):
        context.progress(number, files, f"file{number}.c")
        context.emit(f"compiling file{number}.c\\n")
        time.sleep(seconds)
    if nasty:
        context.emit("\\x07\\u202enasty\\n" + "flood " * 100_000)
    return f"compiled {files} files"


TOOLS = (build,)
'''
COMPILED = [f"compiling file{number}.c" for number in (1, 2, 3)]


def test_a_pipe_gets_the_result_alone(cli: Cli) -> None:
    done = cli.run("run", "build")

    assert (done.stdout, done.stderr, done.returncode) == ("compiled 3 files\n", "", 0)


@pytest.mark.parametrize("where", [(), ("--local", "--tools", "mytools:TOOLS")])
def test_live_lines_go_to_the_error_stream(cli: Cli, where: tuple[str, ...]) -> None:
    done = cli.run("run", "build", "--live", *where)

    assert done.stdout == "compiled 3 files\n"
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("compiling")] == COMPILED
    assert "3 of 3 (100%)  file3.c" in lines


def test_json_stays_one_document(cli: Cli) -> None:
    done = cli.run("run", "Bash", "command=for i in 1 2 3; do echo $i; sleep 0.4; done", "--live", "-o", "json")

    assert json.loads(done.stdout)["output"] == "1\n2\n3\n"
    assert [line for line in done.stderr.splitlines() if line.isdigit()] == ["1", "2", "3"]


def test_a_terminal_sees_a_bar_and_the_last_lines(cli: Cli) -> None:
    seen = on_a_terminal(cli, "run", "build", "seconds=2.5")

    assert "━" in seen
    assert "3 of 3 (100%)  file3.c" in seen
    assert "compiling file1.c" in seen
    assert "compiled 3 files" in seen


def test_a_call_elsewhere_is_followed_to_its_end(cli: Cli) -> None:
    started = cli.run("run", "build", "--background").stdout.strip()
    followed = cli.run("show", started, "--follow")
    late = cli.run("show", started, "--follow", "-o", "json")

    assert [line for line in followed.stderr.splitlines() if line.startswith("compiling")] == COMPILED
    assert "compiled 3 files" in followed.stdout
    assert [line for line in late.stderr.splitlines() if line.startswith("compiling")] == COMPILED
    assert json.loads(late.stdout)["progress"]["done"] == 3


def test_a_call_that_runs_shows_how_far_it_is(cli: Cli) -> None:
    started = cli.run("run", "build", "files=200", "seconds=0.5", "--background").stdout.strip()
    wait_until(lambda: "progress" in cli.run("show", started).stdout, 60)
    shown = cli.run("show", started).stdout
    cli.run("cancel", started)

    assert re.search(r"progress +\d+ of 200 \(\d+%\) file\d+\.c", shown)
    assert cli.run("show", started, "--follow").returncode == 1


def test_what_is_left_out_is_said_and_nothing_moves_the_cursor(cli: Cli) -> None:
    said = cli.run("run", "build", "files=1", "nasty=true", "--live").stderr

    left_out = re.search(r"^\.\.\. ([\d,]+) bytes left out \.\.\.$", said, re.MULTILINE)
    assert left_out
    assert int(left_out[1].replace(",", "")) > 500_000
    assert "\x07" not in said
    assert "\u202e" not in said


def test_following_what_is_not_there_is_an_error(cli: Cli) -> None:
    done = cli.run("show", "01a00000-0000-7000-8000-00000000abcd", "--follow")

    assert done.returncode == 1
    assert "No execution" in done.stderr


def test_a_follow_has_its_time(cli: Cli) -> None:
    started = cli.run("run", "build", "files=30", "--background").stdout.strip()
    done = cli.run("show", started, "--follow", "--timeout", "1.5")
    cli.run("cancel", started)

    assert done.returncode == 1
    assert "has not ended after 1.5s" in done.stderr
