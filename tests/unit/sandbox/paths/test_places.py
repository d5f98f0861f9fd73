"""Places: what is written or deleted is inside the workspace, whatever the path looks like."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths import places
from forge_tools.sandbox.paths.files import Replacement, replace_file, temporary_name
from forge_tools.sandbox.paths.workspace import Workspace
from tests.descriptors import descriptors
from tests.waiting import within

OUTSIDE = [
    "../ws-evil/new", "../../new", "/etc/new", "/proc/self/root/etc/new", "src/../../ws-evil/new", "//etc/new", "../ws-evil/secret",
    "link-out", "link-out-dir/new", "link-dangling-out", "link-chain/new", "link-absolute", "src/../link-out-dir/passwd",
]  # fmt: skip


def write(workspace: Workspace, path: str, data: bytes = b"written") -> None:
    with workspace.place(path) as place:
        place.make_folders()
        seen = place.status()
        replace_file(place, Replacement(data=data, seen=seen), temporary_name(place.name), lambda: None)


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(SandboxError) as refused:
        call()
    return refused.value.code


@pytest.fixture
def escapes(ws: Path) -> Path:
    """The workspace with every kind of link that leads out of it, to what is there and to what is not."""
    for name, target in {
        "link-out": "/etc/hostname",
        "link-out-dir": "/etc",
        "link-dangling-out": "../ws-evil/new",
        "link-absolute": str(ws.parent / "ws-evil/new"),
        "link-chain": "link-relative",
        "link-relative": "../ws-evil",
    }.items():
        (ws / name).symlink_to(target)
    return ws


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_place_lies_outside(way: str, escapes: Path, path: str) -> None:
    assert code_of(lambda: Workspace(escapes).place(path)) == "PATH_OUTSIDE_WORKSPACE"
    assert os.listdir(escapes.parent / "ws-evil") == ["secret"]


@pytest.mark.parametrize(
    "target", ["src/foo.py", "{ws}/src/foo.py", "src/new.py", "{ws}/src/new.py", "src/../src/new.py"]
)
def test_links_that_stay_inside_are_written_through(way: str, ws: Path, target: str) -> None:
    (ws / "link").symlink_to(target.format(ws=ws))
    write(Workspace(ws), "link")
    assert (ws / "link").is_symlink()
    assert (ws / "link").read_text() == "written"
    assert (ws / "src/new.py").exists() == ("new" in target)


def test_a_link_that_is_not_followed_is_a_place_itself(way: str, ws: Path) -> None:
    (ws / "link").symlink_to("/etc/hostname")
    with Workspace(ws).place("link", follow=False) as place:
        assert place.name == "link"
        assert place.status()


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("src", "NOT_A_FILE"),
        (".", "NOT_A_FILE"),
        ("src/..", "NOT_A_FILE"),
        ("src/new/", "NOT_A_FILE"),
        ("src/foo.py/x", "NOT_A_DIRECTORY"),
        ("dangling/x", "NOT_A_DIRECTORY"),
        ("circle", "NOT_A_FILE"),
        ("circle/x", "NOT_A_FILE"),
        ("no/../x", "FILE_NOT_FOUND"),
        ("x" * 256, "VALIDATION_ERROR"),
        ("", "VALIDATION_ERROR"),
        ("fifo", "NOT_A_FILE"),
    ],
)
def test_what_cannot_be_written_is_refused(way: str, ws: Path, path: str, code: str) -> None:
    (ws / "dangling").symlink_to("nowhere")
    (ws / "circle").symlink_to("circle")
    os.mkfifo(ws / "fifo")

    def open_place() -> None:
        with Workspace(ws).place(path) as place:
            place.open()

    assert code_of(open_place) == code
    assert not (ws / "nowhere").exists()


def test_missing_folders_are_made_one_in_another(way: str, ws: Path) -> None:
    with Workspace(ws).place("src/a/b/c.txt") as place:
        assert place.missing == ["a", "b"]
        assert not (ws / "src/a").exists()
    write(Workspace(ws), "src/a/b/c.txt")
    assert (ws / "src/a/b/c.txt").read_text() == "written"


def test_a_link_put_where_a_folder_is_to_be_made_is_refused(ws: Path) -> None:
    with Workspace(ws).place("a/b/c.txt") as place:
        (ws / "a").symlink_to("../ws-evil")
        assert code_of(place.make_folders) in {"NOT_A_DIRECTORY", "NOT_A_FILE"}
    assert os.listdir(ws.parent / "ws-evil") == ["secret"]


def test_folders_that_were_made_in_vain_are_taken_away(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def full(name: str, **options: int) -> None:
        if name == "b":
            raise OSError(28, "full")
        mkdir(name, **options)

    monkeypatch.setattr(places.os, "mkdir", full)
    with Workspace(ws).place("a/b/c.txt") as place:
        assert code_of(place.make_folders) == "DISK_FULL"
    assert not (ws / "a").exists()


def test_folders_that_are_swapped_for_links_never_lead_a_write_out(way: str, ws: Path) -> None:
    (ws / "real").mkdir()
    (ws / "flip").symlink_to("real")
    stop = threading.Event()

    def flip() -> None:
        targets = ("../ws-evil", "real", "real", str(ws.parent / "ws-evil"))
        time_left = within(60, "nobody stops the swaps")
        while not stop.is_set() and next(time_left):
            (ws / "next").symlink_to(random.choice(targets))  # in turn, it could keep step with the other thread
            (ws / "next").replace(ws / "flip")

    thread = threading.Thread(target=flip)
    thread.start()
    seen = set()
    try:
        for number in range(20_000):
            try:
                write(Workspace(ws), f"flip/{number % 7}")
                seen.add("written")
            except SandboxError as refused:
                seen.add(refused.code)
            if number >= 400 and {"written", "PATH_OUTSIDE_WORKSPACE"} <= seen:
                break
    finally:
        stop.set()
        thread.join()
    assert os.listdir(ws.parent / "ws-evil") == ["secret"]
    assert "written" in seen
    assert seen <= {"written", "PATH_OUTSIDE_WORKSPACE", "FILE_NOT_FOUND", "NOT_A_DIRECTORY", "STALE_FILE"}


def test_no_handle_of_a_place_is_left_open(way: str, escapes: Path) -> None:
    workspace = Workspace(escapes)

    def all_paths() -> None:
        for path in [*OUTSIDE, "src/foo.py", "src/new", "a/b/c", "src", "src/foo.py/x", ".git/x"]:
            try:
                workspace.place(path).close()
            except SandboxError:
                continue

    all_paths()
    before = descriptors(escapes.parent, "/etc")
    for _ in range(3):
        all_paths()
    assert descriptors(escapes.parent, "/etc") == before
