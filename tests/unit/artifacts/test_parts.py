"""Parts of artifacts: packed so that damage shows, and in files that nobody else reads, writes or leads elsewhere."""

import os
import stat
import threading
from hashlib import blake2b
from pathlib import Path

import pytest

from forge_tools.artifacts.parts import MAX_PACKED_BYTES, PART_BYTES, ArtifactFiles, Draft, folder_of, pack, unpack
from forge_tools.config import Settings
from forge_tools.model.artifacts import TEXT

ID = "6b" + "1f" * 15


@pytest.fixture
def files(tmp_path: Path) -> ArtifactFiles:
    made = ArtifactFiles(tmp_path / "artifacts")
    made.prepare()
    return made


def test_artifacts_are_beside_an_sqlite_file_whichever_link_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    for url in (f"sqlite:///{tmp_path}/link.db", f"sqlite+aiosqlite:///{tmp_path}/real.db"):
        assert folder_of(Settings.load(database_url=url)) == tmp_path / "real.db.artifacts"
    assert folder_of(Settings.load(database_url="postgresql://here/db")) is None
    given = Settings.load(database_url="sqlite:///x.db", artifact_dir="/srv/artifacts")
    assert folder_of(given) == Path("/srv/artifacts")


@pytest.mark.parametrize("size", [0, 1, 1000, PART_BYTES - 1, PART_BYTES])
@pytest.mark.parametrize("make", [bytes, os.urandom])
@pytest.mark.parametrize("media_type", [TEXT, "image/png"])
def test_a_part_is_unpacked_byte_for_byte_or_refused(make: type[bytes], media_type: str, size: int) -> None:
    data = make(size)
    packed = pack(data, media_type)
    assert len(packed) <= MAX_PACKED_BYTES
    for behind in (b"", bytes(MAX_PACKED_BYTES - len(packed))):
        assert unpack(packed + behind, 0, len(data)) == data
    flipped = packed[:-1] + bytes([packed[-1] ^ 1])
    for damaged in (packed[:-1], flipped, b""):
        with pytest.raises(ValueError, match="damaged"):
            unpack(damaged, 0, len(data))


def test_whoever_holds_the_whole_against_its_id_may_leave_out_the_checksum() -> None:
    damaged = pack(b"right", "image/png").replace(b"right", b"wrong")
    with pytest.raises(ValueError, match="its checksum differs"):
        unpack(damaged, 0, 5)
    assert unpack(damaged, 0, 5, is_checked=False) == b"wrong"


def test_a_part_that_unpacks_to_more_than_one_is_refused() -> None:
    with pytest.raises(ValueError, match="does not end where it should"):
        unpack(pack(bytes(1 << 24)), 0, 1 << 24)


def test_a_part_of_another_length_than_it_must_have_is_refused() -> None:
    assert unpack(pack(b"xy"), 1, PART_BYTES + 2) == b"xy"
    for number, size in ((0, PART_BYTES + 2), (1, PART_BYTES + 3), (1, PART_BYTES + 1)):
        with pytest.raises(ValueError, match="holds 2 bytes"):
            unpack(pack(b"xy"), number, size)


def written(files: ArtifactFiles, data: bytes, id: str = ID, media_type: str = "image/png") -> None:
    with files.draft(media_type) as draft:
        draft.add(data)
        draft.end()
        files.publish(draft, id)


def content(files: ArtifactFiles, number: int, size: int) -> bytes:
    return unpack(files.read(ID, number), number, size)


