"""Atomic replacement: mode, owner, attributes and links survive, and nothing is left behind when it fails. Etags name bytes."""

import errno
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.sandbox.paths import files
from forge_tools.sandbox.paths.files import Replacement, digest, etag_of, replace_file, temporary_name
from forge_tools.sandbox.paths.workspace import Workspace
from tests.fleet import ROOT, warm_worker


def put(ws: Path, name: str, data: bytes, is_executable: bool | None = None, check: Callable[[], None] = bool) -> None:
    with Workspace(ws).place(name) as place:
        replacement = Replacement(data=data, seen=place.status(), is_executable=is_executable)
        replace_file(place, replacement, temporary_name(place.name), check)


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o4755, 0o2755, 0o664])
def test_the_mode_stays_but_for_set_id_bits(ws: Path, mode: int) -> None:
    (ws / "f").write_bytes(b"old")
    (ws / "f").chmod(mode)
    put(ws, "f", b"new")
    assert ((ws / "f").read_bytes(), stat.S_IMODE((ws / "f").stat().st_mode)) == (b"new", mode & 0o1777)


@pytest.mark.parametrize(("wanted", "mode"), [(True, 0o750), (False, 0o640), (None, 0o640)])
def test_execute_bits_follow_read_bits(ws: Path, wanted: bool | None, mode: int) -> None:
    (ws / "f").write_bytes(b"old")
    (ws / "f").chmod(0o640)
    put(ws, "f", b"new", wanted)
    assert stat.S_IMODE((ws / "f").stat().st_mode) == mode


