"""What befalls shells: full disks, supervisors that are stopped, keepers that are killed."""

import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model.places import ShellStatus
from forge_tools.sandbox.shells import host
from forge_tools.sandbox.shells.host import KEEPER
from tests.shell_hosts import has_ended, is_alive, run_shell, shell_host
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path, marker: str) -> Iterator[Path]:
    with shell_host(tmp_path / "shells") as made:
        yield made


def test_one_that_no_disk_has_room_for_is_not_started(
    folder: Path, marker: str, sleepers: Callable[[], list[int]]
) -> None:
    run_shell(folder, "exit 0", execution_id="the keeper runs").close()
    _, hard = resource.prlimit(KEEPER.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(KEEPER.pid, resource.RLIMIT_FSIZE, (0, hard))  # its supervisors inherit that
    began = time.monotonic()
    with pytest.raises(SandboxError, match="could not be started: File too large"):
        run_shell(folder, f"sleep {marker}")
    assert time.monotonic() - began < 20
    assert len(list(folder.iterdir())) == 1
    assert not sleepers()
    KEEPER.close()


def test_how_it_ended_finds_room_on_a_disk_that_has_none_for_another_file(folder: Path) -> None:
    with run_shell(folder, f"while [ ! -e {folder}/go ]; do sleep 0.01; done; exit 3") as shell:
        (folder / shell.id / f"status.json.{shell.record().pid}").mkdir()  # so that the new one cannot be written there
        (folder / "go").touch()
        wait_until(lambda: not shell.is_going_on())
        record = shell.record()
        assert (record.status, record.exit_code) == (ShellStatus.EXITED, 3)


@pytest.mark.parametrize("how", ["kill -STOP $PPID", "rm {0}/*/orders", "rm {0}/*/orders; kill -STOP $PPID"])
def test_a_command_cannot_keep_an_order_from_its_supervisor(folder: Path, how: str, marker: str) -> None:
    with run_shell(folder, f"sleep 0.2; {how.format(folder)}; touch {folder}/done; sleep {marker}") as shell:
        wait_until((folder / "done").exists)
        assert shell.order("TERM", 1)
        wait_until(lambda: has_ended(shell), 30)
        assert shell.record().status is ShellStatus.KILLED


def test_one_whose_supervisor_is_stopped_before_it_can_say_so_is_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, marker: str, sleepers: Callable[[], list[int]]
) -> None:
    monkeypatch.setattr(host, "PATIENCE_SECONDS", 2.0)
    for _ in range(10):
        with run_shell(folder, f"kill -STOP $PPID; sleep {marker}") as shell:
            assert shell.order("KILL", 0)
            wait_until(lambda: shell.rouse() or has_ended(shell))
    assert not sleepers()


def test_a_keeper_that_was_killed_takes_no_shell_along_and_is_replaced(folder: Path) -> None:
    with run_shell(folder, "sleep 61") as first:
        os.kill(KEEPER.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(KEEPER.pid))
        with run_shell(folder, "sleep 61") as second:
            assert is_alive(first.record().pid)
            assert first.id != second.id


def test_a_keeper_that_is_killed_while_it_is_asked_is_replaced_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_shell(folder, "exit 0").close()
    os.kill(KEEPER.pid, signal.SIGSTOP)  # so that it has not forked when it dies
    asked, send = [], socket.send_fds

    def send_and_kill(*request: Any) -> None:
        send(*request)
        asked.append(KEEPER.pid)
        if len(asked) == 1:
            os.kill(KEEPER.pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(KEEPER.pid))

    monkeypatch.setattr(socket, "send_fds", send_and_kill)
    with run_shell(folder, "sleep 61") as shell:
        assert shell.is_going_on()
    assert len(set(asked)) == len(asked) == 2
    assert len(list(folder.iterdir())) == 2
