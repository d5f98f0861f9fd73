"""What untrusted children send of artifacts: nobody else's is spoilt by it, and nothing of it is kept before it is proven."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forge_tools.artifacts.parts import PART_BYTES, PackedPart, count_parts, pack
from forge_tools.config import Settings
from forge_tools.errors import SandboxError
from forge_tools.model import Artifact, ExecutionContext, PageWish
from forge_tools.sandbox.paths.journal import EXECUTION_ID
from forge_tools.storage import Store, open_store
from forge_tools.storage.artifacts import Keeping, StoredArtifacts
from forge_tools.storage.sqlalchemy_tables import artifact_parts
from tests.contract.test_artifacts import artifact, contents, files, folder, rows
from workers.artifacts import MOST_UNPROVEN, ArtifactDesk, Message, Proofs
from workers.remote_store import ChildArtifacts, WorkerArtifacts

__all__ = ["folder"]

TEXT = b"".join(b"%06d of the victim\n" % number for number in range(120_000))
FORGED = b"".join(b"%06d of a forger\n" % number for number in range(160_000))[: len(TEXT)]
assert len(FORGED) == len(TEXT)
OF = artifact(TEXT)
WHAT = {"id": OF.id, "size": OF.size}
MAX_BYTES = 4 << 20
KEEPING = Keeping(ttl=3600.0, quota=MAX_BYTES)


Desk = tuple[ArtifactDesk, Store]


class Caller:
    """A call at the desk, of a session of its own; code in a child is not trusted."""

    def __init__(self, desk: Desk, session: str, *, is_child: bool) -> None:
        self._desk, store = desk
        self._stored = store.artifacts
        self._is_child = is_child
        self._context = ExecutionContext(working_dir=".", session_id=session, metadata={EXECUTION_ID: f"of {session}"})
        self._own = replace(OF, session_id=session, execution_id=f"of {session}")
        self._proofs = Proofs()
        self.side = (ChildArtifacts if is_child else WorkerArtifacts)(MAX_BYTES, self._ask)

    async def _ask(self, request: Message, _: ExecutionContext) -> Message:
        if self._is_child:
            return await self._desk.answer(self._stored, request, self._context, self._proofs)
        return await self._desk.answer(self._stored, request, self._context)

    async def says(self, want: str, **what: Any) -> Message:
        answer = await self._ask({"want": want, **WHAT, **what}, self._context)
        if "error" in answer:
            raise SandboxError(answer["error"], answer["code"])
        return answer

    async def adds(self, data: bytes, *, cut_at: tuple[int, ...] | None = None) -> None:
        """Begin, and send these bytes, cut as they should be or elsewhere."""
        if not self._is_child:
            assert await self._stored.begin(self._own, KEEPING) is None
            cut = (data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES))
            for at, one in enumerate(cut):
                assert await self._stored.add(OF.id, PackedPart(at, pack(one)))
            return
        assert await self.says("begin") == {}
        cuts = cut_at or (*range(0, len(data), PART_BYTES), len(data))
        for number, (start, end) in enumerate(pairwise(cuts)):
            await self.says("add", number=number, data=data[start:end])

    async def finishes(self) -> bool:
        if self._is_child:
            return bool(await self.says("finish"))
        return await self._stored.finish(self._own, KEEPING) is not None

    async def puts(self, data: bytes) -> Artifact:
        async def chunks() -> AsyncIterator[bytes]:
            yield data

        return await self.side.put(chunks(), self._context)


@pytest.fixture
async def store(migrated_url: str, folder: Path | None) -> AsyncIterator[Store]:
    async with await open_store(migrated_url, artifact_dir=folder) as opened:
        yield opened


@pytest.fixture
async def desk(store: Store) -> Desk:
    return ArtifactDesk(Settings(artifact_max_bytes=MAX_BYTES, artifact_quota=MAX_BYTES)), store


async def is_unspoilt(store: Store, session: str) -> None:
    """Read a page first: only who reads all of it holds it against its id."""
    found = await store.artifacts.find(OF.id, session)
    assert found is not None
    page = await store.artifacts.page(found, PageWish(offset=1, limit=2))
    assert page.text == "000000 of the victim\n000001 of the victim\n"
    assert await contents(store, found) == TEXT


@pytest.mark.parametrize("is_child", [True, False])
async def test_other_bytes_from_a_child_spoil_nothing_that_somebody_else_is_about_to_finish(
    desk: Desk, store: Store, *, is_child: bool
) -> None:
    victim, forger = Caller(desk, "victim", is_child=is_child), Caller(desk, "forger", is_child=True)
    await victim.adds(TEXT)
    await forger.adds(FORGED)
    assert await victim.finishes()
    await is_unspoilt(store, "victim")


@pytest.mark.parametrize("is_child", [True, False])
async def test_a_child_that_is_refused_harms_nobody_who_comes_before_or_after(
    desk: Desk, store: Store, *, is_child: bool
) -> None:
    before, after = (Caller(desk, session, is_child=is_child) for session in ("before", "after"))
    forger = Caller(desk, "forger", is_child=True)
    await before.adds(TEXT)
    await forger.adds(FORGED)
    with pytest.raises(SandboxError, match=f"{OF.handle} is not kept: the bytes sent do not match its id"):
        await forger.says("finish")
    assert await before.finishes()
    assert await store.artifacts.find(OF.id, "forger") is None
    await after.puts(TEXT)
    for session in ("before", "after"):
        await is_unspoilt(store, session)


async def test_the_right_bytes_cut_elsewhere_are_refused(desk: Desk, store: Store) -> None:
    forger = Caller(desk, "forger", is_child=True)
    assert count_parts(len(TEXT)) == 3
    with pytest.raises(SandboxError, match="1,048,569 bytes for part 0"):
        await forger.adds(TEXT, cut_at=(0, PART_BYTES - 7, 2 * PART_BYTES - 7, len(TEXT)))
    assert await forger.says("finish") == {}
    assert await rows(store) == (0, 0, 0)
    await Caller(desk, "victim", is_child=True).puts(TEXT)
    await is_unspoilt(store, "victim")


async def test_what_a_child_sends_is_kept_nowhere_before_it_is_proven(
    desk: Desk, store: Store, folder: Path | None
) -> None:
    child = Caller(desk, "s", is_child=True)
    await child.adds(TEXT)
    assert await rows(store) == (0, 0, 0)
    assert files(folder) == []
    assert (await child.says("finish"))["size"] == len(TEXT)
    assert await rows(store) == (1, 3, 1)
    assert await store.artifacts.of_execution("of s") == [await store.artifacts.find(OF.id, "s")]


async def test_bytes_that_turn_out_wrong_leave_nothing(desk: Desk, store: Store, folder: Path | None) -> None:
    child = Caller(desk, "s", is_child=True)
    await child.adds(FORGED)
    with pytest.raises(SandboxError, match="bytes sent do not match"):
        await child.says("finish")
    assert await rows(store) == (0, 0, 0)
    assert files(folder) == []
    assert await child.says("finish") == {}, "as if it had never begun"


async def test_a_child_that_begins_very_many_pushes_out_nobody_elses(desk: Desk, store: Store) -> None:
    victim, forger = Caller(desk, "victim", is_child=True), Caller(desk, "forger", is_child=True)
    await victim.adds(TEXT)
    for number in range(3 * MOST_UNPROVEN):
        await forger.says("begin", id=f"{number:032}", size=1)
    assert await rows(store) == (0, 0, 0)
    assert await victim.says("finish")
    await is_unspoilt(store, "victim")


async def test_a_child_that_only_knows_the_id_keeps_nothing_for_longer(desk: Desk, store: Store) -> None:
    kept = await Caller(desk, "victim", is_child=True).puts(TEXT)
    desk = (
        ArtifactDesk(Settings(artifact_max_bytes=MAX_BYTES, artifact_quota=MAX_BYTES, artifact_ttl=10 * 86_400)),
        store,
    )
    await Caller(desk, "forger", is_child=True).says("begin")
    found = await store.artifacts.find(OF.id, "victim")
    assert found is not None
    assert found.expires_at == kept.expires_at
    again = await Caller(desk, "victim", is_child=True).puts(TEXT)
    assert again.expires_at is not None
    assert kept.expires_at is not None
    assert (again.expires_at - kept.expires_at).days >= 2


async def test_a_child_whose_artifact_lost_a_file_sends_it_again(desk: Desk, store: Store, folder: Path | None) -> None:
    child = Caller(desk, "s", is_child=True)
    await child.puts(TEXT)
    if folder is None:
        await store.database.write(lambda c: c.execute(artifact_parts.delete().where(artifact_parts.c.number == 1)))
    else:
        next(path for path in files(folder) if path.name == "1").unlink()
    await child.puts(TEXT)
    await is_unspoilt(store, "s")


async def test_a_child_that_others_outrun_while_its_bytes_are_kept_shares_what_they_kept(
    desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, quick, add = Caller(desk, "slow", is_child=True), Caller(desk, "quick", is_child=False), StoredArtifacts.add

    async def outrun(self: StoredArtifacts, *part: Any) -> bool:
        monkeypatch.undo()
        await quick.puts(TEXT)
        return await add(self, *part)

    await child.adds(TEXT)
    monkeypatch.setattr(StoredArtifacts, "add", outrun)
    assert await child.says("finish")
    for session in ("slow", "quick"):
        await is_unspoilt(store, session)


async def test_whatever_forgers_send_at_once_who_is_honest_keeps_what_he_put(desk: Desk, store: Store) -> None:
    async def forges(number: int) -> None:
        forger = Caller(desk, f"forger {number}", is_child=True)
        for _ in range(10):
            with suppress(SandboxError):
                await forger.adds(FORGED)
                await forger.says("finish")

    honest = [Caller(desk, f"honest {number}", is_child=number % 2 == 0) for number in range(4)]
    await asyncio.gather(*(one.puts(TEXT) for one in honest), *(forges(number) for number in range(4)))
    for number in range(4):
        await is_unspoilt(store, f"honest {number}")
        assert await store.artifacts.find(OF.id, f"forger {number}") is None
    assert await rows(store) == (1, 3, 4)


async def test_what_children_keep_counts_for_their_own_session_alone(desk: Desk, store: Store) -> None:
    victim, greedy = Caller(desk, "victim", is_child=True), Caller(desk, "greedy", is_child=True)
    await victim.puts(TEXT)
    kept = [await greedy.puts(TEXT[number:]) for number in range(3)]
    found = [await store.artifacts.find(one.id, "greedy") is not None for one in kept]
    assert found == [False, False, True], "two are more than the quota"
    await is_unspoilt(store, "victim")
