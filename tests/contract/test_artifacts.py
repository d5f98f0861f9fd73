"""Artifacts in SQL and in a folder: whole or not there, one copy of the same bytes, each session its own; on every database."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pytest

from forge_tools.artifacts.parts import PART_BYTES, ArtifactFiles, Draft, PackedPart, pack
from forge_tools.artifacts.reader import PartReader
from forge_tools.errors import ArtifactDamagedError, ArtifactNotFoundError, StorageError
from forge_tools.model import File
from forge_tools.model.artifacts import TEXT, Artifact
from forge_tools.storage import Store, open_store
from forge_tools.storage.artifacts import Keeping, session_key
from forge_tools.storage.sqlalchemy_tables import artifact_owners, artifact_parts, artifacts
from tests.waiting import within

KEEPING = Keeping(ttl=3600.0, quota=1 << 30)
GONE = Keeping(ttl=-1.0, quota=1 << 30)
BYTES = b"\xff".join(b"%d" % number for number in range(PART_BYTES))[: 3 * PART_BYTES + 17]
"""No text, each part another, and soon packed."""
LONG = bytes(3 * PART_BYTES)


@pytest.fixture(params=["rows", "files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where the bytes are."""
    if request.param == "rows":
        return None
    made = tmp_path / "artifacts"
    ArtifactFiles(made).prepare()
    return made


@pytest.fixture
async def store(migrated_url: str, folder: Path | None) -> AsyncIterator[Store]:
    async with await open_store(migrated_url, artifact_dir=folder) as opened:
        yield opened


def artifact(data: bytes, session: str | None = "s", execution: str | None = "e") -> Artifact:
    digest = blake2b(data, digest_size=16)
    return Artifact(id=digest.hexdigest(), size=len(data), session_id=session, execution_id=execution)


async def put(store: Store, data: bytes, keeping: Keeping = KEEPING, **facts: str | None) -> Artifact:
    done = await store.artifacts.keep(artifact(data, **facts), keeping, await draft_of(store, data))
    assert done is not None
    return done


async def draft_of(store: Store, data: bytes) -> Draft:
    draft = await store.artifacts.draft(TEXT)
    draft.add(data)
    draft.end()
    return draft


def files(folder: Path | None) -> list[Path]:
    """All files of the folder, none where there is no folder."""
    return [] if folder is None else [path for path in folder.rglob("*") if path.is_file()]


async def rows(store: Store) -> tuple[int, int, int]:
    async with store.database.reading() as connection:
        counts = [
            len((await connection.execute(t.select())).all()) for t in (artifacts, artifact_parts, artifact_owners)
        ]
    return counts[0], counts[1], counts[2]


async def contents(store: Store, of: Artifact) -> bytes:
    return b"".join([chunk async for chunk in store.artifacts.read(of)])


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, len(BYTES)])
async def test_what_was_put_is_read_byte_for_byte(store: Store, size: int) -> None:
    kept = await put(store, BYTES[:size])
    found = await store.artifacts.find(kept.id, "s")
    assert found is not None
    assert (found.size, found.session_id, found.execution_id) == (size, "s", "e")
    assert found.created_at is not None
    assert found.expires_at is not None
    assert 3590 < (found.expires_at - found.created_at).total_seconds() < 3610
    assert await contents(store, found) == BYTES[:size]
    assert await store.artifacts.of_execution("e") == [found]


async def test_the_same_bytes_are_kept_once_and_for_longer(store: Store) -> None:
    first = await put(store, BYTES, replace(KEEPING, ttl=60.0))
    again = await put(store, BYTES, execution="later")
    assert first.expires_at is not None
    assert again.expires_at is not None
    assert (again.expires_at - first.expires_at).total_seconds() > 3000
    assert await rows(store) == (1, 4, 1)
    shorter = await put(store, BYTES, replace(KEEPING, ttl=60.0))
    assert shorter.expires_at == again.expires_at


@pytest.mark.parametrize("other", [None, "", "t", "s" * 10_000, "\x00\ud800"])
async def test_a_session_reads_only_what_it_kept(store: Store, other: str | None) -> None:
    kept = await put(store, BYTES)
    assert await store.artifacts.find(kept.id, other) is None
    await put(store, BYTES, session=other)
    assert await store.artifacts.find(kept.id, other) is not None
    assert await store.artifacts.find(kept.id, "s") is not None
    assert await rows(store) == (1, 4, 2)


async def test_nothing_is_seen_before_it_is_whole(store: Store) -> None:
    new = artifact(BYTES)
    assert await store.artifacts.begin(new, KEEPING) is None
    for number in (3, 0, 1):
        assert await store.artifacts.add(new.id, PackedPart(number, pack(b"x")))
        assert await store.artifacts.finish(new, KEEPING) is None
        assert await store.artifacts.find(new.id, "s") is None
        with pytest.raises(ArtifactNotFoundError):
            await store.artifacts.named(new.id)
    assert await store.artifacts.add(new.id, PackedPart(2, pack(b"x")))
    assert await store.artifacts.finish(new, KEEPING) is not None
    assert not await store.artifacts.add(new.id, PackedPart(2, pack(b"late")))


async def test_two_that_keep_the_same_at_once_share_one_copy(
    store: Store, migrated_url: str, folder: Path | None
) -> None:
    async with await open_store(migrated_url, artifact_dir=folder) as other:
        kept = await asyncio.gather(*(put(one, BYTES, session=f"s{n}") for n in range(3) for one in (store, other)))
    assert {one.id for one in kept} == {artifact(BYTES).id}
    assert await rows(store) == (1, 4, 3)
    assert len(files(folder)) == (1 if folder else 0)
    assert await contents(store, kept[0]) == BYTES


