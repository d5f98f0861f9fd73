"""Bash on real commands: output, endings, limits, and nothing left behind."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.walls.probe import TIERS
from forge_tools.tools.execution.bash import Bash
from tests.waiting import reached

Call = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def bash(caller: Callable[[Bash], Call], commands: CommandWalls) -> Iterator[Call]:
    yield caller(Bash())
    if pid := commands.spawner.pid:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        deadline = time.monotonic() + 20
        while children.exists() and len(children.read_text().split()) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        left = children.read_text().split() if children.exists() else []
        assert len(left) <= 1, "beside the supervisor of the next command, something was left behind"


@pytest.mark.parametrize("commands", TIERS, indirect=True)
@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo hi", "hi\n"),
        ("true", "(no output)"),
        ("printf x", "x"),
        ("echo out; echo err >&2; exit 1", "out\nerr\n[exit code: 1]"),
        ("printf x; exit 255", "x\n[exit code: 255]"),
        ("exit 130", "[exit code: 130]"),
        ("kill -9 $$", "[killed by SIGKILL]"),
        ("kill -SEGV $$", "[killed by SIGSEGV]"),
        ("kill -40 $$", "[killed by signal 40]"),
        ("exec echo replaced", "replaced\n"),
        ("cat <<'END'\nheredoc $x `y` !z\nEND", "heredoc $x `y` !z\n"),
        ("echo a \\\n b # comment", "a b\n"),
        ("echo ünï 😀", "ünï 😀\n"),
        ("read x; echo $?", "1\n"),
        ("cat", "(no output)"),
        ("printf 'a\\0b\\xff\\n'", "a\\x00b\ufffd\n"),
        ("printf '10%%\\r50%%\\r100%%\\n'", "100%\n"),
        ("printf '\\033[31mred\\033[0m\\n'", "red\n"),
        ("umask; ulimit -c", "0022\n0\n"),
        ("[ -t 0 ] || [ -t 1 ] || (: </dev/tty) 2>/dev/null || echo no terminal", "no terminal\n"),
    ],
)
async def test_output_comes_with_how_the_command_ended(bash: Call, command: str, output: str) -> None:
    result = await bash(command=command)
    assert (result.success, result.output) == (True, output)


async def test_a_missing_program_is_an_answer(bash: Call) -> None:
    result = await bash(command="no-such-program")
    assert "no-such-program: command not found\n[exit code: 127]" in result.output
    assert result.metadata["exit_code"] == 127


async def test_it_runs_in_a_folder_of_the_workspace(bash: Call, ws: Path) -> None:
    (ws / "sub").mkdir()
    (ws / "out").symlink_to("/etc")
    assert (await bash(command="pwd", cwd="sub")).output == f"{ws}/sub\n"
    assert (await bash({"working_dir": "sub"}, command="pwd")).output == f"{ws}/sub\n"
    for outside in ("out", "..", "/etc"):
        assert (await bash(command="pwd", cwd=outside)).error == f"Path is outside the workspace: {outside}"
    assert (await bash(command="pwd", cwd="nope")).error_code == "FILE_NOT_FOUND"


async def test_a_folder_that_goes_while_it_runs_is_no_error(bash: Call, ws: Path) -> None:
    (ws / "sub").mkdir()
    assert (await bash(command="rmdir ../sub; echo done", cwd="sub")).output == "done\n"


async def test_input_and_variables_are_given(bash: Call) -> None:
    assert (await bash(command="cat; echo $A", stdin="tëxt\n", env={"A": "1 2"})).output == "tëxt\n1 2\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"command": ""}, "Value for command is shorter than minimum length: 1"),
        ({"command": "a\0b"}, "command contains a NUL character"),
        ({"command": "\ud800"}, "command contains half a surrogate pair"),
        ({"command": "é" * 99_999}, "command is 199,998 bytes; the limit is 131,071"),
        ({"command": "x" * 100_001}, "Value for command exceeds maximum length: 100000"),
        ({"command": "x", "env": {"PATH": "/tmp"}}, "env may not set PATH"),
        ({"command": "x", "env": {"A": 1}}, "Invalid type for env.A: expected string"),
        ({"command": "x", "env": {"A": "\udc80"}}, "env.A contains half a surrogate pair"),
        ({"command": "x", "timeout": 0}, "Value for timeout is below minimum: 1"),
        ({"command": "x", "timeout": 600_001}, "Value for timeout exceeds maximum: 600000"),
        ({"command": "x", "stdin": "\ud800"}, "stdin contains half a surrogate pair"),
        ({"comand": "y"}, "did you mean 'command'?"),
    ],
)
async def test_what_cannot_be_run_is_refused_before_anything_starts(bash: Call, arguments: dict, says: str) -> None:
    result = await bash(**arguments)
    assert result.error_code == "VALIDATION_ERROR"
    assert says in result.error


async def test_a_command_of_100_kb_runs(bash: Call) -> None:
    command = "echo " + "x" * 99_000 + " | wc -c"
    assert (await bash(command=command)).output == "99001\n"


async def test_the_shell_knows_no_secret_and_has_no_handle_of_ours(bash: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORGE_DATABASE_URL", "FORGE_BROKER_URL", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "canary")
    result = await bash(command="env; cat /proc/$PPID/environ; ls /proc/$$/fd; :")
    assert "canary" not in result.output
    assert result.output.endswith("0\n1\n2\n")


@pytest.mark.parametrize("commands", TIERS, indirect=True)
@pytest.mark.parametrize("left", ["sleep 61 &", "setsid sleep 61 & disown", "(setsid sleep 61 &) >/dev/null 2>&1"])
async def test_what_is_left_running_is_stopped_and_reported(bash: Call, left: str) -> None:
    started = time.monotonic()
    result = await bash(command=f"{left} echo on; exit 3" if left.endswith("&") else f"{left}; echo on; exit 3")
    assert time.monotonic() - started < 20
    assert (
        result.output
        == "on\n[1 background process was stopped when the command ended; run_in_background=true keeps it]\n[exit code: 3]"
    )
    assert result.metadata["leftovers"] == 1


@pytest.mark.parametrize(
    "command",
    [
        "echo partial; sleep 61",
        "echo partial; yes '' & sleep 61",
        "echo partial; trap '' TERM; while :; do sleep 0.01; done",
    ],
)
async def test_a_timeout_fails_with_the_output_so_far(bash: Call, command: str) -> None:
    started = time.monotonic()
    result = await bash({"timeout": 30}, command=command, timeout=2000)
    assert time.monotonic() - started < 25
    assert (result.success, result.error_code) == (False, "TIMEOUT")
    assert result.error.startswith(
        "Command timed out after 2s and was stopped with all it started. Output so far:\npartial"
    )


async def test_it_answers_before_the_call_itself_is_timed_out(bash: Call) -> None:
    result = await bash({"timeout": 3}, command="echo partial; sleep 61")
    assert result.error.startswith("Command timed out after 2.")
    assert "partial" in result.error


async def test_a_silent_timeout_says_so(bash: Call) -> None:
    assert "It had written nothing." in (await bash(command="sleep 61", timeout=50)).error


async def test_endless_output_is_kept_within_the_budget(bash: Call) -> None:
    result = await bash({"max_output_size": 2000}, command="yes", timeout=2000)
    assert len(result.error) < 2200
    assert "omitted" in result.error
    assert result.metadata["total_chars"] > 100_000


async def test_the_end_of_much_output_is_seen(bash: Call) -> None:
    command = "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo THE END; exit 2"
    result = await bash(command=command)
    assert len(result.output) <= 100_000
    assert result.output.endswith("\nTHE END\n[exit code: 2]")
    assert result.metadata["total_chars"] == 100_000_009
    assert result.metadata["truncated"]


@pytest.mark.parametrize("size", [839, 840, 841])
async def test_output_is_cut_only_above_the_budget(bash: Call, size: int) -> None:
    result = await bash({"max_output_size": 1000}, command=f"printf '%*s' {size} x")
    assert result.metadata["truncated"] == (size > 840)
    assert len(result.output) <= 1000


async def test_a_cancelled_call_leaves_nothing(bash: Call, ws: Path) -> None:
    call = asyncio.ensure_future(bash(command="touch started; trap '' TERM; setsid sleep 61 & sleep 61; :"))
    await reached((ws / "started").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_fifty_commands_at_once_keep_to_themselves(bash: Call) -> None:
    calls = [bash(command=f"echo $A; sleep 0.05; echo {n}", env={"A": str(n)}) for n in range(50)]
    assert [result.output for result in await asyncio.gather(*calls)] == [f"{n}\n{n}\n" for n in range(50)]


async def test_dry_run_says_what_would_run_and_where_and_touches_nothing(bash: Call, ws: Path) -> None:
    (ws / "src").mkdir()
    result = await bash({"dry_run": True}, command="touch made; $(touch made)", cwd="src", timeout=5000)
    assert result.output == "[Dry Run] Would run in src/: touch made; $(touch made) (timeout 5s)"
    assert (result.metadata["is_valid"], os.listdir(ws / "src")) == (True, [])


async def test_dry_run_reports_what_the_shell_cannot_parse(bash: Call) -> None:
    result = await bash({"dry_run": True}, command="if true")
    assert "The shell would refuse it: " in result.output
    assert "syntax error" in result.output
    assert (await bash({"dry_run": True}, command="ls", cwd="..")).error_code == "PATH_OUTSIDE_WORKSPACE"


def test_its_capabilities_are_the_worst_case() -> None:
    capabilities = Bash().spec.capabilities
    assert (capabilities.writes_files, capabilities.executes_commands, capabilities.accesses_network) == (True,) * 3
    assert (capabilities.idempotent, capabilities.retryable) == (False, False)
