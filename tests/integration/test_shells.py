"""Shells outlive calls and workers, can be reached from every host, and are recorded in SQL whatever happens to them."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forge_tools.client import ExecutorClient
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.model.places import ShellRecord, ShellStatus, host_of
from forge_tools.sandbox.processes.endings import end
from forge_tools.storage import Store, open_store
from tests.fleet import Fleet, WorkerProcess
from tests.waiting import is_alive, reached, wait_until

DATABASES = ("postgres",)

COUNT = "i=0; while sleep 0.05; do i=$((i+1)); echo line $i; done"


@pytest.fixture
def hosts(fresh_fleet: Fleet) -> Iterator[Fleet]:
    """Workers that tests start as those of different hosts; no shell survives the test."""
    yield fresh_fleet
    for folder in fresh_fleet.settings.home.glob("shells-*/sh_*"):
        end(f"FORGE_SHELL={folder.name}".encode())


@pytest.fixture
async def client(hosts: Fleet) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(hosts.settings) as client:
        yield client


@pytest.fixture
async def store(hosts: Fleet) -> AsyncIterator[Store]:
    async with await open_store(hosts.settings.database) as store:
        yield store


@pytest.fixture
def context(hosts: Fleet) -> ExecutionContext:
    return ExecutionContext(working_dir=str(hosts.folder), session_id="session-1", agent_id="agent-1")


async def host(hosts: Fleet, name: str, lane: str = "async", **settings: str) -> WorkerProcess:
    settings = {"shell_interval": "0.2", **settings}
    return await asyncio.to_thread(hosts.start, lane, hostname=name, **settings)


async def shell_on(client: ExecutorClient, name: str, context: ExecutionContext, command: str = COUNT) -> str:
    """Start a shell in the background on that host; return its id."""
    arguments = {"command": command, "run_in_background": True}
    result = await client.call("Bash", arguments, context, queue=f"host.{name}")
    assert result.success, result.error
    id_ = str(result.metadata["bash_id"])
    assert host_of(id_) == name
    return id_


async def became(store: Store, id_: str, status: ShellStatus, seconds: float = 60) -> ShellRecord:
    """Wait until SQL says so of the shell."""
    deadline = time.monotonic() + seconds
    while (found := await store.shells.find(id_)) is None or found.status != status:
        assert time.monotonic() < deadline, f"not {status}: {found}"
        await asyncio.sleep(0.05)
    return found


async def host_that_ran(client: ExecutorClient, result: ToolResult) -> str | None:
    return (await client.history.get(result.metadata["execution_id"])).hostname


async def lines_of(client: ExecutorClient, context: ExecutionContext, id_: str) -> list[str]:
    result = await client.execute("BashOutput", context, bash_id=id_, since=0)
    assert result.success, result.error
    assert await host_that_ran(client, result) == host_of(id_)
    return [line for line in str(result.output).splitlines() if line.startswith("line ")]


async def test_a_shell_outlives_its_worker_and_is_reached_from_everywhere(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    doomed = await host(hosts, "a")
    await host(hosts, "b")
    on_a, on_b = await shell_on(client, "a", context), await shell_on(client, "b", context)
    before = await became(store, on_a, ShellStatus.RUNNING)

    doomed.kill()
    await host(hosts, "a")
    first = await lines_of(client, context, on_a)
    then = await reached(lambda: lines_of(client, context, on_a), when=lambda lines: len(lines) != len(first))

    assert first[:3] == ["line 1", "line 2", "line 3"]
    assert then[: len(first)] == first
    after = await became(store, on_a, ShellStatus.RUNNING)
    assert (after.pid, after.session_id, after.agent_id) == (before.pid, "session-1", "agent-1")

    for name in ("a", "b"):
        listed = await client.call("ListShells", {}, context, queue=f"host.{name}")
        assert on_a in str(listed.output)
        assert on_b in str(listed.output)
    stranger = context.model_copy(update={"session_id": "session-2"})
    hidden = await client.execute("ListShells", stranger)
    assert on_a not in str(hidden.output)

    for id_ in (on_a, on_b):
        result = await client.execute("KillShell", context, shell_id=id_)
        assert result.success, result.error
        assert await host_that_ran(client, result) == host_of(id_)
        over = await became(store, id_, ShellStatus.KILLED)
        assert over.ended_at is not None
        assert not is_alive(over.pid)


async def test_a_shell_survives_a_worker_that_is_told_to_stop(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    worker = await host(hosts, "a")
    id_ = await shell_on(client, "a", context)

    assert await asyncio.to_thread(worker.stop) == 0
    assert is_alive((await became(store, id_, ShellStatus.RUNNING)).pid)
    await host(hosts, "a")

    assert (await lines_of(client, context, id_))[:1] == ["line 1"]


async def test_how_a_shell_ends_is_known_in_sql_without_anybody_asking_for_it(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    await host(hosts, "a")

    id_ = await shell_on(client, "a", context, "echo bye; exit 3")

    over = await became(store, id_, ShellStatus.EXITED)
    assert (over.exit_code, over.size, over.command) == (3, 4, "echo bye; exit 3")


async def test_a_shell_that_ends_while_no_worker_lives_is_known_when_one_comes(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    doomed = await host(hosts, "a")
    go = hosts.folder / "go"
    id_ = await shell_on(client, "a", context, f"until [ -e {go} ]; do sleep 0.05; done; exit 4")
    pid = (await became(store, id_, ShellStatus.RUNNING)).pid

    doomed.kill()
    go.touch()
    await asyncio.to_thread(wait_until, lambda: not is_alive(pid), 60, "the shell goes on")
    await host(hosts, "a")

    assert (await became(store, id_, ShellStatus.EXITED)).exit_code == 4


async def test_a_shell_whose_supervisor_is_killed_is_lost_and_nothing_of_it_goes_on(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    await host(hosts, "a")
    command = ["sleep", f"300.{os.getpid()}"]
    id_ = await shell_on(client, "a", context, f"setsid {' '.join(command)} & wait")
    supervisor = (await became(store, id_, ShellStatus.RUNNING)).pid
    await asyncio.to_thread(wait_until, lambda: is_running(command), 60, "it did not start")

    os.kill(supervisor, signal.SIGKILL)

    await became(store, id_, ShellStatus.LOST)
    await asyncio.to_thread(wait_until, lambda: not is_running(command), 60, "what it ran goes on")


def is_running(command: list[str]) -> bool:
    return any(process.info["cmdline"] == command for process in psutil.process_iter(["cmdline"]))


async def test_the_shells_of_a_dead_host_are_lost_until_it_comes_back(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    await host(hosts, "a", shell_lost_after="15")
    doomed = await host(hosts, "b", shell_lost_after="15")
    id_ = await shell_on(client, "b", context)

    doomed.kill()
    await became(store, id_, ShellStatus.LOST)
    began = time.monotonic()
    refused = await client.execute("BashOutput", context, bash_id=id_)
    assert refused.error_code == ErrorCode.SHELL_HOST_UNAVAILABLE
    assert "Host 'b' cannot be reached" in str(refused.error)
    assert f"{id_} ({COUNT}) is lost" in str(refused.error)
    assert time.monotonic() - began < 20
    listed = await client.execute("ListShells", context)
    assert id_ in str(listed.output)

    await host(hosts, "b")
    await became(store, id_, ShellStatus.RUNNING)
    assert (await lines_of(client, context, id_))[:1] == ["line 1"]


async def test_of_several_workers_of_a_host_one_watches_and_another_takes_over(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    first, second = await host(hosts, "a"), await host(hosts, "a")
    go = hosts.folder / "go"
    id_ = await shell_on(client, "a", context, f"until [ -e {go} ]; do sleep 0.05; done; exit 5")
    await became(store, id_, ShellStatus.RUNNING)
    lock = hosts.settings.home / "shells-a" / "watch.lock"
    await asyncio.to_thread(wait_until, lambda: holders(lock, first, second), 60, "nobody watches")
    [watcher] = holders(lock, first, second)

    watcher.kill()
    go.touch()

    assert (await became(store, id_, ShellStatus.EXITED)).exit_code == 5


async def test_a_worker_of_the_process_lane_watches_too_and_its_children_keep_no_lock(
    hosts: Fleet, client: ExecutorClient, store: Store, context: ExecutionContext
) -> None:
    starter = await host(hosts, "a")
    go = [hosts.folder / name for name in ("go-1", "go-2")]
    ids = [await shell_on(client, "a", context, f"until [ -e {path} ]; do sleep 0.05; done; exit 6") for path in go]
    starter.kill()
    watcher = await host(hosts, "a", "process")
    assert (await client.execute("EchoInProcess", context, message="a child is there")).success

    go[0].touch()
    assert (await became(store, ids[0], ShellStatus.EXITED)).exit_code == 6
    watcher.kill()
    await host(hosts, "a")
    go[1].touch()

    assert (await became(store, ids[1], ShellStatus.EXITED)).exit_code == 6


def holders(lock: Path, *workers: WorkerProcess) -> list[Any]:
    """Those that hold the lock, as the kernel lists them."""
    if not lock.exists():
        return []
    inode = f":{lock.stat().st_ino}"
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
    pids = {int(fields[4]) for fields in locks if fields[5].endswith(inode)}
    return [worker for worker in workers if worker.pid in pids]
