"""One writer at a time in a folder."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths import places as locks
from forge_tools.sandbox.paths.places import lock_folder


def test_two_holders_take_turns(ws: Path) -> None:
    inside, most = [], 0

    def hold() -> None:
        nonlocal most
        folder = os.open(ws, os.O_RDONLY)
        for _ in range(50):
            with lock_folder(folder, "f", lambda: None):
                inside.append(1)
                most = max(most, len(inside))
                inside.pop()
        os.close(folder)

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_who_waits_too_long_is_told(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.05)
    one, other = os.open(ws, os.O_RDONLY), os.open(ws, os.O_RDONLY)
    with lock_folder(one, "f", lambda: None), pytest.raises(SandboxError, match="holds the folder of f") as refused:
        lock_folder(other, "f", lambda: None).__enter__()
    assert refused.value.code == "LOCK_TIMEOUT"
    os.close(one)
    os.close(other)


def test_who_waits_can_be_called_off(ws: Path) -> None:
    def give_up() -> None:
        raise InterruptedError

    one, other = os.open(ws, os.O_RDONLY), os.open(ws, os.O_RDONLY)
    with lock_folder(one, "f", lambda: None), pytest.raises(InterruptedError):
        lock_folder(other, "f", give_up).__enter__()
    with lock_folder(other, "f", give_up):
        pass
    os.close(one)
    os.close(other)


def test_a_file_system_without_locks_is_written_all_the_same(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "none")

    monkeypatch.setattr(fcntl, "flock", none)
    folder, done = os.open(ws, os.O_RDONLY), False
    with lock_folder(folder, "f", lambda: None):
        done = True
    os.close(folder)
    assert done
