"""SQL is told what becomes of a host's shells, by one of its workers, and only when there is something to tell."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model.places import ShellRecord, ShellStatus
from forge_tools.sandbox.processes.trees import start_ticks
from tests.unit.workers.watched_host import Counted, Host, shell
from tests.waiting import reached
from workers.services import shells as module
from workers.services.service import Leadership, keep
from workers.services.shells import CHECK_SECONDS, LOCK, SIZE_SECONDS


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


async def test_a_worker_without_shells_asks_once_and_never_again(host: Host) -> None:
    watch = host.watch()

    for _ in range(50):
        host.now += CHECK_SECONDS
        await watch.check()

    assert host.statements == ["running_of"]


async def test_where_there_is_no_folder_none_is_made(host: Host) -> None:
    host.settings.shells_folder.rmdir()
    await host.store.shells.record(shell())
    watch = host.watch()

    for _ in range(3):
        await watch.check()

    assert await host.statuses() == {shell().id: "lost"}
    assert host.statements == ["running_of", "mark_lost"]
    assert not host.settings.shells_folder.exists()


async def test_only_what_changes_is_told(host: Host) -> None:
    watch = host.watch()
    host.shells = [shell(1), shell(2)]
    for size in range(5):
        host.shells[0] = shell(1, size=size)
        await watch.check()
    host.shells[1] = shell(2, status=ShellStatus.EXITED, exit_code=0)
    await watch.check()

    assert host.statements == ["running_of", "record", "record"]
    assert await host.statuses() == {shell(1).id: "running", shell(2).id: "exited"}


async def test_shells_that_ended_are_looked_after_without_a_question(host: Host) -> None:
    watch = host.watch()
    host.shells = [shell(1, status=ShellStatus.EXITED, exit_code=0), shell(2, status=ShellStatus.LOST)]

    for _ in range(20):
        host.now += CHECK_SECONDS
        await watch.check()

    assert host.statements == ["running_of", "record"]
    assert len(host.forgotten) == 20


async def test_what_a_host_started_under_another_name_stays_lost(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Else it would be lost to the eldest worker and run for this one by turns: calls go to the old name."""
    await host.store.shells.record(shell(hostname="before", status=ShellStatus.LOST))
    host.shells, watch = [shell(hostname="before")], host.watch()

    for _ in range(3):
        await watch.check()
        host.now += CHECK_SECONDS

    assert await host.statuses() == {shell().id: "lost"}
    [said] = [record.__dict__["error"] for record in caplog.records]
    assert "1 shells of host before are in" in said
    assert "FORGE_HOSTNAME" in said


async def test_that_a_shell_writes_is_told_now_and_then(host: Host) -> None:
    watch = host.watch()
    host.shells = [shell()]
    await watch.check()
    host.shells = [shell(size=70)]
    await watch.check()
    host.now += SIZE_SECONDS

    await watch.check()

    found = await host.store.shells.find(shell().id)
    assert found is not None
    assert (found.size, host.statements.count("record")) == (70, 2)


async def test_a_new_worker_adopts_the_shells_of_one_that_died(host: Host) -> None:
    first, second = host.watch(), host.watch()
    host.shells = [shell()]
    await first.step()
    await second.step()  # the lock is taken
    assert host.statements == ["running_of", "record"]

    first.close()  # as the kernel does
    host.shells = [shell(size=9)]
    await second.step()

    found = await host.store.shells.find(shell().id)
    assert found == shell(size=9)


async def test_the_lock_ends_with_its_process_and_no_child_keeps_it(host: Host) -> None:
    folder = host.settings.shells_folder
    hold = f"import fcntl,os;f=os.open({str(folder / LOCK)!r},os.O_RDWR|os.O_CREAT);fcntl.flock(f,fcntl.LOCK_EX)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{hold};print(1,flush=True);input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    watch, host.shells = host.watch(), [shell()]
    await watch.check()
    assert host.statements == []

    process.kill()
    process.communicate()
    await watch.check()

    assert "record" in host.statements
    assert [os.get_inheritable(lock) for lock in locks(host)] == [False]


def locks(host: Host) -> list[int]:
    """The descriptors by which this process has the lock of the folder, or has had it."""
    links = {int(link.name): link.resolve() for link in Path("/proc/self/fd").iterdir()}
    return [number for number, file in links.items() if file == host.settings.shells_folder / LOCK]


