"""Parts of artifacts: packed so that damage shows, and in files that nobody else reads, writes or leads elsewhere."""

import os
import stat
import threading
from pathlib import Path

import pytest

from forge_tools.artifacts.parts import MAX_PACKED_BYTES, PART_BYTES, PartFiles, pack, unpack

ID = "6b" + "1f" * 15


@pytest.fixture
def files(tmp_path: Path) -> PartFiles:
    made = PartFiles(tmp_path / "artifacts")
    made.prepare()
    return made


@pytest.mark.parametrize("size", [0, 1, 1000, PART_BYTES - 1, PART_BYTES])
@pytest.mark.parametrize("make", [bytes, os.urandom])
def test_a_part_is_unpacked_byte_for_byte_or_refused(make: type[bytes], size: int) -> None:
    data = make(size)
    packed = pack(data)
    assert len(packed) <= MAX_PACKED_BYTES
    assert unpack(packed, 0, len(data)) == data
    for damaged in (packed[:-1], packed + b"x", packed[:-4] + b"\0\0\0\0", b""):
        with pytest.raises(ValueError, match="damaged"):
            unpack(damaged, 0, len(data))


def test_a_part_that_unpacks_to_more_than_one_is_refused() -> None:
    with pytest.raises(ValueError, match="does not end where it should"):
        unpack(pack(bytes(1 << 24)), 0, 1 << 24)


def test_a_part_of_another_length_than_it_must_have_is_refused() -> None:
    assert unpack(pack(b"xy"), 1, PART_BYTES + 2) == b"xy"
    for number, size in ((0, PART_BYTES + 2), (1, PART_BYTES + 3), (1, PART_BYTES + 1)):
        with pytest.raises(ValueError, match="holds 2 bytes"):
            unpack(pack(b"xy"), number, size)


def test_what_was_written_is_read_and_removed(files: PartFiles) -> None:
    files.write(ID, 0, b"old")
    files.write(ID, 0, b"new")
    files.write(ID, 1, b"more")
    assert (files.read(ID, 0), files.read(ID, 1)) == (b"new", b"more")
    assert files.are_there(ID, range(2))
    assert not files.are_there(ID, range(3))
    assert list(files.ids()) == [ID]
    files.remove(ID)
    files.remove(ID)
    assert list(files.ids()) == []
    assert not files.are_there(ID, range(1))
    with pytest.raises(FileNotFoundError):
        files.read(ID, 0)


def test_the_files_are_the_owners_alone(files: PartFiles) -> None:
    before = os.umask(0)
    try:
        files.write(ID, 0, b"x")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (files.folder, *files.folder.rglob("*"))}
    assert modes == {files.folder.name: 0o700, ID[:2]: 0o700, ID: 0o700, "0": 0o600}


def test_a_folder_that_is_open_to_others_is_not_used(files: PartFiles) -> None:
    files.folder.chmod(0o750)
    for use in (files.prepare, lambda: files.write(ID, 0, b"x"), lambda: files.read(ID, 0)):
        with pytest.raises(PermissionError, match=f"open to others. Run chmod 700 {files.folder}"):
            use()


def test_a_folder_of_another_user_is_not_used(files: PartFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.artifacts.parts.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="it belongs to user"):
        files.prepare()


@pytest.mark.parametrize("level", ["group", "artifact", "part"])
def test_no_link_is_followed(files: PartFiles, tmp_path: Path, level: str) -> None:
    files.write(ID, 0, b"mine")
    place = {
        "group": files.folder / ID[:2],
        "artifact": files.folder / ID[:2] / ID,
        "part": files.folder / ID[:2] / ID / "0",
    }
    there = place[level]
    there.rename(tmp_path / "elsewhere")
    there.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic|directory"):
        files.read(ID, 0)
    if level == "part":
        files.write(ID, 0, b"anew")  # takes the place of the link
        assert (tmp_path / "elsewhere").read_bytes() == b"mine"
        assert files.read(ID, 0) == b"anew"
    else:
        for use in (lambda: files.write(ID, 0, b"x"), lambda: files.remove(ID)):
            with pytest.raises(OSError, match=r"symbolic|directory"):
                use()
        assert (tmp_path / "elsewhere").exists()


def test_what_is_not_a_part_is_not_waited_for_and_not_read_whole(files: PartFiles) -> None:
    files.write(ID, 0, b"x")
    os.mkfifo(files.folder / ID[:2] / ID / "1")
    (files.folder / ID[:2] / ID / "2").write_bytes(bytes(2 * PART_BYTES))
    assert files.read(ID, 1) == b""
    assert len(files.read(ID, 2)) == MAX_PACKED_BYTES + 1


def test_a_write_that_fails_leaves_nothing(files: PartFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    files.write(ID, 0, b"old")
    monkeypatch.setattr("forge_tools.artifacts.parts.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(ID, 0, b"new")
    assert files.read(ID, 0) == b"old"
    assert [path.name for path in (files.folder / ID[:2] / ID).iterdir()] == ["0"]


def test_many_that_write_the_same_at_once_leave_one_whole_file(files: PartFiles) -> None:
    writers = [threading.Thread(target=files.write, args=(ID, 0, bytes([65]) * 50_000)) for _ in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [path.stat().st_size for path in (files.folder / ID[:2] / ID).iterdir()] == [50_000]
