"""One writer at a time in a folder."""

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths import places
from forge_tools.sandbox.paths.places import Place
from forge_tools.sandbox.paths.workspace import Workspace


def place_in(ws: Path) -> Place:
    return Workspace(ws).place("f")


def test_two_holders_take_turns(ws: Path) -> None:
    inside, most = [], 0

    def hold() -> None:
        nonlocal most
        with place_in(ws) as place:
            for _ in range(50):
                with place.locked(lambda: None):
                    inside.append(1)
                    most = max(most, len(inside))
                    inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_who_waits_too_long_is_told(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PATIENCE", 0.05)
    with place_in(ws) as one, place_in(ws) as other, one.locked(lambda: None):
        late = other.locked(lambda: None)
        with pytest.raises(SandboxError, match="has held the folder of f") as refused:
            late.__enter__()
    assert refused.value.code == "LOCK_TIMEOUT"


def test_who_waits_can_be_called_off(ws: Path) -> None:
    def give_up() -> None:
        raise InterruptedError

    with place_in(ws) as one, place_in(ws) as other:
        with one.locked(lambda: None), pytest.raises(InterruptedError):
            other.locked(give_up).__enter__()
        with other.locked(give_up):
            pass


def test_a_file_system_without_locks_is_written_all_the_same(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "none")

    monkeypatch.setattr(fcntl, "flock", none)
    done = False
    with place_in(ws) as place, place.locked(lambda: None):
        done = True
    assert done
