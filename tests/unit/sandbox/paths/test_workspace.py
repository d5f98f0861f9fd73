"""The workspace: nothing leads out of it, and refusals are explained."""

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model import ExecutionContext
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.sandbox.walls.privileges import open_up
from tests.descriptors import descriptors
from tests.unit.sandbox.paths.test_places import code_of

HOSTILE = [
    "../../etc/passwd",
    "../ws-evil/secret",
    "src/../../ws-evil/secret",
    "/etc/passwd",
    "/proc/self/root/etc/passwd",
    "//etc/passwd",
    "/./etc/passwd",
    "link-out",
    "link-out-dir/passwd",
    "link-out-dir/there-is-no-such-file",
    "link-relative",
    "link-chain",
    "link-dotdot",
    "..",
    "src/../..",
]


@pytest.fixture
def escapes(ws: Path) -> Path:
    """The workspace with every kind of link that leads out of it."""
    for name, target in {
        "link-out": "/etc/passwd",
        "link-out-dir": "/etc",
        "link-relative": "../ws-evil/secret",
        "link-chain": "link-relative",
        "link-dotdot": "src/../../ws-evil/secret",
    }.items():
        (ws / name).symlink_to(target)
    return ws


@pytest.mark.parametrize("path", HOSTILE)
def test_no_path_leads_out_of_the_workspace(way: str, escapes: Path, path: str) -> None:
    with pytest.raises(SandboxError) as refused:
        Workspace(escapes).open(path)
    assert refused.value.code == "PATH_OUTSIDE_WORKSPACE"
    assert str(refused.value) == f"Path is outside the workspace: {path}"


def test_a_folder_whose_name_only_starts_like_the_root_is_outside(way: str, ws: Path) -> None:
    path = f"{ws}-evil/secret"
    assert code_of(lambda: Workspace(ws).open(path)) == "PATH_OUTSIDE_WORKSPACE"


def test_links_that_stay_inside_are_followed_relative_and_absolute(way: str, ws: Path) -> None:
    (ws / "relative").symlink_to("src/foo.py")
    (ws / "absolute").symlink_to(ws / "src")
    (ws / "up").symlink_to("src/../src")
    for path in ("relative", "absolute/foo.py", "up/foo.py", "absolute/../src/foo.py", f"{ws}/src/foo.py"):
        with Workspace(ws).open_file(path) as file:
            assert os.pread(file.fd, 10, 0) == b"inside"


def test_a_link_back_to_the_root_itself_is_followed(way: str, ws: Path) -> None:
    (ws / "home").symlink_to(ws)
    with Workspace(ws).open_folder("home/home") as folder:
        assert os.path.samestat(folder.stat, ws.stat())


def test_a_root_reached_through_a_link_accepts_both_of_its_names(way: str, ws: Path) -> None:
    alias = ws.parent / "alias"
    alias.symlink_to(ws)
    (ws / "absolute").symlink_to(ws / "src")
    for path in (f"{alias}/src/foo.py", f"{ws}/src/foo.py", "absolute/foo.py"):
        Workspace(alias).open_file(path).close()


def test_a_circle_of_links_is_refused(way: str, ws: Path) -> None:
    (ws / "a").symlink_to("b")
    (ws / "b").symlink_to("a")
    (ws / "deep").symlink_to(ws / "deep/deep")
    assert code_of(lambda: Workspace(ws).open("a")) == "NOT_A_FILE"
    assert code_of(lambda: Workspace(ws).open("deep")) == "NOT_A_FILE"


def test_what_is_neither_file_nor_folder_is_refused_without_waiting(way: str, ws: Path) -> None:
    os.mkfifo(ws / "fifo")
    (ws / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ws / "socket"))
        assert code_of(lambda: Workspace(ws).open("socket")) == "NOT_A_FILE"
    assert code_of(lambda: Workspace(ws).open("fifo")) == "NOT_A_FILE"
    assert code_of(lambda: Workspace(ws).open("zero")) == "PATH_OUTSIDE_WORKSPACE"


def test_a_file_in_the_place_of_a_folder_is_said_to_be_one(way: str, ws: Path) -> None:
    assert code_of(lambda: Workspace(ws).open("src/foo.py/x")) == "NOT_A_DIRECTORY"
    assert code_of(lambda: Workspace(ws).open_folder("src/foo.py")) == "NOT_A_DIRECTORY"
    assert code_of(lambda: Workspace(ws).open_file("src")) == "NOT_A_FILE"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("x" * 256, "limit is 255"),
        ("y/" * 2049, "limit is 4,096"),
        ("\ud800", "file names cannot contain"),
    ],
)
def test_what_no_file_system_could_hold_is_refused_before_any_system_call(ws: Path, path: str, says: str) -> None:
    with pytest.raises(SandboxError, match=says) as refused:
        Workspace(ws).open(path)
    assert refused.value.code == "VALIDATION_ERROR"


@pytest.mark.parametrize("name", ["-rf", "new\nline", "ü" * 127, "n\u0303 NFD", "back\\slash", " ", "\udcff"])
def test_odd_names_are_ordinary_files(way: str, ws: Path, name: str) -> None:
    (ws / name).write_text("odd")
    with Workspace(ws).open_file(name) as file:
        assert os.pread(file.fd, 10, 0) == b"odd"
        assert file.name.isprintable()


@pytest.mark.parametrize("wrong", ["src/fo.py", "src/FOO.py", "src/foo.pyy"])
def test_a_missing_file_is_answered_with_names_like_it(ws: Path, wrong: str) -> None:
    with pytest.raises(SandboxError, match=r"^File not found: src/.*\. Similar: src/foo\.py$"):
        Workspace(ws).open(wrong)