@pytest.mark.parametrize("cut", [1000, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES])
@pytest.mark.parametrize("media_type", [TEXT, "image/png"])
def test_bytes_that_come_in_any_pieces_are_hashed_and_packed_in_parts(media_type: str, cut: int) -> None:
    data = b"".join(b"%07d\n" % number for number in range(2 * PART_BYTES // 8 + 5))
    with Draft(media_type) as draft:
        for at in range(0, len(data), cut):
            draft.add(data[at : at + cut])
        draft.end()
        assert (draft.id, draft.size) == (blake2b(data, digest_size=16).hexdigest(), len(data))
        parts = [draft.part(number) for number in range(3)]
    cuts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    assert [part.data for part in parts] == [pack(one, media_type) for one in cuts]
    assert [part.breaks for part in parts] == [one.count(b"\n") if media_type == TEXT else None for one in cuts]


def test_a_file_is_copied_up_to_the_size_that_it_had(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(PART_BYTES + 10))
    with (tmp_path / "file").open("rb") as file, Draft("image/png") as draft:
        assert not draft.copy(file.fileno(), PART_BYTES + 5)
        assert draft.size == PART_BYTES + 5


def test_a_draft_that_is_closed_while_a_thread_writes_harms_no_other_file(tmp_path: Path) -> None:
    draft = Draft("image/png")
    draft.close()
    with (tmp_path / "other").open("w+b") as other:
        with pytest.raises(OSError, match="Bad file descriptor"):
            draft.add(bytes(PART_BYTES))
        assert os.fstat(other.fileno()).st_size == 0


def test_what_was_published_is_read_and_removed(files: ArtifactFiles) -> None:
    written(files, b"old")
    written(files, b"new" * PART_BYTES)
    assert content(files, 1, 3 * PART_BYTES) == (b"new" * PART_BYTES)[PART_BYTES : 2 * PART_BYTES]
    assert files.is_there(ID)
    assert files.ids() == [ID]
    files.remove(ID)
    files.remove(ID)
    assert files.ids() == []
    assert not files.is_there(ID)
    with pytest.raises(FileNotFoundError):
        files.read(ID, 0)


def test_what_is_published_again_stays(files: ArtifactFiles) -> None:
    with files.draft("image/png") as draft:
        draft.add(b"x")
        draft.end()
        for _ in range(2):
            files.publish(draft, ID)
    assert content(files, 0, 1) == b"x"
    assert [path.name for path in files.folder.iterdir()] == [ID]


def test_compressed_parts_take_no_more_room_than_they_need(files: ArtifactFiles) -> None:
    written(files, bytes(3 * PART_BYTES), media_type=TEXT)
    assert (files.folder / ID).stat().st_blocks * 512 < PART_BYTES // 10
    assert [content(files, number, 3 * PART_BYTES) for number in range(3)] == [bytes(PART_BYTES)] * 3


def test_the_files_are_the_owners_alone(files: ArtifactFiles) -> None:
    before = os.umask(0)
    try:
        written(files, b"x")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (files.folder, *files.folder.rglob("*"))}
    assert modes == {files.folder.name: 0o700, ID: 0o600}


def test_a_folder_that_is_open_to_others_is_not_used(files: ArtifactFiles) -> None:
    files.folder.chmod(0o750)
    for use in (files.prepare, lambda: files.draft(TEXT), lambda: files.read(ID, 0)):
        with pytest.raises(PermissionError, match=f"open to others. Run chmod 700 {files.folder}"):
            use()


def test_a_folder_of_another_user_is_not_used(files: ArtifactFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.artifacts.parts.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="it belongs to user"):
        files.prepare()


def test_no_link_is_followed(files: ArtifactFiles, tmp_path: Path) -> None:
    written(files, b"mine")
    (files.folder / ID).rename(tmp_path / "elsewhere")
    (files.folder / ID).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        files.read(ID, 0)
    written(files, b"anew")  # takes the place of the link
    assert unpack((tmp_path / "elsewhere").read_bytes(), 0, 4) == b"mine"
    assert content(files, 0, 4) == b"anew"


def test_what_is_no_file_of_parts_is_not_waited_for_and_not_read_whole(files: ArtifactFiles) -> None:
    os.mkfifo(files.folder / ID)
    with pytest.raises(OSError, match="Illegal seek"):
        files.read(ID, 0)
    (files.folder / ID).unlink()
    (files.folder / ID).write_bytes(bytes(2 * PART_BYTES))
    assert len(files.read(ID, 0)) == MAX_PACKED_BYTES


def test_a_write_that_fails_leaves_nothing(files: ArtifactFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    written(files, b"old")
    monkeypatch.setattr("forge_tools.artifacts.parts.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        written(files, b"new")
    assert content(files, 0, 3) == b"old"
    assert [path.name for path in files.folder.iterdir()] == [ID]


def test_many_that_write_the_same_at_once_leave_one_whole_file(files: ArtifactFiles) -> None:
    writers = [threading.Thread(target=written, args=(files, b"A" * 50_000)) for _ in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [path.name for path in files.folder.iterdir()] == [ID]
    assert content(files, 0, 50_000) == b"A" * 50_000
