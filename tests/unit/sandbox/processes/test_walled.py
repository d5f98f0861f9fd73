"""Commands behind walls: what each sees, and that all of it ends at once with the first process of its namespaces."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.processes.commands import Completed, run
from forge_tools.sandbox.processes.environment import child_environment
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.processes.trees import child_pids, families
from forge_tools.sandbox.walls import seccomp
from forge_tools.sandbox.walls.namespaces import NONE
from forge_tools.sandbox.walls.privileges import gain_nothing
from forge_tools.sandbox.walls.probe import given
from tests.waiting import reached
from tests.walled import in_child

Sleepers = Callable[[], list[int]]
DAEMONS = "for i in $(seq {0}); do (env -i setsid sleep {1} >/dev/null 2>&1 &) ; done"


class Walled:
    """A workspace with a key in it, beside another one."""

    walls: CommandWalls

    def __init__(self, base: Path) -> None:
        self.ws = base / "ws"
        for path in (self.ws / "state/keys", base / "other"):
            path.mkdir(parents=True)
            (path / "file").write_text("secret")
        hidden = [str(self.ws / "state/keys")]
        self.walls = CommandWalls("namespace", NONE, closed=hidden, hidden=hidden, opened=(), cache=base / "cache")

    async def run(self, script: str, *, is_read_only: bool = False, **variables: str) -> tuple[Completed, str]:
        written = bytearray()
        around = self.walls.around([Root(self.ws, is_read_only=is_read_only)])
        folder = os.open(self.ws, os.O_RDONLY)
        try:
            completed = await run(
                ["bash", "--norc", "-c", script],
                folder=folder,
                environment={**child_environment(), **around.variables, **variables},
                timeout=30,
                grace=0.3,
                stdout=written.extend,
                start=around.start,
            )
        finally:
            os.close(folder)
        return completed, written.decode()


@pytest.fixture
def walled(tmp_path: Path) -> Iterator[Walled]:
    walled = Walled(tmp_path)
    yield walled
    walled.walls.spawner.close()


async def said(walled: Walled, script: str, **options: str | bool) -> str:
    """What it writes; where the machine has no namespaces, nothing is started."""
    if not given().no_namespaces:
        return (await walled.run(script, **options))[1]
    with pytest.raises(SandboxError, match="could not be started"):
        await walled.run(script)
    return ""


async def test_a_command_sees_its_workspace_but_neither_keys_in_it_nor_others(walled: Walled, tmp_path: Path) -> None:
    script = f"echo new > new; pwd; ls state/keys {tmp_path}; mv state moved 2>/dev/null || echo stays; ls /tmp"

    if text := await said(walled, script):
        assert text.replace("\n", " ").startswith(f"{walled.ws} {tmp_path}: cache ws  state/keys: stays")
        assert (walled.ws / "new").read_text() == "new\n"
        assert (walled.ws / "state/keys/file").read_text() == "secret"


async def test_a_workspace_that_is_read_only_stays_as_it_is(walled: Walled) -> None:
    assert "Read-only file system" in (
        await said(walled, "touch new 2>&1", is_read_only=True) or "Read-only file system"
    )
    assert not (walled.ws / "new").exists()


async def test_its_home_is_new_each_time_and_its_cache_is_kept(walled: Walled) -> None:
    first = await said(walled, "touch ~/mine $XDG_CACHE_HOME/mine; echo $TMPDIR")
    again = await said(walled, "ls ~ $XDG_CACHE_HOME | grep -c mine")

    assert (first, again) in (("/tmp\n", "1\n"), ("", ""))


async def test_a_folder_that_was_replaced_meanwhile_is_not_entered(walled: Walled) -> None:
    start = walled.walls.around([Root(walled.ws)]).start
    folder = os.open(walled.ws, os.O_RDONLY)
    walled.ws.rename(walled.ws.with_name("old"))

    def late(*arguments: object, **options: object) -> object:
        return start(*arguments, **{**options, "folder": folder})

    with pytest.raises(SandboxError, match=r"could not be started: (No such file|Operation not permitted)"):
        await run(["true"], folder=folder, environment={}, timeout=9, stdout=lambda _: None, start=late)
    os.close(folder)


async def test_daemons_with_an_empty_environment_are_counted_and_end_with_the_command(
    walled: Walled, marker: str, sleepers: Sleepers
) -> None:
    if given().no_namespaces:
        return
    completed, _ = await walled.run(DAEMONS.format(30, marker))

    assert completed == Completed(exit_code=0, leftovers=30)
    assert not sleepers()


async def test_300_daemons_are_gone_within_a_second_of_the_first_process(
    walled: Walled, marker: str, sleepers: Sleepers
) -> None:
    if given().no_namespaces:
        return
    start = walled.walls.around([Root(walled.ws)]).start
    folder, null = os.open(walled.ws, os.O_RDONLY), os.open(os.devnull, os.O_RDWR)
    command = ["bash", "-c", f"{DAEMONS.format(300, marker)}; sleep {marker}"]
    with start(command, child_environment(), folder=folder, streams=(null, null, null), grace=9):
        await reached(sleepers, when=lambda found: len(found) == 301)
        above = families()
        [first] = [pid for pid in child_pids(walled.walls.spawner.pid) if len(above.get(pid, ())) > 300]
        handle, began = os.pidfd_open(first), time.monotonic()
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], 20)[0]
        assert time.monotonic() - began < 1
        assert not sleepers()
    for one in (folder, null, handle):
        os.close(one)


async def test_where_walls_cannot_be_had_nothing_is_started(tmp_path: Path) -> None:
    def restricted() -> str:
        import asyncio

        gain_nothing()
        seccomp.refuse(["mount"])
        walled = Walled(tmp_path)
        try:
            asyncio.run(walled.run("touch new"))
        except SandboxError as error:
            return f"{error.message} {(walled.ws / 'new').exists()}"
        return "started"

    assert in_child(restricted) == "bash could not be started: Operation not permitted False"
