"""Temporary folders of processes: gone with them, soon gone when they are killed, and nobody else's ever touched."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from forge_tools.sandbox import spools
from forge_tools.sandbox.spools import remove_leftovers, scratch_folder

PREFIX = "forge-test-"
OWNER = f"""
import sys
from forge_tools.sandbox.spools import scratch_folder
with scratch_folder({PREFIX!r}) as folder:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "kept").write_text("x")
    (folder / "away").symlink_to("/")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def owner() -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


def end(process: "subprocess.Popen[str]", number: int | None = None) -> None:
    if number is not None:
        process.send_signal(number)
    process.communicate(timeout=60)


def test_the_folder_of_a_killed_process_goes_at_the_next_start_and_that_of_a_living_one_never(tmp: Path) -> None:
    killed, left = owner()
    end(killed, signal.SIGKILL)
    assert (left / "deep" / "er" / "kept").exists()

    living, used = owner()
    with scratch_folder(PREFIX) as own:
        assert set(tmp.iterdir()) == {used, own}
        assert (used / "deep" / "er" / "kept").read_text() == "x"
    end(living)

    assert list(tmp.iterdir()) == []


def test_what_others_planted_is_left_alone(tmp: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    victim = tmp_path_factory.mktemp("victim")
    victim.chmod(0o700)
    (victim / "precious").write_text("x")
    (tmp / f"{PREFIX}link").symlink_to(victim)
    (tmp / f"{PREFIX}file").write_text("x")
    os.mkfifo(tmp / f"{PREFIX}fifo")
    (tmp / f"{PREFIX}open").mkdir(mode=0o755)
    (tmp / "other").mkdir(mode=0o700)

    remove_leftovers(tmp, PREFIX)

    assert (victim / "precious").exists()
    assert len(list(tmp.iterdir())) == 5


def test_the_folder_of_another_user_is_left_alone(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp / f"{PREFIX}theirs").mkdir(mode=0o700)
    me = os.geteuid()
    monkeypatch.setattr(spools.os, "geteuid", lambda: me + 1)

    remove_leftovers(tmp, PREFIX)

    assert (tmp / f"{PREFIX}theirs").exists()


def test_a_link_that_takes_the_place_of_a_leftover_leads_nowhere(
    tmp: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, left = tmp_path_factory.mktemp("victim"), tmp / f"{PREFIX}left"
    (victim / "precious").write_text("x")
    left.mkdir(mode=0o700)
    lock = fcntl.flock

    def swap(folder: int, how: int) -> None:
        lock(folder, how)
        left.rename(tmp / "moved")
        left.symlink_to(victim)

    monkeypatch.setattr(spools.fcntl, "flock", swap)
    remove_leftovers(tmp, PREFIX)

    assert (victim / "precious").exists()
    assert left.is_symlink()


def test_who_loses_a_folder_before_it_is_locked_makes_another(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = list[str](), os.mkdir

    def make_and_lose(path: str, mode: int) -> None:
        make(path, mode)
        made.append(path)
        if len(made) < 3:
            remove_leftovers(tmp, PREFIX)

    monkeypatch.setattr(os, "mkdir", make_and_lose)
    with scratch_folder(PREFIX) as folder:
        assert made == [str(folder)] * 3
        remove_leftovers(tmp, PREFIX)
        assert folder.is_dir()


def test_many_that_start_at_once_each_have_their_own(tmp: Path) -> None:
    start, seen = threading.Barrier(8), list[Path]()

    def use() -> None:
        start.wait(30)
        for _ in range(20):
            with scratch_folder(PREFIX) as folder:
                (folder / "mine").write_text("x")
                assert (folder / "mine").exists()
                seen.append(folder)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(set(seen)) == 160
    assert list(tmp.iterdir()) == []


def test_without_locks_nothing_is_taken_for_left_behind(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(spools.fcntl, "flock", refuse)
    with scratch_folder(PREFIX) as first, scratch_folder(PREFIX) as second:
        assert (first.is_dir(), second.is_dir()) == (True, True)
    assert list(tmp.iterdir()) == []


def test_a_forked_copy_that_ends_leaves_the_folder_to_its_owner() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["there", "gone"]


FORKING = f"""
import os
from forge_tools.sandbox.spools import scratch_folder
with scratch_folder({PREFIX!r}) as folder:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("there" if folder.exists() else "lost", flush=True)
if child:
    print("left" if folder.exists() else "gone")
"""
