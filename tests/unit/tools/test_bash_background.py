"""Bash in the background: it answers at once, and the command keeps running."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model import ExecutionContext
from forge_tools.model.places import ShellStatus
from forge_tools.model.scope import SCOPE, CallScope
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.sandbox.shells import host
from forge_tools.sandbox.shells.host import find, survey
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import Bash
from tests.unit.tools.shell_session import Book, Session
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
USER = """
import asyncio, sys
from pathlib import Path
from forge_tools.tool.executor import ToolExecutor
from forge_tools.model import ExecutionContext
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.sandbox.reach import Reach
from forge_tools.tools import BUILTINS

async def main():
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    executor = ToolExecutor(registry, reach=Reach(root=Path(sys.argv[1]), shells=Path(sys.argv[2]), hostname="h1"))
    context = ExecutionContext(working_dir=".", session_id="s1")
    result = await executor.execute("Bash", context, command=sys.argv[3], run_in_background=True)
    print(result.metadata["bash_id"], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_it_answers_at_once_with_the_way_on(calls: Session, tmp_path: Path) -> None:
    (tmp_path / "ws/sub").mkdir()
    result = await calls.bash(command="pwd; sleep 61", cwd="sub", description="a test", run_in_background=True)
    handle = result.metadata["bash_id"]
    assert result.output.startswith(f"Started in the background as {handle}.\n")
    assert f'BashOutput(bash_id="{handle}")' in result.output
    assert f'KillShell(shell_id="{handle}")' in result.output
    read = await calls.output(handle, wait_ms=5000)
    assert read.output.startswith(f"{tmp_path}/ws/sub\n")
    assert (result.metadata["cwd"], result.metadata["status"]) == ("sub", "running")


async def test_it_is_in_the_book_as_it_was_asked_for(calls: Session, book: Book) -> None:
    first = await calls.other(execution_id="e1").start("sleep 61", description="a test", env={"A": "canary"})
    (noted,) = book.shells.values()
    assert (noted.id, noted.hostname, noted.command, noted.description) == (first, "h1", "sleep 61", "a test")
    assert (noted.session_id, noted.agent_id, noted.execution_id) == ("s1", "a1", "e1")
    assert noted.status is ShellStatus.RUNNING
    assert "canary" not in (calls.folder / first / "record.json").read_text()


async def test_a_book_that_cannot_be_written_is_no_reason_to_lose_a_shell(
    calls: Session, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise DatabaseUnavailableError("gone")

    monkeypatch.setattr(book, "record", fail)
    assert (await calls.output(await calls.start("sleep 61"))).success


async def test_nothing_that_a_shell_leaves_has_the_secrets_of_its_call(calls: Session, book: Book) -> None:
    registry = ScopedRegistry()
    registry.register(Bash())
    command = 'echo "$API_TOKEN"; echo -n "u:$API_TOKEN" | base64; echo "\nclear."; sleep 61 # not-told-canary'
    asked = {"command": command, "env": {"API_TOKEN": "not-told-canary"}, "description": "with not-told-canary"}
    SCOPE.set(CallScope(execution_id="e1"))
    context = ExecutionContext(working_dir=".", session_id="s1")
    result = await ToolExecutor(registry).execute("Bash", context, **asked, run_in_background=True)
    handle = result.metadata["bash_id"]
    files = calls.folder / handle

    def left() -> bytes:
        return b"".join(path.read_bytes() for path in files.iterdir() if path.is_file())

    wait_until(lambda: b"\nclear." in left())
    assert not any(form in left() for form in (b"not-told", b64encode(b"u:not-told-canary")[4:20]))
    assert (await calls.output(handle)).output.startswith("[redacted]\n")
    assert book.shells[handle].command == command.replace("not-told-canary", "[redacted]")


@pytest.mark.parametrize(
    ("first", "then"),
    [(r"canary-\e", r"[1mof-\e[0mus"), (r"canary\r", r"\nof us"), (r"can\e[0mary\e[K\r\e[", r"m\nof us")],
)
async def test_no_escape_and_no_line_end_hides_a_secret_in_the_log_of_a_shell(
    calls: Session, first: str, then: str
) -> None:
    registry = ScopedRegistry()
    registry.register(Bash())
    command = f"printf 'one %b' '{first}'; sleep 0.1; printf '%b two\\r\\n50%%\\r99%%' '{then}'"
    asked = {"command": command, "env": {"API_TOKEN": "canary-of-us", "PIN_SECRET": "canary\nof us"}}
    SCOPE.set(CallScope(execution_id="e1"))
    context = ExecutionContext(working_dir=".", session_id="s1")
    result = await ToolExecutor(registry).execute("Bash", context, **asked, run_in_background=True)
    handle = result.metadata["bash_id"]
    read = await calls.ended(handle)
    assert read.output.startswith("one [redacted] two\n99%")
    log = b"".join(path.read_bytes() for path in sorted((calls.folder / handle).glob("*.out")))
    assert log == b"one [redacted] two\r\n50%\r99%"
    assert [(await calls.output(handle, since=at)).output.partition("\n")[0] for at in (4, 15, 20)] == [
        "[redacted] two",
        "two",
        "99%",
    ]


async def test_variables_and_input_are_given(calls: Session) -> None:
    handle = await calls.start("cat; echo $A $FORGE_INSTANCE.", stdin="tëxt\n", env={"A": "1 2"})
    assert (await calls.ended(handle)).output.startswith("tëxt\n1 2 .\n")


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"command": "ls", "cwd": "/etc"}, "PATH_OUTSIDE_WORKSPACE"),
        ({"command": "ls", "cwd": "nope"}, "FILE_NOT_FOUND"),
        ({"command": "ls", "env": {"FORGE_SHELL": "x"}}, "VALIDATION_ERROR"),
        ({"command": "a\0b"}, "VALIDATION_ERROR"),
    ],
)
async def test_what_cannot_be_run_starts_nothing(calls: Session, parameters: dict, code: str) -> None:
    assert (await calls.bash(**parameters, run_in_background=True)).error_code == code
    assert os.listdir(calls.folder) == []


