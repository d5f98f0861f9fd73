"""Processes of tools: read whole, bounded, and ended with everything they started."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.processes import spawner
from forge_tools.sandbox.processes.commands import Completed, run
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.spawner import SPAWNER, Spawner
from tests.descriptors import descriptors
from tests.waiting import reached, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    handle = os.open(tmp_path, os.O_RDONLY)
    yield handle
    os.close(handle)


@pytest.fixture
def bash(folder: int) -> Callable[..., Any]:
    """Run a script; what it wrote is appended to `into`."""

    async def call(script: str, into: bytearray | None = None, **options: Any) -> Completed:
        written = bytearray() if into is None else into

        def keep(data: bytes) -> bool:
            written.extend(data)
            return True

        given = {"folder": folder, "environment": child_environment(), "timeout": 20, "grace": 0.3, "stdout": keep}
        return await run(["bash", "--norc", "-c", script], **(given | options))

    return call


async def test_it_tells_how_the_command_ended(bash: Callable[..., Any]) -> None:
    assert (await bash("exit 3")) == Completed(exit_code=3)
    assert (await bash("kill -9 $$")) == Completed(signal=9)


async def test_both_streams_come_in_true_order(bash: Callable[..., Any]) -> None:
    into = bytearray()
    await bash("for i in 1 2 3; do echo out $i; echo err $i >&2; done", into)
    assert into == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"


async def test_a_command_that_writes_line_by_line_does_not_wake_us_for_each(bash: Callable[..., Any]) -> None:
    pieces: list[bytes] = []
    await bash("for ((i = 0; i < 20000; i++)); do echo $i; done", stdout=lambda data: not pieces.append(data))
    assert b"".join(pieces) == b"".join(b"%d\n" % number for number in range(20_000))
    assert len(pieces) < 10_000


async def test_what_is_written_while_we_pause_is_not_lost(bash: Callable[..., Any]) -> None:
    for ending in ("exit 3", "kill -9 $$", "sleep 20"):
        into = bytearray()
        await bash(f"echo a; echo b; echo c; {ending}", into, timeout=3)
        assert into == b"a\nb\nc\n", ending


async def test_the_streams_can_be_told_apart(bash: Callable[..., Any]) -> None:
    into, errors = bytearray(), []
    await bash("echo out; echo err >&2", into, stderr=lambda data: not errors.append(data))
    assert (into, b"".join(errors)) == (b"out\n", b"err\n")


async def test_input_is_empty_or_what_is_given(bash: Callable[..., Any], tmp_path: Path) -> None:
    into = bytearray()
    await bash("read x; echo $?", into)
    await bash("cat; echo", into, stdin=b"text")
    (tmp_path / "file").write_bytes(b"from a file")
    with open(tmp_path / "file", "rb") as file:
        await bash("cat", into, stdin=file.fileno())
    assert into == b"1\ntext\nfrom a file"


@pytest.mark.parametrize(
    ("script", "leftovers"),
    [
        ("sleep {0} &", 1),
        ("sleep {0} & disown", 1),
        ("setsid sleep {0} &", 1),
        ("nohup sleep {0} >/dev/null 2>&1 &", 1),
        ("(setsid bash -c 'sleep {0} & sleep {0} & wait' &) &", 3),
        ("sleep {0} 2>/dev/null >&2 &", 1),
        ("(while :; do echo on; sleep 0.01; done) &", 2),
        ("bash -c 'trap \"\" TERM; sleep {0}' &", 1),
    ],
)
async def test_what_is_left_running_neither_delays_the_answer_nor_survives_it(
    bash: Callable[..., Any], sleepers: Callable[[], list[int]], marker: str, script: str, leftovers: int
) -> None:
    started = time.monotonic()
    completed = await bash(script.format(marker) + " sleep 0.05; exit 5")
    assert time.monotonic() - started < 20
    assert completed.exit_code == 5
    assert 1 <= completed.leftovers <= leftovers
    assert not sleepers()


@pytest.mark.parametrize(
    "script",
    [
        "sleep {0}",
        "trap '' TERM; setsid sleep {0} & while :; do sleep 0.01; done",
        "sleep {0} & kill -STOP $$",
        "(setsid setsid sleep {0} &) & exec sleep {0}",
        "sleep {0} & while :; do echo y; done",
    ],
)
async def test_after_its_time_nothing_of_the_tree_is_left(
    bash: Callable[..., Any], sleepers: Callable[[], list[int]], marker: str, script: str
) -> None:
    started = time.monotonic()
    completed = await bash(script.format(marker), timeout=0.3)
    assert completed == Completed(timed_out=True)
    assert time.monotonic() - started < 20
    assert not sleepers()


async def test_a_command_may_say_something_when_it_is_asked_to_end(bash: Callable[..., Any]) -> None:
    into = bytearray()
    await bash("trap 'echo bye; exit' TERM; echo hi; while :; do sleep 0.01; done", into, timeout=2, grace=20)
    assert into.startswith(b"hi\n")
    assert into.endswith(b"bye\n")


async def test_a_sink_that_has_enough_ends_the_command(bash: Callable[..., Any]) -> None:
    seen: list[bytes] = []
    completed = await bash("yes", stdout=lambda data: bool(seen.append(data)))
    assert completed == Completed(stopped=True)
    assert len(seen) == 1


async def test_an_error_in_a_sink_ends_the_command_and_is_raised(
    bash: Callable[..., Any], sleepers: Callable[[], list[int]], marker: str
) -> None:
    def fail(_: bytes) -> bool:
        raise ValueError("cannot take this")

    with pytest.raises(ValueError, match="cannot take this"):
        await bash(f"echo x; sleep {marker}", stdout=fail)
    assert not sleepers()


async def test_cancelled_it_ends_the_tree_before_it_raises(
    bash: Callable[..., Any], sleepers: Callable[[], list[int]], marker: str
) -> None:
    call = asyncio.ensure_future(bash(f"trap '' TERM; setsid sleep {marker} & sleep {marker}; :"))
    await asyncio.to_thread(wait_until, lambda: len(sleepers()) == 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not sleepers()


async def test_cancelled_twice_the_tree_still_ends(
    bash: Callable[..., Any], sleepers: Callable[[], list[int]], marker: str
) -> None:
    call = asyncio.ensure_future(bash(f"trap '' TERM; sleep {marker}; :"))
    await asyncio.to_thread(wait_until, sleepers)
    for _ in range(2):
        call.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(wait_until, lambda: not sleepers())
    await reached(lambda: asyncio.all_tasks() == {asyncio.current_task()})


@pytest.mark.parametrize("command", ["/no/such/program", "no-such-program", "/etc"])
async def test_a_command_that_cannot_start_is_named(folder: int, command: str) -> None:
    with pytest.raises(SandboxError, match=f"^{command} could not be started: ") as refused:
        await run([command], folder=folder, environment=child_environment(), timeout=5, stdout=bool)
    assert refused.value.code == "SPAWN_FAILED"


async def test_a_command_that_kills_its_supervisor_counts_as_killed(bash: Callable[..., Any], marker: str) -> None:
    completed = await bash(f"setsid sleep {marker} & kill -9 $PPID; sleep {marker}")
    assert completed.signal == signal.SIGKILL


async def test_after_the_launcher_was_killed_the_next_command_gets_a_new_one(bash: Callable[..., Any]) -> None:
    await bash("true")
    first = SPAWNER.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert (await bash("exit 4")).exit_code == 4
    assert SPAWNER.pid != first


async def test_the_command_sees_no_secret_and_no_handle_of_ours(
    bash: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", "canary")
    SPAWNER.close()  # the first command that a launcher runs is forked in another way than those behind it
    for _ in range(2):
        into = bytearray()
        await bash("env; cat /proc/$PPID/environ; ls /proc/$$/fd; :", into)
        assert b"canary" not in into
        assert into.endswith(b"0\n1\n2\n")


async def test_fifty_at_once_do_not_mix_and_leave_no_handle(bash: Callable[..., Any]) -> None:
    async def one(number: int) -> bytes:
        into = bytearray()
        await bash(f"echo {number}; sleep 0.05; echo {number}", into)
        return bytes(into)

    await one(0)
    before = descriptors()
    outputs = await asyncio.gather(*(one(number) for number in range(50)))
    assert outputs == [b"%d\n%d\n" % (number, number) for number in range(50)]
    assert descriptors() <= before


async def test_no_zombies_are_left(bash: Callable[..., Any]) -> None:
    for _ in range(20):
        await bash("(true &) ; setsid true & exit 0")
    states = ["ps", "--ppid", str(SPAWNER.pid), "-o", "state="]
    await asyncio.to_thread(wait_until, lambda: b"Z" not in subprocess.run(states, capture_output=True).stdout)


async def test_without_handles_left_it_says_so(bash: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", no_more)
    with pytest.raises(SandboxError, match="Too many open files"):
        await bash("true")


def test_a_forked_child_makes_its_own_launcher(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from forge_tools.sandbox.processes.commands import run
from forge_tools.sandbox.processes.spawner import SPAWNER
folder = os.open("/", os.O_RDONLY)
def call():
    return asyncio.run(run(["true"], folder=folder, environment={"PATH": "/bin:/usr/bin"}, timeout=9, stdout=bool))
assert call().exit_code == 0
first = SPAWNER.pid
child = os.fork()
if not child:
    assert call().exit_code == 0
    assert SPAWNER.pid != first
    SPAWNER.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert call().exit_code == 0 and SPAWNER.pid == first
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_a_closed_spawner_starts_again_when_asked(tmp_path: Path) -> None:
    spawner = Spawner()
    folder, null = os.open("/", os.O_RDONLY), os.open(os.devnull, os.O_RDWR)
    for _ in range(2):
        control = spawner.start(["true"], {"PATH": "/bin:/usr/bin"}, folder=folder, streams=(null,) * 3, grace=1)
        with control, control.makefile() as lines:
            assert "exit 0\n" in list(lines)
        spawner.close()
    os.close(folder)
    os.close(null)


async def test_a_stopped_launcher_holds_up_neither_the_call_nor_the_end(
    bash: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawner, "PATIENCE_SECONDS", 0.2)
    await bash("true")
    os.kill(SPAWNER.pid, signal.SIGSTOP)
    with pytest.raises(SandboxError, match="could not be started"):
        await bash("true", timeout=0.1, grace=0)
    SPAWNER.close()
    assert (await bash("exit 3")).exit_code == 3