def test_a_missing_folder_reveals_nothing(ws: Path) -> None:
    with pytest.raises(SandboxError, match=r"^File not found: nope/foo\.py$"):
        Workspace(ws).open("nope/foo.py")


def test_relative_paths_start_at_the_working_directory(way: str, ws: Path) -> None:
    workspace = Workspace(ws, "src")
    for path, name in {"foo.py": "foo.py", "../src/foo.py": "../src/foo.py", f"{ws}/src/foo.py": "foo.py"}.items():
        with workspace.open_file(path) as file:
            assert file.name == name
    assert code_of(lambda: workspace.open("../../ws-evil/secret")) == "PATH_OUTSIDE_WORKSPACE"


@pytest.mark.parametrize("outside", ["..", "/etc", "../ws-evil", "link"])
def test_a_working_directory_outside_the_root_is_refused(ws: Path, outside: str) -> None:
    (ws / "link").symlink_to("/etc")
    with pytest.raises(SandboxError, match="outside the workspace") as refused:
        Workspace(ws, outside)
    assert refused.value.code == "PATH_OUTSIDE_WORKSPACE"


@pytest.mark.parametrize(("wrong", "code"), [("nope", "FILE_NOT_FOUND"), ("src/foo.py", "NOT_A_DIRECTORY")])
def test_a_working_directory_must_be_a_folder_that_exists(ws: Path, wrong: str, code: str) -> None:
    with pytest.raises(SandboxError, match="Working directory cannot be used: ") as refused:
        Workspace(ws, wrong)
    assert refused.value.code == code


def test_the_context_names_the_root_unless_the_executor_has_set_one(ws: Path) -> None:
    with Workspace.for_context(ExecutionContext(working_dir=str(ws))).open_file("src/foo.py"):
        pass
    token = REACH.set(Reach(root=ws))
    try:
        with Workspace.for_context(ExecutionContext(working_dir="src")).open_file("foo.py"):
            pass
        assert code_of(lambda: Workspace.for_context(ExecutionContext(working_dir="/etc"))) == "PATH_OUTSIDE_WORKSPACE"
    finally:
        REACH.reset(token)


@pytest.mark.parametrize(("root", "says"), [("nope", "No such file"), ("a\0b", "NUL"), ("", "empty")])
def test_a_root_that_cannot_be_opened_is_named(root: str, says: str) -> None:
    with pytest.raises(SandboxError, match=says):
        Workspace.for_context(ExecutionContext(working_dir=root))


def test_an_open_folder_knows_where_it_really_is(ws: Path) -> None:
    (ws / "link").symlink_to("src")
    workspace = Workspace(ws, "src")
    with workspace.open_folder("../link") as folder, workspace.open_root() as root:
        assert workspace.inside(folder) == "src"
        assert workspace.inside(root) == "."
        assert workspace.shown("src/foo.py", root.root) == "foo.py"


def test_a_folder_that_was_moved_out_after_it_was_opened_is_outside(ws: Path) -> None:
    workspace = Workspace(ws)
    with workspace.open_folder("src") as folder:
        (ws / "src").rename(ws.parent / "gone")
        assert code_of(lambda: workspace.inside(folder)) == "PATH_OUTSIDE_WORKSPACE"


def test_an_unreadable_file_is_refused_by_name(ws: Path) -> None:
    (ws / "secret").write_text("x")
    (ws / "secret").chmod(0)
    workspace = Workspace(ws)
    root = os.geteuid() == 0
    if root:
        for folder in (ws, *ws.parents):
            if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        os.seteuid(65534)
    try:
        assert code_of(lambda: workspace.open("secret")) == "PERMISSION_DENIED"
    finally:
        if root:
            os.seteuid(0)
            open_up()  # a change of user closed it


def test_a_link_that_is_swapped_under_way_never_leads_out(way: str, ws: Path) -> None:
    (ws / "good").mkdir()
    (ws / "good/secret").write_text("inside")
    (ws / "flip").symlink_to("good")
    stop = threading.Event()

    def flip() -> None:
        targets = ("../ws-evil", "good", str(ws.parent / "ws-evil"), str(ws / "good"))
        for turn in range(1_000_000):
            if stop.is_set():
                return
            (ws / "new").symlink_to(targets[turn % 4])
            (ws / "new").replace(ws / "flip")

    thread = threading.Thread(target=flip)
    thread.start()
    seen = set()
    try:
        for _ in range(2000):
            try:
                with Workspace(ws).open_file("flip/secret") as file:
                    seen.add(os.pread(file.fd, 10, 0))
            except SandboxError as refused:
                seen.add(refused.code.encode())
    finally:
        stop.set()
        thread.join()
    assert seen <= {b"inside", b"PATH_OUTSIDE_WORKSPACE", b"FILE_NOT_FOUND"}
    assert b"inside" in seen


@pytest.mark.parametrize("path", ["src/foo.py/x", *HOSTILE])
def test_who_was_refused_holds_no_workspace_open_until_garbage_is_collected(way: str, escapes: Path, path: str) -> None:
    with suppress(SandboxError):
        Workspace(escapes).open(path)
    assert descriptors(escapes) == set()


def test_no_handle_is_left_open(way: str, escapes: Path) -> None:
    def all_paths() -> None:
        workspace = Workspace(escapes, "src")
        for path in ["foo.py", "../src", *HOSTILE]:
            try:
                workspace.open(path).close()
            except SandboxError:
                continue

    all_paths()
    before = descriptors(escapes.parent, "/etc")
    for _ in range(5):
        all_paths()
    assert descriptors(escapes.parent, "/etc") == before