async def test_what_was_said_to_run_and_is_not_there_is_lost(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    await host.store.shells.record_many([shell(1), shell(2), shell(3, hostname="there")])
    host.shells = [shell(2)]

    await host.watch().step()

    assert await host.statuses() == {shell(1).id: "lost", shell(2).id: "running", shell(3).id: "running"}
    assert "how they ended is unknown" in caplog.text


async def test_what_vanishes_under_a_watch_is_lost_too(host: Host) -> None:
    watch = host.watch()
    host.shells = [shell(1), shell(2, status=ShellStatus.EXITED, exit_code=0)]
    await watch.check()
    host.shells = []

    await watch.check()
    await watch.check()

    assert await host.statuses() == {shell(1).id: "lost", shell(2).id: "exited"}


@pytest.mark.parametrize("change", [{"kernel": "another"}, {"start_ticks": 1}])
async def test_another_process_with_the_number_of_a_supervisor_is_not_taken_for_it(
    host: Host, sleeper: int, change: dict[str, Any]
) -> None:
    told = shell(pid=sleeper, start_ticks=start_ticks(sleeper))
    await host.store.shells.record(replace(told, **change))

    await host.watch().step()

    assert await host.statuses() == {told.id: "lost"}


async def test_a_shell_that_lives_in_another_folder_is_left_alone_and_said_so(
    host: Host, sleeper: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = shell(pid=sleeper, start_ticks=start_ticks(sleeper))
    await host.store.shells.record(told)
    host.shells = [shell(2)]
    watch = host.watch()

    for _ in range(3):
        await watch.check()
        host.now += CHECK_SECONDS

    assert await host.statuses() == {told.id: "running", shell(2).id: "running"}
    assert [record.error for record in caplog.records] == [
        f"1 shells of host here run, but are not in {host.settings.shells_folder}. "
        "Give all workers of a host the same FORGE_SHELLS, and each host its own FORGE_HOSTNAME."
    ]


async def test_a_shell_that_starts_while_rows_are_read_is_not_lost(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = host.watch()
    host.shells = [shell(1)]
    await watch.check()
    host.now += CHECK_SECONDS
    running_of = Counted.running_of

    async def and_one_starts(self: Counted, hostname: str) -> list[ShellRecord]:
        host.shells.append(shell(2))
        await host.store.shells.record(shell(2))
        return await running_of(self, hostname)

    monkeypatch.setattr(Counted, "running_of", and_one_starts)
    await watch.check()

    assert await host.statuses() == {shell(1).id: "running", shell(2).id: "running"}


async def test_a_host_that_was_given_up_takes_its_shells_back(host: Host) -> None:
    watch = host.watch()
    host.shells = [shell(1)]
    await watch.check()
    await host.store.shells.mark_lost([shell(1).id])
    host.now += CHECK_SECONDS

    await watch.check()

    assert await host.statuses() == {shell(1).id: "running"}


async def test_leases_are_renewed_and_old_shells_forgotten_after_they_were_told_of(host: Host) -> None:
    watch = host.watch()
    host.shells = [shell(1, status=ShellStatus.KILLED, signal=9)]

    await watch.check()
    await watch.check()
    host.now += CHECK_SECONDS
    await watch.check()

    assert (host.renewed, host.forgotten) == (2, [86_400.0, 86_400.0])
    assert await host.statuses() == {shell(1).id: "killed"}


async def test_after_an_outage_rows_are_compared_at_once_and_it_is_said_once(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host.settings = host.settings.model_copy(update={"shell_interval": 0.01})
    watch = host.watch()
    host.shells = [shell(1)]
    await watch.check()
    await host.store.shells.mark_lost([shell(1).id])
    outage = [DatabaseUnavailableError("The database is away")] * 3

    async def away(*_: object) -> None:
        raise outage.pop()

    with monkeypatch.context() as patch:
        patch.setattr(host.store.shells.__class__, "running_of", away)
        host.now += CHECK_SECONDS
        keeping = asyncio.create_task(keep(watch, Leadership("any")))
        await reached(lambda: not outage)
        patch.undo()
        await reached(host.statuses, 30, when=lambda statuses: statuses == {shell(1).id: "running"})
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)

    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert host.renewed >= 3, "an outage, however long, ends no shell"
    assert [record.error for record in said] == ["The database is away"]
    assert locks(host) == []


async def test_a_shell_that_cannot_be_stored_keeps_no_other_from_being_told_of(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.shells = [shell(1), shell(2, pid=2**80), shell(3)]
    watch = host.watch()

    await watch.check()
    await watch.check()

    assert await host.statuses() == {shell(1).id: "running", shell(3).id: "running"}
    assert [shell(2).id in record.error for record in caplog.records] == [True]


async def test_a_folder_with_nonsense_in_it_ends_no_worker(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.settings = host.settings.model_copy(update={"shell_interval": 0.01})
    watch = host.watch()
    looks: list[Path] = []

    def nonsense(folder: Path) -> list[ShellRecord]:
        looks.append(folder)
        raise RecursionError("brackets without end")

    with monkeypatch.context() as patch:
        patch.setattr(module, "survey", nonsense)
        keeping = asyncio.create_task(keep(watch, Leadership("any")))
        await reached(lambda: len(looks) >= 3, 30)
    host.shells = [shell(1)]
    await reached(host.statuses, 30)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
