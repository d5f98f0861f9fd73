"""KillShell: the whole tree, verified, however often and from wherever it is asked."""

import asyncio
import os
import re
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from forge_tools.model.places import ShellRecord, ShellStatus
from forge_tools.sandbox.shells.host import find
from forge_tools.tools.execution import shells
from tests.shell_hosts import processes_of
from tests.unit.tools.shell_session import Book, Session
from tests.waiting import wait_until


async def test_it_says_what_it_stopped_and_how_it_ended(calls: Session) -> None:
    handle = await calls.start("sleep 61 & setsid sleep 61 & echo up; wait", description="three sleepers")
    await calls.output(handle, wait_for="up")
    wait_until(lambda: len(processes_of({handle})) == 3)
    result = await calls.kill(handle)
    said = rf"Stopped {handle} \(three sleepers\): 3 processes, exit SIGTERM, after 0\.\d s"
    assert re.fullmatch(said, result.output)
    facts = result.metadata
    assert (facts["status"], facts["signal"], facts["already_exited"], facts["left"]) == ("killed", 15, False, 0)
    assert not processes_of({handle})


async def test_one_that_may_end_in_its_own_way_says_how(calls: Session) -> None:
    handle = await calls.start("trap 'exit 3' INT; echo up; while :; do sleep 0.02; done")
    await calls.output(handle, wait_for="up")
    result = await calls.kill(handle, signal="INT", grace_ms=10_000)
    assert "process" in result.output
    assert ", exit code 3, after" in result.output


@pytest.mark.parametrize("how", [{"grace_ms": 200}, {"grace_ms": 0}, {"signal": "KILL", "grace_ms": 30_000}])
async def test_one_that_ignores_what_it_is_told_is_killed(calls: Session, how: dict) -> None:
    handle = await calls.start("trap '' TERM INT; echo up; while :; do sleep 0.05; done")
    await calls.output(handle, wait_for="up")
    started = time.monotonic()
    result = await calls.kill(handle, **how)
    assert ", exit SIGKILL, after" in result.output
    assert time.monotonic() - started < 20


async def test_one_that_is_over_needs_nobody(calls: Session) -> None:
    handle = await calls.start("exit 4")
    await calls.ended(handle)
    result = await calls.kill(handle)
    assert (result.success, result.metadata["already_exited"], result.metadata["exit_code"]) == (True, True, 4)
    assert result.output == f"{handle} (exit 4) is over: exited with exit code 4"
    other = await calls.start("sleep 61")
    await calls.kill(other)
    assert (await calls.kill(other)).output == f"{other} (sleep 61) is over: killed with SIGTERM"


async def test_many_may_ask_at_once(calls: Session) -> None:
    handle = await calls.start("trap '' TERM; echo up; while :; do sleep 0.05; done")
    await calls.output(handle, wait_for="up")
    results = await asyncio.gather(*(calls.kill(handle, grace_ms=grace) for grace in (300, 200, 100, 300)))
    assert all(result.success for result in results)
    assert {result.metadata["status"] for result in results} == {"killed"}


async def test_a_shell_may_be_ended_while_it_is_being_started(calls: Session) -> None:
    async def start_and_end(n: int) -> str:
        handle = await calls.start(f"for i in $(seq 1 {n}); do sleep 61 & done; wait")
        return (await calls.kill(handle)).metadata["status"]

    assert set(await asyncio.gather(*(start_and_end(n) for n in range(1, 20)))) == {"killed"}


async def test_a_shell_that_has_lost_its_supervisor_is_over(calls: Session) -> None:
    handle = await calls.start("trap '' TERM; sleep 61 & sleep 61; sleep 61")
    with find(calls.folder, handle) as shell:
        os.kill(shell.record().pid, signal.SIGKILL)
    result = await calls.kill(handle)
    assert result.success
    assert result.metadata["status"] == "lost"
    assert not processes_of({handle})


async def test_one_that_does_not_end_in_time_is_a_failure_that_says_what_to_do(
    calls: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shells, "PATIENCE_SECONDS", 0.1)
    handle = await calls.start("sleep 61")
    orders = calls.folder / handle / "orders"
    orders.rename(calls.folder / "its-orders")
    os.mkfifo(orders)
    heard = os.open(orders, os.O_RDONLY | os.O_NONBLOCK)  # by nobody who would obey
    result = await calls.kill(handle, grace_ms=0)
    assert os.read(heard, 100) == b"TERM 0.0\n"
    os.close(heard)
    (calls.folder / "its-orders").rename(orders)
    assert (result.error_code, result.metadata["status"]) == ("TIMEOUT", "running")
    assert result.error.endswith("Call KillShell again to see whether it has")
    assert (await calls.kill(handle)).metadata["status"] == "killed"


async def test_a_strangers_shell_is_not_found_and_lives_on(calls: Session) -> None:
    handle = await calls.start("sleep 61")
    for session_id in ("s2", None):
        result = await calls.other(session_id=session_id).kill(handle)
        assert result.error == f"No shell {handle} in this session. None is running"
    assert (await calls.output(handle)).metadata["status"] == "running"


async def test_a_shell_of_another_host_is_refused_unless_it_is_over(calls: Session, book: Book) -> None:
    elsewhere = ShellRecord(
        id="sh_h2_000000000000", hostname="h2", command="npm start", cwd=".", status=ShellStatus.RUNNING, kernel="k", pid=1,
        start_ticks=1, started_at=datetime.now(UTC), session_id="s1",
    )  # fmt: skip
    await book.record(elsewhere)
    await book.record(replace(elsewhere, id="sh_h2_111111111111", status=ShellStatus.EXITED))
    await book.record(replace(elsewhere, id="sh_h2_222222222222", status=ShellStatus.LOST))
    running, exited, lost = [await calls.kill(f"sh_h2_{str(n) * 12}") for n in range(3)]
    assert running.error_code == "SHELL_HOST_UNAVAILABLE"
    assert "is on host h2; this call reached h1" in running.error
    assert exited.metadata["already_exited"]
    assert "lost: its supervisor disappeared" in lost.output


async def test_dry_run_says_what_would_end_and_ends_nothing(calls: Session) -> None:
    handle = await calls.start("sleep 61 & wait", description="a sleeper")
    wait_until(lambda: len(processes_of({handle})) == 2)
    dry = calls.other(dry_run=True)
    result = await dry.kill(handle, grace_ms=500)
    said = f"[Dry Run] Would send SIGTERM to {handle} (a sleeper): 2 processes, and kill what is left after 0.5s"
    assert result.output == said
    assert (await dry.kill(handle, signal="KILL")).output == f"[Dry Run] Would kill {handle} (a sleeper): 2 processes"
    assert (await calls.output(handle)).metadata["status"] == "running"
    assert (await dry.kill("sh_h1_000000000000")).error_code == "SHELL_NOT_FOUND"
    await calls.kill(handle)
    assert (await dry.kill(handle)).metadata["already_exited"]
