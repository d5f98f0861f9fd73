"""Artifacts between a tool and the engine: over a hop between threads, and over the line of a child."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_tools.artifacts.parts import PART_BYTES, pack
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, SandboxError
from forge_tools.model import ExecutionContext, PageWish
from forge_tools.model.scope import CallScope
from forge_tools.storage import Store
from forge_tools.storage.sqlalchemy_tables import artifact_parts
from tests.unit.workers.child_bench import CLAIM, ID, Bench, Speaker
from workers.artifacts import ArtifactDesk, Message
from workers.lanes.children import MOST_ASKED
from workers.remote_store import RemoteStore, WorkerArtifacts, ask_engine
from workers.services.service import Leadership, keep
from workers.services.upkeep import Expired

BYTES = os.urandom(3 * PART_BYTES + 5)
LIMIT = 4 * PART_BYTES
CONTEXT = ExecutionContext(working_dir=".", session_id="s").within(CallScope(execution_id="e"))
ANYTHING = "0" * 32


async def chunks(data: bytes = BYTES, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.fixture
def desk(tmp_path: Path) -> ArtifactDesk:
    return desk_in(tmp_path, artifact_max_bytes=LIMIT)


def desk_in(folder: Path, **limits: Any) -> ArtifactDesk:
    return ArtifactDesk(Settings(artifact_dir=folder / "artifacts", **limits))


@pytest.fixture
async def remote(store: Store) -> RemoteStore:
    remote = RemoteStore()
    remote.open(store)
    return remote


@pytest.fixture
async def artifacts(desk: ArtifactDesk, remote: RemoteStore) -> WorkerArtifacts:
    return WorkerArtifacts(LIMIT, ask_engine(desk, remote))


def content(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()


async def test_what_is_put_from_another_loop_is_read_from_there(artifacts: WorkerArtifacts, store: Store) -> None:
    def elsewhere() -> tuple[str, bytes]:
        async def use() -> tuple[str, bytes]:
            handle = (await artifacts.put(chunks(), CONTEXT)).handle
            return handle, content(await artifacts.open(handle, CONTEXT))

        return asyncio.run(use())

    handle, data = await asyncio.to_thread(elsewhere)
    assert data == BYTES
    [kept] = await store.artifacts.of_execution("e")
    assert (kept.handle, kept.session_id, kept.size) == (handle, "s", len(BYTES))


async def test_bytes_are_fetched_once_for_many_reads(artifacts: WorkerArtifacts) -> None:
    wanted: list[str] = []

    async def ask(request: Message, context: ExecutionContext) -> Message:
        wanted.append(request["want"])
        return await ask_the_engine(request, context)

    ask_the_engine, artifacts.ask = artifacts.ask, ask
    kept = await artifacts.put(chunks(), CONTEXT)
    for _ in range(3):
        fd = await artifacts.open(kept.handle, CONTEXT)
        assert os.fstat(fd).st_mtime == pytest.approx(kept.created_at.timestamp() if kept.created_at else 0)
        assert content(fd) == BYTES
    assert wanted == ["keep", "find", *["part"] * 4, "find", "find"]


async def test_what_was_fetched_for_one_session_is_not_given_to_another(artifacts: WorkerArtifacts) -> None:
    kept = await artifacts.put(chunks(), CONTEXT)
    os.close(await artifacts.open(kept.handle, CONTEXT))
    for session in ("t", None):
        with pytest.raises(SandboxError, match="This session has no artifact"):
            await artifacts.open(kept.handle, ExecutionContext(working_dir=".", session_id=session))


async def test_more_than_the_limit_is_refused_before_anything_is_stored(
    artifacts: WorkerArtifacts, store: Store
) -> None:
    with pytest.raises(SandboxError, match=f"{LIMIT:,} bytes"):
        await artifacts.put(chunks(bytes(LIMIT + 1)), CONTEXT)
    assert await store.artifacts.of_execution("e") == []


async def test_an_engine_that_is_not_there_is_an_error_with_a_way_out(desk: ArtifactDesk) -> None:
    early = WorkerArtifacts(LIMIT, ask_engine(desk, RemoteStore()))
    with pytest.raises(DatabaseUnavailableError, match="has not opened its database yet"):
        await early.open(f"artifact://{ANYTHING}", CONTEXT)
    late, over = RemoteStore(), threading.Event()

    def engine() -> None:
        async def live() -> None:
            late.open(store_of_nobody)

        asyncio.run(live())
        over.set()

    store_of_nobody: Any = type("Nobody", (), {"artifacts": None})()
    threading.Thread(target=engine).start()
    await asyncio.to_thread(over.wait, 5)
    with pytest.raises(DatabaseUnavailableError, match="has closed its database"):
        await WorkerArtifacts(LIMIT, ask_engine(desk, late)).put(chunks(), CONTEXT)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"want": "steal", "id": ANYTHING, "size": 1},
        {"want": "find", "id": "../../etc/passwd", "size": 1},
        {"want": "part", "id": ANYTHING, "size": 200 << 20, "number": 0},
        {"want": "find", "id": ANYTHING, "size": -1},
        {"want": "find", "id": ANYTHING, "size": "many"},
        {"want": "find", "id": ANYTHING, "size": float("inf")},
        {"want": "part", "id": ANYTHING, "size": 9, "number": -1},
        {"want": "part", "id": ANYTHING, "size": 9, "number": 10**30},
        {"want": "keep", "id": ANYTHING, "size": 9},
        {"want": "keep", "file": 1},
        {"want": "keep", "file": {"fd": 1}},
    ],
)
async def test_a_request_that_none_of_us_wrote_is_refused(
    artifacts: WorkerArtifacts, desk: ArtifactDesk, request_: Message
) -> None:
    answer = await artifacts.ask(request_, CONTEXT)
    assert answer["error"].startswith("Malformed request")


async def test_a_body_asks_over_the_line_of_its_child_and_for_itself_alone(
    artifacts: WorkerArtifacts, desk: ArtifactDesk, store: Store, bench: Bench, child: Speaker
) -> None:
    bench.artifacts = desk, store
    bench.lane.run([replace(CLAIM, context='{"working_dir": ".", "session_id": "s"}')])
    await child.hear()

    async def ask(request: Message, _: ExecutionContext) -> Message:
        files = [request.pop("file").fd] if "file" in request else []
        child.say("asked", *files, number=7, id=ID, attempt=1, artifact=request, has_file=bool(files))
        frame = await child.hear()
        assert frame["answer"] == 7
        return frame["artifact"]

    there = WorkerArtifacts(LIMIT, ask)
    liar = ExecutionContext(working_dir=".", session_id="another's")
    kept = await there.put(chunks(), liar)
    assert content(await there.open(kept.handle, liar)) == BYTES
    assert content(await artifacts.open(kept.handle, CONTEXT)) == BYTES
    with pytest.raises(SandboxError, match="no artifact"):
        await artifacts.open(kept.handle, liar)


async def test_a_child_that_asks_nonsense_or_for_others_is_answered_or_ignored(
    desk: ArtifactDesk, store: Store, bench: Bench, child: Speaker
) -> None:
    bench.artifacts = desk, store
    bench.lane.run([replace(CLAIM, context='{"working_dir": "."}')])
    await child.hear()
    child.say(
        "asked", number=1, id="another execution", attempt=1, artifact={"want": "find", "id": ANYTHING, "size": 0}
    )
    for number, artifact in enumerate(({}, {"want": "keep", "file": "no file"})):
        child.say("asked", number=number + 2, id=ID, attempt=1, artifact=artifact)
        frame = await child.hear()
        assert frame["answer"] == number + 2
        assert frame["artifact"]["error"].startswith("Malformed")
    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)


async def test_a_child_that_asks_very_much_at_once_holds_nobody_up(
    bench: Bench, child: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open = asyncio.Event()

    async def answer(_: Message, __: ExecutionContext) -> Message:
        await is_open.wait()
        return {}

    monkeypatch.setattr(bench, "answer", answer)
    bench.lane.run([replace(CLAIM, context='{"working_dir": "."}')])
    await child.hear()
    for number in range(MOST_ASKED + 3):
        child.say("asked", number=number, id=ID, attempt=1, artifact={})
    refused = [await child.hear() for _ in range(3)]
    assert [frame["answer"] for frame in refused] == [MOST_ASKED, MOST_ASKED + 1, MOST_ASKED + 2]
    assert all(frame["artifact"]["error"].startswith("More than 32") for frame in refused)
    is_open.set()
    assert {(await child.hear())["answer"] for _ in range(MOST_ASKED)} == set(range(MOST_ASKED))
    child.say("asked", number=99, id=ID, attempt=1, artifact={})
    assert await child.hear() == {"answer": 99, "artifact": {}}


async def test_a_folder_that_cannot_be_used_keeps_a_worker_from_starting(tmp_path: Path) -> None:
    made = tmp_path / "there/artifacts"
    ArtifactDesk(Settings(artifact_dir=made))
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o770)
    with pytest.raises(
        ConfigurationError, match=rf"FORGE_ARTIFACT_DIR: {made} cannot be used on this host: .*chmod 700"
    ):
        ArtifactDesk(Settings(artifact_dir=made))


async def test_what_is_found_damaged_is_stored_again_by_the_next_call(
    artifacts: WorkerArtifacts, desk: ArtifactDesk, store: Store
) -> None:
    kept = await artifacts.put(chunks(), CONTEXT)
    damage = artifact_parts.update().where(artifact_parts.c.number == 1).values(data=pack(bytes(PART_BYTES)))
    await store.database.write(lambda connection: connection.execute(damage))
    with pytest.raises(SandboxError, match=f"{kept.handle} is damaged"):
        await artifacts.open(kept.handle, CONTEXT)
    assert (await artifacts.put(chunks(), CONTEXT)).handle == kept.handle
    assert content(await artifacts.open(kept.handle, CONTEXT)) == BYTES


async def test_nobody_makes_what_is_whole_unseen(artifacts: WorkerArtifacts) -> None:
    kept = await artifacts.put(chunks(), CONTEXT)
    await artifacts.ask({"want": "check", "id": kept.id, "size": 0}, CONTEXT)
    assert content(await artifacts.open(kept.handle, CONTEXT)) == BYTES


async def test_lines_are_counted_where_bytes_are_put(artifacts: WorkerArtifacts, store: Store) -> None:
    text = b"".join(b"%06d\n" % number for number in range(100_000))
    kept = await artifacts.put(chunks(text), CONTEXT)
    async with store.database.reading() as connection:
        query = artifact_parts.select().order_by(artifact_parts.c.number)
        breaks = [row.breaks for row in (await connection.execute(query)).all()]
    assert breaks == [text[start : start + PART_BYTES].count(b"\n") for start in range(0, len(text), PART_BYTES)]
    page = await store.artifacts.page(kept, PageWish(offset=70_001, limit=1))
    assert page.data == b"070000\n"


async def test_what_has_expired_is_purged_now_and_then(
    remote: RemoteStore, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.services.upkeep.PURGE_SECONDS", 0.01)
    desk = desk_in(tmp_path, artifact_max_bytes=LIMIT, artifact_ttl=0.001)
    artifacts = WorkerArtifacts(LIMIT, ask_engine(desk, remote))
    await artifacts.put(chunks(), CONTEXT)
    purging = asyncio.create_task(keep(Expired(store), Leadership("any")))
    async with asyncio.timeout(30), store.database.reading() as connection:
        while (await connection.execute(artifact_parts.select())).first() is not None:
            await connection.rollback()
            await asyncio.sleep(0.01)
    purging.cancel()


def test_a_quota_that_holds_no_artifact_is_refused() -> None:
    with pytest.raises(ValueError, match="must be at least artifact_max_bytes"):
        Settings(artifact_quota=1000)
