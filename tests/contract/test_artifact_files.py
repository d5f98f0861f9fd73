"""The bytes of artifacts: compressed, in rows or in files, read page by page; and the errors if they are missing."""

import os
import resource
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import func, select

from forge_tools.artifacts.parts import DRAFT_SECONDS, MAX_PACKED_BYTES, PART_BYTES, ArtifactFiles, pack, write_at
from forge_tools.errors import ArtifactDamagedError, ArtifactFolderError, ArtifactNotFoundError
from forge_tools.model import PageWish
from forge_tools.model.artifacts import Artifact
from forge_tools.storage import Store, open_store
from forge_tools.storage.sqlalchemy_tables import artifact_parts, artifacts
from tests.contract.test_artifacts import BYTES, GONE, KEEPING, LONG, artifact, contents, draft_of, files, put, rows

LINES = [f"{number:06} {'-' * 290}\n".encode() for number in range(16_000)]
TEXT = b"".join(LINES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "artifacts"
    ArtifactFiles(made).prepare()
    return made


@pytest.fixture
async def store(migrated_url: str, folder: Path) -> AsyncIterator[Store]:
    async with await open_store(migrated_url, artifact_dir=folder) as opened:
        yield opened


async def bytes_in_rows(store: Store) -> int:
    async with store.database.reading() as connection:
        return int(await connection.scalar(select(func.coalesce(func.sum(func.length(artifact_parts.c.data)), 0))) or 0)


def overwrite(folder: Path, of: Artifact, number: int, data: bytes) -> None:
    """Damage one part of a file."""
    with (folder / of.id).open("r+b") as file:
        write_at(file.fileno(), data, number * MAX_PACKED_BYTES)


async def test_what_is_kept_is_compressed_in_rows(migrated_url: str) -> None:
    async with await open_store(migrated_url) as store:
        await put(store, TEXT)
        assert 0 < await bytes_in_rows(store) < len(TEXT) / 5


async def test_what_is_kept_in_a_folder_is_compressed_there_and_the_database_does_not_grow(
    store: Store, folder: Path
) -> None:
    kept = await put(store, TEXT)
    assert await bytes_in_rows(store) == 0
    assert [path.name for path in files(folder)] == [kept.id]
    assert 0 < sum(path.stat().st_blocks * 512 for path in files(folder)) < len(TEXT) / 5


@pytest.mark.parametrize("is_in_files", [True, False])
async def test_a_page_is_read_without_the_parts_before_it(
    migrated_url: str, folder: Path, *, is_in_files: bool
) -> None:
    async with await open_store(migrated_url, artifact_dir=folder if is_in_files else None) as store:
        kept = await put(store, TEXT)
        if is_in_files:
            overwrite(folder, kept, 0, b"not looked at")
        else:
            damage = artifact_parts.update().where(artifact_parts.c.number == 0).values(data=b"not looked at")
            await store.database.write(lambda connection: connection.execute(damage))
        page = await store.artifacts.page(kept, PageWish(offset=12_001, limit=3))
        assert page.data == b"".join(LINES[12_000:12_003])
        assert (page.next, page.size) == ({"offset": 12_004}, len(TEXT))
        with pytest.raises(ArtifactDamagedError, match=f"{kept.handle} is damaged"):
            await store.artifacts.page(kept, PageWish())


async def test_lines_that_nobody_counted_are_found_all_the_same(store: Store) -> None:
    kept = await put(store, TEXT)
    older = artifact_parts.update().values(breaks=None)
    await store.database.write(lambda connection: connection.execute(older))
    page = await store.artifacts.page(kept, PageWish(offset=12_001, limit=3))
    assert page.data == b"".join(LINES[12_000:12_003])


async def test_a_missing_file_is_said_and_comes_again_with_the_call(store: Store, folder: Path) -> None:
    kept = await put(store, BYTES)
    (folder / kept.id).unlink()
    with pytest.raises(ArtifactDamagedError, match=f"{kept.handle} is damaged: its file is missing in {folder} "):
        await contents(store, kept)
    await put(store, BYTES, session="other")
    assert await contents(store, kept) == BYTES


@pytest.mark.parametrize("damage", [None, b"no zlib", pack(b"other")])
async def test_a_file_of_other_bytes_is_said_and_comes_again_once_it_was_seen(
    store: Store, folder: Path, damage: bytes | None
) -> None:
    kept = await put(store, BYTES)
    if damage is None:
        os.truncate(folder / kept.id, 3 * MAX_PACKED_BYTES)
    else:
        overwrite(folder, kept, 3, damage)
    with pytest.raises(ArtifactDamagedError, match=f"{kept.handle} is damaged"):
        await contents(store, kept)
    assert await store.artifacts.find(kept.id, "s") is None
    await put(store, BYTES)
    assert await contents(store, kept) == BYTES


async def test_bytes_of_the_right_length_are_still_held_against_the_handle(store: Store, folder: Path) -> None:
    kept = await put(store, BYTES)
    overwrite(folder, kept, 1, pack(bytes(PART_BYTES)))
    assert (await store.artifacts.page(kept, PageWish(byte=PART_BYTES, max_bytes=3))).data == bytes(3)
    with pytest.raises(ArtifactDamagedError, match=f"{kept.handle} is damaged: its bytes do not match"):
        await contents(store, kept)


async def test_what_is_not_damaged_stays(store: Store) -> None:
    kept = await put(store, BYTES)
    await store.artifacts.check(kept)
    assert await store.artifacts.find(kept.id, "s") is not None


async def test_a_process_that_does_not_know_the_folder_says_so_and_deletes_nothing(
    store: Store, folder: Path, migrated_url: str
) -> None:
    kept, gone = await put(store, BYTES), await put(store, b"old", GONE)
    async with await open_store(migrated_url) as elsewhere:
        with pytest.raises(ArtifactFolderError, match=f"{kept.handle} is kept in a folder.*FORGE_ARTIFACT_DIR"):
            await contents(elsewhere, kept)
        await put(elsewhere, b"in a row", GONE)
        assert await elsewhere.artifacts.purge() == 1
    assert (folder / gone.id).exists()
    assert await store.artifacts.purge() == 1
    assert not (folder / gone.id).exists()


async def test_what_was_kept_in_rows_before_there_was_a_folder_is_read_and_goes_like_the_rest(
    store: Store, migrated_url: str
) -> None:
    async with await open_store(migrated_url) as before:
        kept, gone = await put(before, BYTES), await put(before, b"old", GONE)
    assert await contents(store, kept) == BYTES
    assert (await put(store, BYTES, session="other")).id == kept.id
    assert await store.artifacts.purge() == 1
    with pytest.raises(ArtifactNotFoundError):
        await store.artifacts.named(gone.id)
    assert await rows(store) == (1, 4, 2)


async def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(store: Store, folder: Path) -> None:
    draft = await draft_of(store, BYTES)
    folder.chmod(0o755)
    with pytest.raises(ArtifactFolderError, match=rf"{folder} \(FORGE_ARTIFACT_DIR\) cannot be used: .* chmod 700"):
        await store.artifacts.keep(artifact(BYTES), KEEPING, draft)
    folder.rename(folder.with_name("away"))
    with pytest.raises(ArtifactFolderError, match="it does not exist"):
        await store.artifacts.keep(artifact(BYTES), KEEPING, draft)
    assert (await rows(store))[1:] == (0, 0)


async def test_a_folder_that_is_deleted_midway_is_an_error_for_who_reads_and_who_writes(
    store: Store, folder: Path
) -> None:
    reading = store.artifacts.read(await put(store, LONG))
    await anext(reading)
    shutil.rmtree(folder)
    with pytest.raises(ArtifactFolderError, match="does not exist"):
        async for _ in reading:
            pass
    with pytest.raises(ArtifactFolderError, match="does not exist"):
        await put(store, b"other")


async def test_one_that_cannot_be_deleted_is_put_off_and_keeps_no_other_from_going(store: Store, folder: Path) -> None:
    stuck = await put(store, b"stuck", replace(GONE, ttl=-9.0))
    gone = await put(store, b"old", GONE)
    place = folder / stuck.id
    place.unlink()
    place.mkdir()
    assert await store.artifacts.purge(most=1) == 0
    assert await store.artifacts.purge(most=1) == 1
    with pytest.raises(ArtifactNotFoundError):
        await store.artifacts.named(stuck.id)
    assert not (folder / gone.id).exists()
    place.rmdir()
    assert (await put(store, b"stuck")).id == stuck.id


async def test_what_was_gathered_and_not_kept_leaves_nothing(store: Store, folder: Path) -> None:
    draft = await draft_of(store, BYTES)
    [file] = files(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    draft.close()
    assert files(folder) == []


async def test_what_lost_its_bytes_before_it_was_visible_is_not_said_to_be_kept(store: Store, folder: Path) -> None:
    draft = await draft_of(store, BYTES)
    [file] = files(folder)
    file.unlink()
    assert await store.artifacts.keep(artifact(BYTES), KEEPING, draft) is None
    assert await store.artifacts.find(draft.id, "s") is None


async def test_what_a_killed_process_left_is_deleted_after_an_hour(store: Store, folder: Path) -> None:
    for name in (".forge-draft-killed", ".forge-draft-running", ".profile"):
        (folder / name).touch()
    for name in (".forge-draft-killed", ".profile"):
        os.utime(folder / name, (0, time.time() - DRAFT_SECONDS - 60))
    kept = await put(store, BYTES)
    await store.artifacts.purge()
    assert {path.name for path in files(folder)} == {".forge-draft-running", ".profile", kept.id}


async def test_a_file_whose_process_was_killed_before_it_was_visible_is_deleted(store: Store, folder: Path) -> None:
    new = artifact(BYTES)
    assert await store.artifacts.begin(new, KEEPING) is None
    ArtifactFiles(folder).publish(await draft_of(store, BYTES), new.id)
    assert await store.artifacts.find(new.id, "s") is None
    expire = artifacts.update().values(expires_at=artifacts.c.created_at)
    await store.database.write(lambda connection: connection.execute(expire))
    assert await store.artifacts.purge() == 1
    assert files(folder) == []


async def test_a_folder_that_is_full_midway_is_named_and_what_was_begun_is_seen_by_nobody(
    migrated_postgres: str, folder: Path, tmp_path: Path
) -> None:
    data = TEXT[:PART_BYTES] + os.urandom(PART_BYTES)  # of which the first part is packed to little
    (tmp_path / "large.bin").write_bytes(data)
    async with await open_store(migrated_postgres, artifact_dir=folder) as store:
        upload = partial(
            store.artifacts.upload, tmp_path / "large.bin", ttl=60, quota=1 << 30, limit=1 << 30, session_id="s"
        )
        with (
            files_of_at_most(PART_BYTES // 2),
            pytest.raises(ArtifactFolderError, match="cannot be used: File too large"),
        ):
            await upload()
        assert files(folder) == []
        with pytest.raises(ArtifactNotFoundError):
            await store.artifacts.named(artifact(data).id)
        kept = await upload()
        assert await contents(store, kept) == data


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