async def test_a_part_that_is_pruned_while_it_is_saved_leaves_no_half_of_a_file(store: Store, tmp_path: Path) -> None:
    expire = artifacts.update().values(expires_at=artifacts.c.created_at)

    async def pruned(handle: str) -> AsyncIterator[bytes]:
        async for chunk in store.artifacts.contents(handle):
            yield chunk
            await store.database.write(lambda connection: connection.execute(expire))
            await store.artifacts.purge()

    part = File(name="large.bin", uri=(await put(store, LONG)).handle)
    with pytest.raises(StorageError, match="expired while it was being read"):
        await PartReader(pruned).save(part, tmp_path / "saved")
    assert list((tmp_path / "saved").iterdir()) == []


async def test_what_has_expired_is_gone_at_once_and_purged_later(store: Store, folder: Path | None) -> None:
    stays, goes = await put(store, BYTES), await put(store, b"old", GONE)
    assert await store.artifacts.find(goes.id, "s") is None
    assert await store.artifacts.purge() == 1
    assert await store.artifacts.purge() == 0
    assert await rows(store) == (1, 4, 1)
    assert len(files(folder)) == (1 if folder else 0)
    assert await contents(store, stays) == BYTES


async def test_what_was_never_finished_is_purged_with_its_parts(
    store: Store, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge_tools.storage.artifacts.UPLOAD_SECONDS", -1.0)
    new = artifact(BYTES)
    await store.artifacts.begin(new, KEEPING)
    await store.artifacts.add(new.id, PackedPart(0, pack(b"x")))
    assert await store.artifacts.purge() == 1
    assert not await store.artifacts.add(new.id, PackedPart(1, pack(b"x"))), "parts of what is gone would stay for ever"
    assert await store.artifacts.finish(new, KEEPING) is None
    assert await rows(store) == (0, 0, 0)
    assert files(folder) == []


async def test_what_is_kept_again_in_time_is_not_purged(store: Store) -> None:
    await put(store, BYTES, GONE)
    again = await put(store, BYTES)
    assert await store.artifacts.purge() == 0
    assert await contents(store, again) == BYTES


async def test_a_session_over_its_quota_loses_what_it_kept_first(store: Store) -> None:
    small = replace(KEEPING, quota=2500)
    mine = [await put(store, os.urandom(1000), small, session="other") for _ in range(4)]
    await put(store, b"of another session")
    found = [await store.artifacts.find(kept.id, "other") is not None for kept in mine]
    assert found == [False, False, True, True]
    assert await store.artifacts.purge() == 2
    assert (await rows(store))[0] == 3


async def test_what_another_session_kept_too_outlives_an_eviction(store: Store) -> None:
    small = replace(KEEPING, quota=1500)
    shared = await put(store, BYTES[:1000], small)
    await put(store, BYTES[:1000], small, session="other")
    await put(store, BYTES[1000:2000], small)
    assert await store.artifacts.find(shared.id, "s") is None
    assert await store.artifacts.find(shared.id, "other") is not None
    assert await store.artifacts.purge() == 0


async def test_whatever_happens_at_once_what_is_found_is_whole_and_nothing_stays_behind(
    store: Store, migrated_url: str, folder: Path | None
) -> None:
    pool = [random.Random(number).randbytes(PART_BYTES * (number % 3) + 900) for number in range(6)]
    tight = replace(KEEPING, quota=PART_BYTES * 4)
    read = 0

    async def work(one: Store, seed: int) -> None:
        nonlocal read
        chance = random.Random(seed)
        for _ in range(15):
            data, session = chance.choice(pool), f"s{chance.randrange(3)}"
            match chance.randrange(4):
                case 0 | 1:
                    await put_or_give_up(one, data, chance.choice((tight, KEEPING, GONE)), session)
                case 2:
                    await one.artifacts.purge()
                case 3 if found := await one.artifacts.find(artifact(data).id, session):
                    with suppress(StorageError):  # it expired between two parts
                        assert await contents(one, found) == data
                        read += 1

    async with await open_store(migrated_url, artifact_dir=folder) as other:
        await asyncio.gather(*(work(one, seed) for seed, one in enumerate((store, other) * 3)))
    assert read
    await store.database.write(
        lambda connection: connection.execute(artifacts.update().values(expires_at=artifacts.c.created_at))
    )
    time_left = within(60, "there is always more to purge")
    while await store.artifacts.purge() and next(time_left):
        pass
    assert await rows(store) == (0, 0, 0)
    assert files(folder) == []


async def put_or_give_up(store: Store, data: bytes, keeping: Keeping, session: str) -> None:
    with await draft_of(store, data) as draft:  # closed here, not when Python collects it
        await store.artifacts.keep(artifact(data, session), keeping, draft)


async def test_damaged_bytes_are_refused(store: Store) -> None:
    new = artifact(b"right")
    await store.artifacts.keep(new, KEEPING, await draft_of(store, b"wrong"))
    with pytest.raises(ArtifactDamagedError, match=f"{new.handle} is damaged"):
        await contents(store, new)


def test_the_key_of_a_session_fits_an_index() -> None:
    assert session_key(None) == ""
    assert len(session_key("x" * 100_000)) == 32
