"""What untrusted children hand over as artifacts: named by what the engine read itself, so nobody else's is spoilt or taken."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forge_tools.config import Settings
from forge_tools.model import ExecutionContext, PageWish
from forge_tools.model.artifacts import Artifact
from forge_tools.model.scope import CallScope
from forge_tools.sandbox.spools import Gathered
from forge_tools.storage import Store, open_store
from forge_tools.storage.sqlalchemy_tables import artifact_parts, artifacts
from tests.contract.test_artifacts import artifact, contents, files, folder, rows
from workers.artifacts import ArtifactDesk, Message
from workers.remote_store import WorkerArtifacts

__all__ = ["folder"]

TEXT = b"".join(b"%06d of the victim\n" % number for number in range(120_000))
FORGED = b"".join(b"%06d of a forger\n" % number for number in range(160_000))[: len(TEXT)]
OF = artifact(TEXT)
MAX_BYTES = 4 << 20

Desk = tuple[ArtifactDesk, Store]


class Caller:
    """A call at the desk, of a session of its own."""

    def __init__(self, desk: Desk, session: str) -> None:
        self._desk, self._store = desk
        scope = CallScope(execution_id=f"of {session}")
        self._context = ExecutionContext(working_dir=".", session_id=session).within(scope)
        self._side = WorkerArtifacts(MAX_BYTES, self.ask)

    async def ask(self, request: Message, _: ExecutionContext | None = None) -> Message:
        return await self._desk.answer(self._store.artifacts, request, self._context)

    async def puts(self, data: bytes) -> Artifact:
        async def chunks() -> AsyncIterator[bytes]:
            yield data

        return await self._side.put(chunks(), self._context)


@pytest.fixture
async def store(migrated_url: str, folder: Path | None) -> AsyncIterator[Store]:
    async with await open_store(migrated_url, artifact_dir=folder) as opened:
        yield opened


@pytest.fixture
async def desk(store: Store, tmp_path: Path) -> Desk:
    limits = {"artifact_max_bytes": MAX_BYTES, "artifact_quota": MAX_BYTES}
    return ArtifactDesk(Settings(**limits, artifact_dir=tmp_path / "artifacts")), store


async def is_unspoilt(store: Store, session: str) -> None:
    """Read a page first: only who reads all of it holds it against its id."""
    found = await store.artifacts.find(OF.id, session)
    assert found is not None
    page = await store.artifacts.page(found, PageWish(offset=1, limit=2))
    assert page.text == "000000 of the victim\n000001 of the victim\n"
    assert await contents(store, found) == TEXT


async def test_what_is_handed_over_is_kept_under_what_was_read(desk: Desk, store: Store) -> None:
    kept = await Caller(desk, "s").puts(TEXT)
    assert (kept.id, kept.size) == (OF.id, OF.size)
    assert await rows(store) == (1, 3, 1)
    assert await store.artifacts.of_execution("of s") == [await store.artifacts.find(OF.id, "s")]


async def test_an_id_that_a_child_claims_counts_for_nothing(desk: Desk, store: Store) -> None:
    await Caller(desk, "victim").puts(TEXT)
    thief = Caller(desk, "thief")
    claim = {"want": "keep", "id": OF.id, "size": OF.size}
    for file in ({}, {"file": 0}, {"file": OF.id}, {"file": None}):
        assert (await thief.ask(claim | file))["error"].startswith("Malformed request")
    assert (await thief.puts(FORGED)).id == artifact(FORGED).id
    assert await store.artifacts.find(OF.id, "thief") is None
    assert await thief.ask({"want": "part", "id": OF.id, "size": OF.size, "number": 0}) == {}
    await is_unspoilt(store, "victim")


async def test_who_hands_over_the_same_bytes_shares_what_is_there_whole_or_not(desk: Desk, store: Store) -> None:
    await asyncio.gather(*(Caller(desk, f"s{number}").puts(TEXT) for number in range(4)))
    for number in range(4):
        await is_unspoilt(store, f"s{number}")
    assert await rows(store) == (1, 3, 4)


async def test_what_lost_its_bytes_is_stored_again_by_who_has_them(
    desk: Desk, store: Store, folder: Path | None
) -> None:
    await Caller(desk, "s").puts(TEXT)
    if folder is None:
        await store.database.write(lambda c: c.execute(artifact_parts.delete().where(artifact_parts.c.number == 1)))
    else:
        (folder / OF.id).unlink()
    await Caller(desk, "t").puts(TEXT)
    await is_unspoilt(store, "s")


async def test_what_others_delete_while_it_is_kept_is_kept_all_the_same(
    desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = store.artifacts.begin

    async def begun_and_deleted(*arguments: object) -> Artifact | None:
        monkeypatch.undo()
        done = await begin(*arguments)  # type: ignore[arg-type]  # whatever keep() passes
        await store.database.write(lambda connection: connection.execute(artifacts.delete()))
        return done

    monkeypatch.setattr(store.artifacts, "begin", begun_and_deleted)
    await Caller(desk, "s").puts(TEXT)
    await is_unspoilt(store, "s")


async def test_what_children_keep_counts_for_their_own_session_alone(
    desk: Desk, store: Store, folder: Path | None
) -> None:
    victim, greedy = Caller(desk, "victim"), Caller(desk, "greedy")
    await victim.puts(TEXT)
    kept = [await greedy.puts(TEXT[number:]) for number in range(3)]
    found = [await store.artifacts.find(one.id, "greedy") is not None for one in kept]
    assert found == [False, False, True], "two are more than the quota"
    await is_unspoilt(store, "victim")
    assert await store.artifacts.purge() == 1, "the first of them is the victim's, too"
    assert len(files(folder)) == (2 if folder else 0)


async def test_more_than_a_part_may_have_leaves_nothing(desk: Desk, store: Store, folder: Path | None) -> None:
    answers = [await Caller(desk, "s").ask({"want": "keep", "file": holes(size)}) for size in (200 << 20, 9)]
    assert "The output is larger than" in answers[0]["error"]
    assert answers[1]["size"] == 9
    assert await rows(store) == (1, 1, 1)
    assert len(files(folder)) == (1 if folder else 0)


def holes(size: int) -> Gathered:
    file = Gathered()
    os.ftruncate(file.fd, size)
    return file
