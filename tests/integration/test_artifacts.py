"""Outputs over the limit on real workers: kept by one host, read from another, discarded if the writer is killed half way."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.artifacts.parts import DRAFT_SECONDS, PART_BYTES, pack
from forge_tools.client import ExecutorClient
from forge_tools.errors import ArtifactNotFoundError
from forge_tools.model import ExecutionContext, PageWish, ToolResult
from forge_tools.storage import migrate, open_store
from forge_tools.storage.artifacts import Keeping
from forge_tools.storage.sqlalchemy_tables import artifact_parts, artifacts
from tests.contract.test_artifacts import artifact
from tests.fleet import ROOT, Fleet, warm_worker
from tests.migrated import database, migrated
from tests.waiting import wait_until, within

LINES = [f"{number:06} {'needle' if number % 10_000 == 7 else 'hay'} é{'-' * 58}" for number in range(70_000)]
TEXT = "\n".join(LINES)

PUTS = """
import asyncio, os, sys
from pathlib import Path
from forge_tools.config import Settings
from forge_tools.model import ExecutionContext
from forge_tools.storage import open_store
from workers.artifacts import ArtifactDesk
from workers.remote_store import WorkerArtifacts

async def main():
    async def chunks():
        for number in range(60):
            yield bytes([number]) * (1 << 18)

    folder = Path(sys.argv[2]) if sys.argv[2:] else None
    desk = ArtifactDesk(Settings.load(database_url=sys.argv[1], artifact_dir=folder))
    async with await open_store(sys.argv[1], artifact_dir=folder) as store:
        async def ask(request, context):
            return await desk.answer(store.artifacts, request, context)

        def stops(work, when):
            async def step(*arguments):
                if when(*arguments):
                    print("half way", flush=True)
                    await asyncio.sleep(600)
                return await work(*arguments)

            return step

        if "FOR_EVER" in os.environ:
            store.artifacts.add = stops(store.artifacts.add, lambda id, part: part.number == 10)
            store.artifacts.finish = stops(store.artifacts.finish, lambda *_: True)
        await WorkerArtifacts(1 << 26, ask).put(chunks(), ExecutionContext(working_dir=".", session_id="s"))
        print("put", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def hosts(fresh_fleet: Fleet) -> Fleet:
    """Two hosts that share nothing but the database and the broker."""
    start(fresh_fleet, "a")
    start(fresh_fleet, "b")
    return fresh_fleet


def start(fleet: Fleet, host: str, **more: str) -> None:
    for lane in ("async", "process"):
        fleet.start(lane, concurrency=2, hostname=host, home=str(fleet.folder / host), **more)


async def on(client: ExecutorClient, host: str, tool: str, session: str | None = "s", **arguments: Any) -> ToolResult:
    context = ExecutionContext(working_dir=".", session_id=session, timeout=60)
    handle = await client.submit(tool, arguments, context, queue=f"host.{host}")
    return await handle.result(timeout=60)


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("tool", ["Echo", "EchoInProcess"])
async def test_what_one_host_kept_is_read_page_by_page_on_another(hosts: Fleet, tool: str) -> None:
    async with ExecutorClient(hosts.settings) as client:
        long = await on(client, "a", tool, message=TEXT)
        assert long.success, long.error
        assert len(TEXT.encode()) > 4_900_000
        assert len(long.output) <= 100_000
        handle = long.metadata["artifact"]
        seen: list[str] = []
        following: dict[str, int] | None = {"offset": 1}
        time_left = within(60, "the pages do not end")
        while following and next(time_left):
            page = await on(client, "b", "Read", file_path=handle, line_numbers=False, limit=20_000, **following)
            assert page.success, page.error
            seen.append(page.output)
            following = page.metadata.get("next")
        assert "\n".join(seen) == TEXT
        found = await on(client, "b", "Grep", path=handle, pattern="needle", output_mode="count")
        assert found.output == f"{handle}:7"
        other = await on(client, "b", "Read", session="other", file_path=handle)
        assert other.error_code == "ARTIFACT_NOT_FOUND"
        assert b"".join([chunk async for chunk in client.history.artifact(handle)]).decode() == TEXT


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
@pytest.mark.parametrize(("tool", "arguments"), [("leading", {"to": "notes.txt"}), ("mixed", {})])
async def test_a_part_that_one_host_made_is_read_by_clients_and_taken_by_a_tool_of_another(
    fresh_fleet: Fleet, tmp_path: Path, tool: str, arguments: dict[str, str]
) -> None:
    for host in ("a", "b"):
        (tmp_path / host / "workspace").mkdir(parents=True)
        start(fresh_fleet, host, tools="tests.part_tools:make", workspace=str(tmp_path / host / "workspace"))
    data = os.urandom(3 * PART_BYTES + 17)
    (tmp_path / "a" / "workspace" / "notes.txt").write_bytes(data)
    async with ExecutorClient(fresh_fleet.settings) as client:
        made = await on(client, "a", tool, **arguments)
        part = made.files[0]
        taken = await on(client, "b", "measure", file=part.uri)
        other = await on(client, "b", "measure", session="other", file=part.uri)
        read = await part.bytes()
        records = [await client.history.get(one.metadata["execution_id"]) for one in (made, taken, other)]

    assert (part.name, read == data) == ("notes.txt", True)
    assert taken.output == {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    assert other.error_code == "ARTIFACT_NOT_FOUND"
    assert [one.hostname for one in records] == ["a", "b", "b"]


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_hosts_that_share_a_folder_keep_artifacts_there(fresh_fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    for host in ("a", "b"):
        start(fresh_fleet, host, artifact_dir=str(folder))
    async with ExecutorClient(fresh_fleet.settings.model_copy(update={"artifact_dir": folder})) as client:
        long = await on(client, "a", "EchoInProcess", message=TEXT)
        handle = long.metadata["artifact"]
        again = await on(client, "b", "Echo", message=TEXT, session="other")
        assert again.metadata["artifact"] == handle
        page = await on(client, "b", "Read", file_path=handle, line_numbers=False, offset=60_000, limit=1)
        assert page.output == LINES[59_999]
        shown = await client.history.artifact_page(handle, offset=60_000, limit=1)
        assert shown.text == LINES[59_999] + "\n"
        assert b"".join([chunk async for chunk in client.history.artifact(handle)]).decode() == TEXT
        async with database(fresh_fleet.settings.database) as rows:
            data = await rows.scalars(artifact_parts.select().with_only_columns(artifact_parts.c.data))
    assert set(data) == {b""}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [f"artifact://{path.name}" for path in files] == [handle]
    assert sum(path.stat().st_blocks * 512 for path in files) < len(TEXT) / 3
    assert {path.stat().st_mode & 0o077 for path in folder.rglob("*")} == {0}


async def test_children_keep_outputs_while_others_work(fresh_fleet: Fleet) -> None:
    fresh_fleet.start("process", concurrency=2)
    async with ExecutorClient(fresh_fleet.settings) as client:
        context = ExecutionContext(working_dir=".", timeout=60)
        texts = [f"{number} {TEXT}" for number in range(2)]
        long = [client.execute("EchoInProcess", context, message=text) for text in texts]
        short = [client.execute("EchoInProcess", context, message=str(number)) for number in range(20)]
        results = await asyncio.gather(*long, *short)
        assert [result.output for result in results[2:]] == [str(number) for number in range(20)]
        for result, text in zip(results[:2], texts, strict=True):
            assert (
                b"".join([part async for part in client.history.artifact(result.metadata["artifact"])]).decode() == text
            )


@pytest.mark.parametrize("folder", [None, "artifacts"])
def test_who_is_killed_while_he_puts_leaves_nothing_that_anybody_sees(
    database_url: str, tmp_path: Path, folder: str | None
) -> None:
    migrated(database_url)
    place = tmp_path / folder if folder else None
    words = ["-c", PUTS, database_url, *([str(place)] if place else [])]
    with (tmp_path / "log").open("w") as log:
        environment = {**os.environ, "FOR_EVER": "yes"}
        putter = warm_worker().start(words, cwd=ROOT, env=environment, stdout=log, stderr=log)
        wait_until(lambda: "half way" in (tmp_path / "log").read_text(), 30, "it puts nothing")
        putter.kill()
        putter.wait()
    assert "put" not in (tmp_path / "log").read_text()
    new = artifact(b"".join(bytes([number]) * (1 << 18) for number in range(60)))

    async def look() -> None:
        async with await open_store(database_url, artifact_dir=place) as store:
            with pytest.raises(ArtifactNotFoundError):
                await store.artifacts.named(new.id)
            assert await store.artifacts.find(new.id, "s") is None
            assert await store.artifacts.finish(new, Keeping(ttl=60.0, quota=1 << 30)) is None
            assert await store.artifacts.purge() == 0, "it might still be on its way"
            expire = artifacts.update().values(expires_at=artifacts.c.created_at)
            await store.database.write(lambda connection: connection.execute(expire))
            assert await store.artifacts.purge() == 1
            async with store.database.reading() as connection:
                assert (await connection.execute(artifact_parts.select())).all() == []

    for left in place.iterdir() if place else ():
        os.utime(left, (0, time.time() - DRAFT_SECONDS - 60))
    asyncio.run(look())
    assert place is None or list(place.iterdir()) == []
    again = warm_worker().run(words, cwd=ROOT, env=os.environ)
    assert again.stdout.endswith("put\n"), again.stderr


@pytest.mark.parametrize("folder", [None, "artifacts"])
def test_two_processes_that_put_the_same_at_once_both_succeed(
    database_url: str, tmp_path: Path, folder: str | None
) -> None:
    migrated(database_url)
    words = ["-c", PUTS, database_url, *([str(tmp_path / folder)] if folder else [])]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: warm_worker().run(words, cwd=ROOT, env=os.environ), range(2)))
    assert all(one.stdout.endswith("put\n") for one in done), done

    async def count() -> tuple[int, int]:
        async with await open_store(database_url) as store, store.database.reading() as connection:
            rows = [len((await connection.execute(table.select())).all()) for table in (artifacts, artifact_parts)]
        return rows[0], rows[1]

    assert asyncio.run(count()) == (1, 15)
    assert len(list(tmp_path.glob("artifacts/*"))) == (1 if folder else 0)


def test_what_the_version_before_kept_is_read_after_the_migration(database_url: str) -> None:
    migrate.upgrade(database_url, "0001")
    kept = "".join(f"{line}\n" for line in LINES[:18_000]).encode()
    old, parts = artifact(kept), [kept[start : start + PART_BYTES] for start in range(0, len(kept), PART_BYTES)]

    async def keep() -> None:
        async with await open_store(database_url) as store:
            await store.artifacts.begin(old, Keeping(ttl=600.0, quota=1 << 30))
            for number, data in enumerate(parts):
                row = {"artifact_id": old.id, "number": number, "start": number * PART_BYTES, "data": pack(data)}
                await store.database.write(partial(_insert, row))
            assert parts[1:], "more than one"

    async def read() -> None:
        async with await open_store(database_url) as store:
            found = await store.artifacts.finish(old, Keeping(ttl=600.0, quota=1 << 30))
            assert found is not None
            assert (await store.artifacts.page(found, PageWish(offset=8001, limit=1))).text == f"{LINES[8000]}\n"

    asyncio.run(keep())
    migrate.upgrade(database_url)
    asyncio.run(read())


async def _insert(row: dict[str, Any], connection: AsyncConnection) -> None:
    await connection.execute(
        text(
            "INSERT INTO artifact_parts (artifact_id, number, start, data) VALUES (:artifact_id, :number, :start, :data)"
        ),
        row,
    )