async def test_an_execution_that_runs_again_starts_nothing_more(calls: Session) -> None:
    again = calls.other(execution_id="e1")
    assert len({await again.start("sleep 61"), await again.start("sleep 61")}) == 1
    assert len({await calls.start("sleep 61"), await calls.start("sleep 61")}) == 2


async def test_a_cancelled_call_leaves_no_shell(calls: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = asyncio.Event(), []
    loop, ask = asyncio.get_running_loop(), host.KEEPER.request

    def slow(*request: Any) -> socket.socket:
        answer = ask(*request)
        loop.call_soon_threadsafe(begun.set)
        wait_until(lambda: may_go_on)
        return answer

    monkeypatch.setattr(host.KEEPER, "request", slow)
    call = asyncio.ensure_future(calls.bash(command="sleep 61", run_in_background=True))
    await begun.wait()
    call.cancel()
    may_go_on.append(True)
    with pytest.raises(asyncio.CancelledError):
        await call
    wait_until(lambda: survey(calls.folder)[0].status is ShellStatus.KILLED)


async def test_dry_run_says_what_would_start_and_touches_nothing(calls: Session) -> None:
    dry = calls.other(dry_run=True)
    result = await dry.bash(command="sleep 61", run_in_background=True)
    assert result.output == "[Dry Run] Would start in the background in the working directory: sleep 61"
    assert "The shell would refuse it: " in (await dry.bash(command="if", run_in_background=True)).output
    assert os.listdir(calls.folder) == []


async def test_without_a_folder_of_its_own_it_uses_one_of_the_user(
    calls: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    token = REACH.set(Reach(root=tmp_path / "ws"))
    handle = await calls.start("echo here; exit 2")
    assert (await calls.ended(handle)).metadata["exit_code"] == 2
    assert find(host.shells_folder(REACH.get()), handle) is not None
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert "Give the executor Reach(shells=...)" in (await calls.bash(command="ls", run_in_background=True)).error
    REACH.reset(token)


async def test_a_shell_outlives_the_executor_that_was_killed(calls: Session, tmp_path: Path) -> None:
    script = "trap 'echo asked; exit 6' TERM; echo up; while :; do sleep 0.02; done"
    with subprocess.Popen(
        [sys.executable, "-c", USER, tmp_path / "ws", calls.folder, script], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as user:
        handle = user.stdout.readline().strip()
        user.send_signal(signal.SIGKILL)
    read = await calls.other(agent_id=None).output(handle, wait_for="up")
    assert (read.metadata["status"], read.metadata["matched_line"]) == ("running", "up")
    assert "exit code 6" in (await calls.kill(handle)).output
    assert "asked\n" in (await calls.output(handle)).output
