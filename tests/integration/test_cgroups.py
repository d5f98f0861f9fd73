"""Workers with a group of the kernel of their own: each child and command is in one, is bounded by it and ends with it."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext
from forge_tools.sandbox.walls.namespaces import limits_processes
from forge_tools.sandbox.walls.probe import given
from tests.cgroups import cgroup, members, offers
from tests.fleet import Fleet, WorkerProcess
from tests.rogue_tools import noted
from tests.waiting import is_alive, wait_until

LIMIT = 360_000_000
EAT = "python3 -c 'held = b\"x\" * 500_000_000'"
ORPHAN = "setsid env -i sh -c 'echo $$ >> {notes}; exec sleep 61' & wait"


@pytest.fixture
def base() -> Iterator[Path | None]:
    with cgroup() as made:
        yield made


@pytest.fixture
def fleet(tmp_path: Path, valkey: Any, base: Path | None) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, valkey.url, f"sqlite:///{tmp_path / 'forge.db'}", kill_grace=1.0)
    yield fleet
    fleet.stop()


def start(fleet: Fleet, base: Path | None, lane: str, tier: str = "plain") -> WorkerProcess:
    settings = {"tool_memory": str(LIMIT), "tool_processes": "400", "walls_of": json.dumps({"Bash": tier})}
    return fleet.start(lane, **settings, **({} if base is None else {"cgroup": str(base)}))


@pytest.mark.parametrize("how", ["die", "block"])
async def test_a_daemon_that_cleared_its_environment_and_lost_its_parents_ends_with_its_call(
    fleet: Fleet, base: Path | None, how: str
) -> None:
    start(fleet, base, "process")
    notes = fleet.folder / "notes"
    context = ExecutionContext(working_dir=str(fleet.folder), timeout=30 if how == "die" else 3)
    async with ExecutorClient(fleet.settings) as client:
        await client.execute("Rogue", context, how=how, notes=str(notes), shapes=["clean daemon"])
    child, daemon = noted(notes)
    try:
        assert (is_alive(child), is_alive(daemon)) == (False, base is None and how == "die")
    finally:
        if is_alive(daemon):
            os.kill(daemon, signal.SIGKILL)


async def test_children_that_hold_too_much_together_end_and_the_result_names_the_limit(
    fleet: Fleet, base: Path | None
) -> None:
    start(fleet, base, "process")
    context = ExecutionContext(working_dir=str(fleet.folder))
    async with ExecutorClient(fleet.settings) as client:
        result = await client.execute("Rogue", context, how="eat in children", notes=str(fleet.folder / "notes"))
        assert (result.error_code, "more than 343 MiB" in str(result.error)) == (ErrorCode.OUT_OF_MEMORY, True)
        assert (await client.execute("EchoInProcess", context, message="still here")).success


@pytest.mark.parametrize("tier", ["plain", "landlock", "namespace"])
async def test_a_command_is_bounded_as_far_as_the_kernel_offers(fleet: Fleet, base: Path | None, tier: str) -> None:
    start(fleet, base, "async", given().of_commands(tier))
    context = ExecutionContext(working_dir=str(fleet.folder), timeout=60)
    async with ExecutorClient(fleet.settings) as client:
        hungry = await client.execute("Bash", context, command=f"sleep 61 & {EAT}; echo ate")
        code = ErrorCode.OUT_OF_MEMORY if offers(base, "memory") else None
        assert hungry.error_code == code, hungry
        assert ("The command needed more than 343 MiB" in str(hungry.error)) == (code is not None)
        forks = "for i in $(seq 450); do sleep 61 & done 2>&1; echo $(jobs -r | wc -l)"
        bomb = await client.execute("Bash", context, command=forks)
        is_bounded = offers(base, "pids") or (given().of_commands(tier) == "namespace" and limits_processes())
        assert (
            int(str(bomb.output).splitlines()[0]) < 450 if not is_bounded else "fork" in str(bomb.output)
        ) == is_bounded
        assert (await client.execute("Bash", context, command="echo still here")).output == "still here\n"
        escape = f"echo 0 > {base}/forge-rest/cgroup.procs && echo out"
        escaped = (await client.execute("Bash", context, command=escape)).metadata["exit_code"] == 0
        assert escaped == (base is not None and given().of_commands(tier) == "plain")
        if base is not None:  # only what is kept ready for the next command has one
            [worker] = base.glob("forge-worker-*")
            await asyncio.to_thread(wait_until, lambda: len(list(worker.glob("*-*"))) == 1, 20, "groups are left")


async def test_a_shell_outlives_its_worker_in_a_group_that_ends_with_it(fleet: Fleet, base: Path | None) -> None:
    worker = start(fleet, base, "async")
    notes, context = fleet.folder / "notes", ExecutionContext(working_dir=str(fleet.folder))
    async with ExecutorClient(fleet.settings) as client:
        command = f"{ORPHAN.format(notes=notes)}"
        shell = await client.execute("Bash", context, command=command, run_in_background=True)
        await asyncio.to_thread(wait_until, lambda: len(noted(notes)) == 1)
        worker.kill()
        start(fleet, base, "async")
        assert all(map(is_alive, noted(notes)))
        assert base is None or len(list(base.glob("forge-shell-*"))) == 1
        assert base is None or len(list(base.glob("forge-worker-*"))) == 1
        await client.execute("KillShell", context, shell_id=shell.metadata["bash_id"])
        assert not any(map(is_alive, noted(notes)))
        if base is not None:
            await asyncio.to_thread(wait_until, lambda: not list(base.glob("forge-shell-*")), 20)


async def test_what_a_killed_worker_left_in_groups_ends_when_the_next_one_starts(
    fleet: Fleet, base: Path | None
) -> None:
    worker = start(fleet, base, "process")
    notes, context = fleet.folder / "notes", ExecutionContext(working_dir=str(fleet.folder))
    async with ExecutorClient(fleet.settings) as client:
        asked = {"how": "ok", "notes": str(notes), "shapes": ["clean daemon"]}
        assert (await client.execute("Rogue", context, **asked)).success
        worker.kill()
        child, daemon = noted(notes)
        await asyncio.to_thread(wait_until, lambda: not is_alive(child), 20)
        assert is_alive(daemon)
        start(fleet, base, "process")
        assert is_alive(daemon) == (base is None)
    if base is None:
        os.kill(daemon, signal.SIGKILL)
    else:
        assert {int(pid) for pid in members(base)} >= {fleet.workers[-1].pid}


def test_a_group_that_cannot_be_divided_is_named_and_stops_the_worker(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=f"FORGE_CGROUP={tmp_path} cannot be divided.*Name a group of cgroup v2.*, or unset it"
    ):
        start(fleet, tmp_path, "process")
