"""Commands behind Landlock: what each reaches, what goes with it, and that its supervisor stays outside and ends all of it."""

import errno
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.processes.commands import Completed
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.processes.trees import child_pids
from forge_tools.sandbox.spools import SCRATCH, remove_leftovers
from forge_tools.sandbox.walls import landlock, seccomp
from forge_tools.sandbox.walls.namespaces import HOST, NONE
from forge_tools.sandbox.walls.privileges import gain_nothing
from forge_tools.sandbox.walls.probe import given
from tests.unit.sandbox.processes.test_walled import DAEMONS, Walled
from tests.waiting import wait_until
from tests.walled import in_child

Sleepers = Callable[[], list[int]]
CONNECT = f"{sys.executable} -c 'import socket, sys; socket.create_connection((\"127.0.0.1\", {{}}))' 2>&1 | tail -1"


class Landlocked(Walled):
    """The same workspace, with a home that has a configuration and a toolchain, and folders of temporary files of its own."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch, network: str = HOST) -> None:
        super().__init__(base)
        self.walls.spawner.close()
        self.home, self.temporary = base / "home", base / "tmp"
        for folder in (self.home / ".local/bin", self.home / "mail", self.temporary):
            folder.mkdir(parents=True)
        (self.home / ".gitconfig").write_text("[user]\n\tname = Somebody\n")
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setattr(tempfile, "tempdir", str(self.temporary))
        closed = [str(base / "other"), str(self.temporary)]
        opened = [f"{self.home}/mail:rw"]
        self.walls = CommandWalls("landlock", network, closed=closed, opened=opened, cache=base / "cache")

    def left(self) -> list[Path]:
        return list(self.temporary.iterdir())


@pytest.fixture
def walled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Landlocked]:
    walled = Landlocked(tmp_path, monkeypatch, getattr(request, "param", HOST))
    yield walled
    walled.walls.spawner.close()


async def said(walled: Landlocked, script: str, **options: str | bool) -> str:
    """What it writes; where the machine has no Landlock, nothing is started."""
    if given().tier == "landlock":
        return (await walled.run(script, **options))[1]
    with pytest.raises(SandboxError, match="could not be started"):
        await walled.run(script)
    pytest.xfail(str(given()))


async def test_a_command_reaches_its_workspace_and_the_system_but_no_other(walled: Landlocked, tmp_path: Path) -> None:
    script = (
        f"echo new > new; pwd; cat new; cat {tmp_path}/other/file; touch {tmp_path}/other/new; ls {tmp_path}; exit 0"
    )

    text = await said(walled, f"({script}) 2>&1")

    assert text.split("\n")[:2] == [str(walled.ws), "new"]
    assert text.count("Permission denied") == 3
    assert (walled.ws / "new").read_text() == "new\n"
    assert not (tmp_path / "other/new").exists()


async def test_a_workspace_that_is_read_only_stays_as_it_is(walled: Landlocked) -> None:
    assert "Permission denied" in await said(walled, "cat state/keys/file; touch new 2>&1", is_read_only=True)
    assert not (walled.ws / "new").exists()


async def test_its_home_goes_with_it_and_its_cache_is_kept(walled: Landlocked) -> None:
    first = await said(walled, "touch ~/mine $TMPDIR/too $XDG_CACHE_HOME/mine; mkdir ~/.local/share; ls ~ | wc -l")
    again = await said(walled, "ls ~ $XDG_CACHE_HOME | grep -c mine")

    assert (first, again) == ("3\n", "1\n")
    wait_until(lambda: not walled.left())


async def test_toolchains_and_what_is_opened_of_the_home_are_found_in_that_of_the_command(walled: Landlocked) -> None:
    text = await said(
        walled, "git config user.name; ls -A ~ ~/.local; echo new > ~/mail/new; cp /dev/null ~/.gitconfig 2>&1 | wc -l"
    )

    assert text.split() == [
        "Somebody",
        f"{_home(text)}:",
        ".gitconfig",
        ".local",
        "mail",
        f"{_home(text)}/.local:",
        "bin",
        "1",
    ]
    assert (walled.home / "mail/new").read_text() == "new\n"
    assert (walled.home / ".gitconfig").read_text()


def _home(text: str) -> str:
    return next(line.removesuffix(":") for line in text.split("\n") if SCRATCH in line)


async def test_its_input_can_be_opened_by_name(walled: Landlocked) -> None:
    assert await said(walled, "cat /dev/stdin <<< said; cat <(echo more)") == "said\nmore\n"


@pytest.mark.parametrize(("walled", "answer"), [(HOST, ""), (NONE, "Permission denied")], indirect=["walled"])
async def test_it_has_the_network_or_not_a_single_socket(walled: Landlocked, answer: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = await said(walled, CONNECT.format(server.getsockname()[1]))

    assert answer in text
    assert bool(text) is bool(answer)


async def test_it_connects_to_no_unix_socket_even_in_its_workspace(walled: Landlocked) -> None:
    connect = f"{sys.executable} -c 'import socket; socket.socket(socket.AF_UNIX)' 2>&1 | tail -1"

    assert "Permission denied" in await said(walled, connect)


async def test_it_neither_looks_into_its_supervisor_nor_signals_it(walled: Landlocked) -> None:
    text = await said(walled, "cat /proc/$PPID/environ 2>&1; kill -0 $PPID 2>&1 || echo refused")

    assert "Permission denied" in text
    assert ("refused" in text) is (landlock.abi() >= 6)


async def test_it_gains_no_capability_and_no_program_brings_one(walled: Landlocked) -> None:
    text = await said(walled, "grep -E 'CapEff|NoNewPrivs' /proc/self/status")

    assert text.split() == ["CapEff:", "0" * 16, "NoNewPrivs:", "1"]


async def test_daemons_with_an_empty_environment_are_counted_and_end_with_the_command(
    walled: Landlocked, marker: str, sleepers: Sleepers
) -> None:
    await said(walled, "true")

    completed, _ = await walled.run(DAEMONS.format(30, marker))

    assert completed == Completed(exit_code=0, leftovers=30)
    assert not sleepers()


async def test_what_a_killed_supervisor_leaves_is_removed_by_the_next_worker(walled: Landlocked) -> None:
    await said(walled, "true")
    wait_until(lambda: not walled.left())
    walls = walled.walls
    around = walls.around([])
    folder, null = os.open(walled.ws, os.O_RDONLY), os.open(os.devnull, os.O_RDWR)
    with around.start(
        ["sleep", "50"], around.variables | {"PATH": "/usr/bin:/bin"}, folder=folder, streams=(null,) * 3, grace=1.0
    ):
        wait_until(lambda: any(map(child_pids, child_pids(walls.spawner.pid))))
        remove_leftovers(walled.temporary, SCRATCH)
        assert len(walled.left()) == 1, "its process lives"
        [supervisor] = [pid for pid in child_pids(walls.spawner.pid) if child_pids(pid)]
        os.kill(supervisor, 9)
        wait_until(lambda: supervisor not in child_pids(walls.spawner.pid))
    for one in (folder, null):
        os.close(one)
    assert len(walled.left()) == 1

    def is_removed() -> bool:
        remove_leftovers(walled.temporary, SCRATCH)
        return not walled.left()

    wait_until(is_removed)  # a command that was just starting may hold its lock for a moment longer


async def test_where_it_cannot_be_had_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def restricted() -> str:
        import asyncio

        gain_nothing()
        seccomp.refuse(["landlock_create_ruleset"], error=errno.ENOSYS)
        walled = Landlocked(tmp_path, monkeypatch)
        try:
            asyncio.run(walled.run("touch new"))
        except SandboxError as error:
            return f"{error.message} {(walled.ws / 'new').exists()}"
        return "started"

    assert in_child(restricted) == "bash could not be started: Function not implemented False"
