"""Which files `forge-tools dev` watches, and which changes it reports."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from forge_tools.embedded import generations
from forge_tools.errors import ConfigurationError
from tests.waiting import wait_until

FOLDERS, FILES = 500, 100


def watches() -> int:
    """How many folders this process has the kernel watch."""
    found = 0
    for file in Path("/proc/self/fdinfo").iterdir():
        with suppress(OSError):  # of the listing itself
            found += file.read_text().count("inotify wd:")
    return found


@contextmanager
def watched(roots: Iterable[Path], folders: int) -> Iterator[list[Path]]:
    """What is heard of these folders, from when they are watched."""
    heard, stop, before = list[Path](), threading.Event(), watches()

    def listen() -> None:
        for files in generations.changes(roots, stop):
            heard.extend(files)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        wait_until(lambda: watches() - before == folders, 60, lambda: str(watches() - before))
        yield heard
    finally:
        stop.set()
        thread.join(60)


def test_of_fifty_thousand_files_one_that_is_saved_is_told_and_each_folder_is_watched_once(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for folder in range(FOLDERS):
        (tmp_path / str(folder)).mkdir()
        for file in range(FILES):
            os.link(tmp_path / "data", tmp_path / str(folder) / f"{file}.txt")

    with watched([tmp_path], FOLDERS + 1) as heard:
        (tmp_path / "77" / "notes.md").write_text("nobody's source")
        (tmp_path / "77" / "mytools.py").write_text("half")
        wait_until(lambda: heard, 60)
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "more.py").touch()
        wait_until(lambda: tmp_path / "new" / "more.py" in heard, 60)

    assert set(heard) == {tmp_path / "77" / "mytools.py", tmp_path / "new" / "more.py"}


def test_what_is_saved_before_folders_are_watched_is_told_and_a_folder_that_is_gone_by_then_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mytools.py", "old/gone.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before")
    stop, watch, removed = threading.Event(), generations.watch, threading.Event()

    def late(*folders: Path, **options: Any) -> Iterator[Any]:
        if not removed.is_set():
            shutil.rmtree(tmp_path / "old")
            removed.set()
        return watch(*folders, **options)

    monkeypatch.setattr(generations, "watch", late)
    heard = generations.changes([tmp_path], stop)
    (tmp_path / "mytools.py").write_text("saved")

    assert next(heard) == [tmp_path / "mytools.py", tmp_path / "old" / "gone.py"]
    stop.set()
    assert list(heard) == []


def test_more_folders_than_can_be_watched_are_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "MOST_FOLDERS", 50)
    for folder in range(generations.MOST_FOLDERS):
        (tmp_path / str(folder)).mkdir()

    with pytest.raises(ConfigurationError, match=r"more than 50 folders to watch\. Start in the folder of your tools"):
        next(generations.changes([tmp_path], threading.Event()))


def test_a_folder_that_is_not_utf8_is_not_watched_and_refused_if_it_is_the_root(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    with watched([tmp_path], 1) as heard:
        (tmp_path / "mytools.py").touch()
        wait_until(lambda: heard, 60)

    with pytest.raises(ConfigurationError, match="is not UTF-8, and cannot be watched"):
        next(generations.changes([odd], threading.Event()))


def test_a_folder_that_may_not_be_read_keeps_no_other_from_being_watched() -> None:
    script = """
import os, platform, sys, threading  # platform: what watches loads it later, and another user may not read Python
from pathlib import Path
from forge_tools.embedded import generations
if os.geteuid() == 0:
    os.seteuid(65534)
heard = generations.changes([Path(sys.argv[1])], threading.Event())
Path(sys.argv[1], "mytools.py").touch()
print(next(heard)[0].name)
"""
    with TemporaryDirectory() as folder:  # one that others may enter, too
        Path(folder).chmod(0o777)
        Path(folder, "data").mkdir(mode=0)
        done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("mytools.py\n", "")


def test_compiled_code_that_cannot_be_removed_keeps_no_change_from_being_told(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").write_text("no folder")
    with watched([tmp_path], 1) as heard:
        (tmp_path / "mytools.py").touch()
        wait_until(lambda: heard, 10)


@pytest.mark.parametrize("error", [OSError("OS file watch limit reached"), RuntimeError("EMFILE")])
def test_a_kernel_that_watches_no_more_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def watch(*_: Path, **__: object) -> Iterator[Any]:
        raise error

    monkeypatch.setattr(generations, "watch", watch)
    with pytest.raises(ConfigurationError, match=r"Raise fs\.inotify\.max_user_watches"):
        next(generations.changes([tmp_path], threading.Event()))


def test_folders_that_are_nobodys_sources_are_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, stop = list[Path](), threading.Event()

    def watch(*folders: Path, **_: object) -> Iterator[Any]:
        watched.extend(folders)
        stop.set()
        return iter(())

    monkeypatch.setattr(generations, "watch", watch)
    for name in ("src/deep", ".git/objects", "node_modules/a", "myvenv/lib", ".home/logs", "src/__pycache__"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "myvenv" / "pyvenv.cfg").write_text("")

    assert list(generations.changes([tmp_path], stop)) == []
    assert {folder.relative_to(tmp_path).as_posix() for folder in watched} == {".", "src", "src/deep"}