def test_a_new_file_gets_what_the_mask_leaves(ws: Path) -> None:
    old = os.umask(0o027)
    try:
        put(ws, "f", b"new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((ws / "f").stat().st_mode) == 0o640


def test_attributes_and_owner_are_those_of_the_old_file(ws: Path) -> None:
    (ws / "f").write_bytes(b"old")
    try:
        os.setxattr(ws / "f", "user.note", b"mine")
    except OSError:
        pytest.fail("the temporary folder keeps no extended attributes; set TMPDIR to one that does")
    if os.geteuid() == 0:
        os.chown(ws / "f", 1234, 1234)
    owner = (ws / "f").stat().st_uid
    put(ws, "f", b"new")
    assert os.getxattr(ws / "f", "user.note") == b"mine"
    assert (ws / "f").stat().st_uid == owner


def test_other_names_of_the_file_keep_the_old_bytes(ws: Path) -> None:
    (ws / "f").write_bytes(b"old")
    os.link(ws / "f", ws / "g")
    put(ws, "f", b"new")
    assert ((ws / "f").read_bytes(), (ws / "g").read_bytes()) == (b"new", b"old")


@pytest.mark.parametrize("name", ["f", "x" * 250, "ü" * 127, "\udcff" * 255])
def test_a_temporary_name_fits_beside_every_name(ws: Path, name: str) -> None:
    assert len(os.fsencode(temporary_name(name))) <= 255
    put(ws, name, b"new")
    assert [entry for entry in os.listdir(ws) if entry != "src"] == [name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("where", ["write", "fsync", "link", "rename", "open"])
def test_what_fails_leaves_the_old_file_and_nothing_else(
    ws: Path, monkeypatch: pytest.MonkeyPatch, where: str, code: int
) -> None:
    (ws / "f").write_bytes(b"old")
    real = getattr(os, where)

    def fail(*arguments: object, **options: object) -> object:
        if where == "open" and arguments[0] != "." and "forge-tmp" not in str(arguments[0]):
            return real(*arguments, **options)
        raise OSError(code, os.strerror(code))

    with Workspace(ws).place("f") as place, monkeypatch.context() as patched:
        replacement = Replacement(data=b"new", seen=place.status())
        patched.setattr(files.os, where, fail)
        with pytest.raises(SandboxError) as refused:
            replace_file(place, replacement, temporary_name("f"), bool)
    expected = {errno.ENOSPC: "DISK_FULL", errno.EDQUOT: "DISK_FULL", errno.EROFS: "READ_ONLY_WORKSPACE"}
    assert refused.value.code == expected.get(code, "EXECUTION_ERROR")
    assert ((ws / "f").read_bytes(), sorted(os.listdir(ws))) == (b"old", ["f", "src"])


def test_a_file_larger_than_allowed_leaves_the_old_one(ws: Path) -> None:
    (ws / "f").write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(SandboxError, match="larger than this worker may write") as refused:
            put(ws, "f", b"x" * 20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.value.code == "FILE_TOO_LARGE"
    assert ((ws / "f").read_bytes(), sorted(os.listdir(ws))) == (b"old", ["f", "src"])


def test_work_that_is_called_off_leaves_the_old_file(ws: Path) -> None:
    (ws / "f").write_bytes(b"old")

    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(SandboxError):
        put(ws, "f", b"new", check=give_up)
    assert ((ws / "f").read_bytes(), sorted(os.listdir(ws))) == (b"old", ["f", "src"])


def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(ws: Path) -> None:
    (ws / "f").write_bytes(b"old")
    with pytest.raises(SandboxError, match="changed by someone else") as refused:
        put(ws, "f", b"new", check=lambda: (ws / "f").write_bytes(b"theirs") and None)
    assert (refused.value.code, (ws / "f").read_bytes()) == ("STALE_FILE", b"theirs")


def test_without_unnamed_files_the_new_bytes_get_a_name_at_once(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def opened(path: str, flags: int, *more: int, **how: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no unnamed files")
        return real(path, flags, *more, **how)

    monkeypatch.setattr(os, "open", opened)
    (ws / "f").write_bytes(b"old")
    put(ws, "f", b"new")
    assert ((ws / "f").read_bytes(), sorted(os.listdir(ws))) == (b"new", ["f", "src"])
    with pytest.raises(SandboxError):
        put(ws, "f", b"newer", check=lambda: (ws / "f").write_bytes(b"theirs") and None)
    assert sorted(os.listdir(ws)) == ["f", "src"]


KILLED = """
import os, sys
from pathlib import Path
from forge_tools.sandbox.paths import files
from forge_tools.sandbox.paths.workspace import Workspace
calls = 0
def dying(real):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
        return real(*arguments, **options)
    return call
place = Workspace(Path(sys.argv[1])).place("f")
seen = place.status()
for name in ("open", "write", "fsync", "rename", "fchmod", "close"):
    setattr(os, name, dying(getattr(os, name)))
files.replace_file(place, files.Replacement(data=b"new" * 1000, seen=seen), ".f.tmp.forge-tmp", bool)
print("done")
"""


def test_a_process_that_is_killed_at_any_step_leaves_the_old_or_the_new_file(ws: Path) -> None:
    seen, left = set(), 0
    for step in range(1, 14):
        (ws / "f").write_bytes(b"old")
        (ws / ".f.tmp.forge-tmp").unlink(missing_ok=True)
        done = warm_worker().run(["-c", KILLED, str(ws), str(step)], cwd=ROOT, env=os.environ)
        seen.add((ws / "f").read_bytes())
        left += (ws / ".f.tmp.forge-tmp").exists()
        if "done" in done.stdout:
            break
    assert "done" in done.stdout
    assert step > 6
    assert seen == {b"old", b"new" * 1000}
    assert left <= 2, "until it is complete and on the disk the new file has no name that a crash could leave"


@pytest.mark.parametrize("size", [0, 10, 3 << 20])
def test_hashing_piece_by_piece_gives_the_etag_that_hashing_at_once_gives(size: int) -> None:
    data = b"x" * size
    pieces = digest()
    for start in range(0, size, 1000):
        pieces.update(data[start : start + 1000])
    assert etag_of(data) == etag_of(pieces)
