"""Commands that have made other shells hang, lose output or leave processes behind."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.walls.probe import TIERS
from forge_tools.tools.execution.bash import Bash
from tests.waiting import wait_until

Call = Callable[..., Awaitable[ToolResult]]


pytestmark = pytest.mark.parametrize("commands", TIERS, indirect=True)


@pytest.fixture
def bash(caller: Callable[[Bash], Call]) -> Call:
    return caller(Bash())


@pytest.fixture
def left_by_commands(commands: CommandWalls) -> Callable[[], list[str]]:
    """The launcher's children, buried or not, unless there is just the supervisor that it keeps ready."""

    def children() -> list[str]:
        pid = commands.spawner.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return found if len(found) > 1 else []

    return children


@pytest.mark.parametrize(
    "left",
    [
        "nohup sleep 61",
        "sleep 61 >/dev/null",
        "sleep 61 2>/dev/null",
        "sleep 61 >/dev/null 2>&1 </dev/null",
        "bash -c 'setsid bash -c \"sleep 61 & disown\" & disown'",
        "env -i setsid sleep 61",
        "FORGE_SHELL=sh_box_000000000000 setsid sleep 61",
        "env -i FORGE_SHELL=sh_box_000000000000 setsid sleep 61",
        "(trap '' TERM HUP; exec sleep 61)",
        "yes",
    ],
)
async def test_nothing_that_is_left_holds_the_call_up_or_stays(
    bash: Call, left_by_commands: Callable[[], list[str]], left: str
) -> None:
    started = time.monotonic()
    result = await bash({"max_output_size": 400}, command=f"{left} & sleep 0.1; echo on")
    assert time.monotonic() - started < 20
    assert "stopped when the command ended" in result.output
    wait_until(lambda: not left_by_commands())


async def test_a_child_that_is_stopped_is_ended_too(bash: Call, left_by_commands: Callable[[], list[str]]) -> None:
    result = await bash(command="sleep 61 & sleep 0.05; kill -STOP $!; echo on")
    assert result.metadata["leftovers"] == 1
    wait_until(lambda: not left_by_commands())


async def test_a_shell_that_stops_itself_is_ended_when_its_time_is_over(bash: Call) -> None:
    result = await bash({"timeout": 5}, command="echo on; kill -STOP $$; echo off", timeout=300)
    assert result.error_code == "TIMEOUT"
    assert "off" not in result.error


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("python3 -i -c 'print(1)' 2>/dev/null", "1\n"),
        ("echo a\recho b", "echo b\n"),
        ("echo a \\", "a \\\n"),
        ("echo a #", "a\n"),
        ("printf '\\033[6n\\033[c\\033]11;?\\007x'", "x"),
        ("printf '\\xf0\\x9f'; sleep 0.05; printf '\\x98\\x80'", "😀"),
        ("sudo true >/dev/null 2>&1; echo on", "on\n"),
        ("echo '!x' $!", "!x\n"),
    ],
)
async def test_what_asks_or_confuses_a_terminal_is_answered_or_shown(bash: Call, command: str, output: str) -> None:
    started = time.monotonic()
    assert (await bash(command=command)).output == output
    assert time.monotonic() - started < 10


async def test_a_commit_without_a_message_does_not_wait_for_an_editor(bash: Call) -> None:
    setup = "git init -q . && git config user.email a@b && git config user.name a && touch f && git add f"
    result = await bash(command=f"{setup} && git commit")
    assert "empty commit message" in result.output
    assert result.metadata["exit_code"] == 1


async def test_a_command_whose_time_is_over_before_it_starts_is_no_riddle(bash: Call) -> None:
    result = await bash(command="echo on; sleep 61", timeout=1)
    said = "Command timed out after 0.001s (timeout is in milliseconds) and was stopped"
    assert (result.error_code, result.error[: len(said)]) == ("TIMEOUT", said)


async def test_a_hundred_commands_leave_no_zombie(bash: Call, left_by_commands: Callable[[], list[str]]) -> None:
    for _ in range(100):
        await bash(command="(sleep 0 &); true")
    wait_until(lambda: not left_by_commands())
