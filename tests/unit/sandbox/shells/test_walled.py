"""Shells behind walls: they outlive who started them as others do, and end with their supervisor whatever they did."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model.places import ShellStatus
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.processes.spawner import Around, CommandWalls
from forge_tools.sandbox.processes.trees import start_ticks
from forge_tools.sandbox.shells import host
from forge_tools.sandbox.shells.folder import ShellFolder
from forge_tools.sandbox.walls.namespaces import HOST
from forge_tools.sandbox.walls.probe import given
from tests.shell_hosts import has_ended, output_of, run_shell, shell_host
from tests.waiting import wait_until

ROOT = Path(__file__).parents[4]
STARTER = f"""
import sys
import tempfile
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.unit.sandbox.shells.test_walled import walls_of
from tests.shell_hosts import run_shell
base = Path(sys.argv[1])
print(run_shell(base / "shells", sys.argv[2], place=base / "ws", around=walls_of(base, sys.argv[3])).id, flush=True)
sys.stdin.read()
"""


def walls_of(base: Path, tier: str = "namespace") -> Around:
    """Those of commands whose workspace is `ws`, beside another."""
    if tier == "namespace":
        walls: CommandWalls = CommandWalls("namespace", HOST, closed=(), hidden=(), opened=(), cache=base / "cache")
    else:
        closed = [str(base / "other"), tempfile.gettempdir()]
        walls = CommandWalls("landlock", HOST, closed=closed, opened=(), cache=base / "cache")
    return walls.around([Root(base / "ws")])


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    for name in ("ws", "other"):
        (tmp_path / name).mkdir()
    with shell_host(tmp_path / "shells"):
        yield tmp_path


def started(base: Path, script: str, tier: str = "namespace") -> ShellFolder | None:
    """None where the machine does not have that tier: then nothing is started."""
    if given().of_commands(tier) == tier:
        return run_shell(base / "shells", script, place=base / "ws", around=walls_of(base, tier))
    with pytest.raises(SandboxError, match="could not be started"):
        run_shell(base / "shells", script, place=base / "ws", around=walls_of(base, tier))
    return None


def test_it_sees_its_workspace_and_is_known_by_its_number_outside(base: Path) -> None:
    script = f"pwd; ls {base}; ls -a /tmp | wc -l; until [ -e seen ]; do sleep 0.05; done"
    if (shell := started(base, script)) is not None:
        with shell:
            facts = shell.facts()
            assert start_ticks(facts["pid"]) == facts["start_ticks"]
            command = Path(f"/proc/{facts['child']}/cmdline")
            wait_until(lambda: command.read_bytes().startswith(b"/bin/bash"))  # empty while it becomes that
            (base / "ws" / "seen").touch()
            wait_until(lambda: has_ended(shell))
            assert output_of(shell).decode().split()[:3] == [f"{base}/ws", "cache", "ws"]
            assert shell.record().exit_code == 0


def test_it_ends_whole_with_its_supervisor(base: Path, marker: str, sleepers: Callable[[], list[int]]) -> None:
    script = f"for i in 1 2 3; do (env -i setsid sleep {marker} &); done; sleep {marker}"
    if (shell := started(base, script)) is not None:
        with shell:
            wait_until(lambda: len(sleepers()) == 4)
            os.kill(shell.facts()["pid"], signal.SIGKILL)
            wait_until(lambda: shell.record().status is ShellStatus.LOST)
            assert not sleepers()


def test_behind_landlock_it_reaches_its_workspace_alone_and_its_home_goes_with_it(base: Path) -> None:
    script = f"pwd; echo new > new; ls {base}/other; touch ~/mine; echo $HOME; sleep 0.2"
    if (shell := started(base, script, "landlock")) is not None:
        with shell:
            facts = shell.facts()
            assert start_ticks(facts["pid"]) == facts["start_ticks"]
            wait_until(lambda: has_ended(shell))
            where, *refusal, home = output_of(shell).decode().strip().split("\n")
        assert (where, (base / "ws/new").read_text()) == (f"{base}/ws", "new\n")
        assert ["Permission denied" in line for line in refusal] == [True]
        wait_until(lambda: not Path(home).exists())


@pytest.mark.parametrize("tier", ["landlock", "namespace"])
def test_it_outlives_who_started_it_and_ends_when_it_is_told(
    base: Path, marker: str, sleepers: Callable[[], list[int]], tier: str
) -> None:
    if given().of_commands(tier) != tier:
        assert started(base, "true", tier) is None
        return
    script = f"env -i setsid sleep {marker} & sleep {marker}"
    command = [sys.executable, "-c", STARTER, str(base), script, tier]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        handle = starter.stdout.readline().strip()
        wait_until(lambda: len(sleepers()) == 2)
        starter.kill()
    shell = host.find(base / "shells", handle)

    assert shell is not None
    with shell:
        assert shell.record().status is ShellStatus.RUNNING
        assert len(sleepers()) == 2
        assert shell.order("TERM", 0.3)
        wait_until(lambda: has_ended(shell))
        assert not sleepers()
