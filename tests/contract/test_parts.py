"""Results of images, files and bytes are the same in process and on workers of both lanes, on every database."""

import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from forge_tools.artifacts.parts import pack
from forge_tools.client import ExecutorClient, SyncExecutorClient
from forge_tools.errors import ArtifactDamagedError, ArtifactNotFoundError, InvalidCallError
from forge_tools.model import ExecutionContext, Image, Text, new_id
from forge_tools.model.artifacts import SCHEME
from forge_tools.model.audit import Fault, Pruning
from forge_tools.model.content import Json, Media
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.reach import Reach
from forge_tools.storage import Store, open_store
from forge_tools.storage.retention import PruneRun
from forge_tools.storage.sqlalchemy_tables import artifact_parts, artifacts, execution_attempts
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.contract.sealed import forge, put_back, seal_all, verified
from tests.fleet import Fleet
from tests.part_tools import make, png

Executor = ToolExecutor | ExecutorClient
LIMIT = 500_000
PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("parts")
    kept = folder / "artifacts"
    yield from started(folder, valkey_server.url, f"sqlite:///{folder / 'forge.db'}", artifact_dir=str(kept))


@pytest.fixture(scope="module")
def on_postgres(tmp_path_factory: pytest.TempPathFactory, valkey_server: Any, postgres: Any) -> Iterator[Fleet]:
    url = postgres.create_database()
    yield from started(tmp_path_factory.mktemp("parts"), valkey_server.url, url)
    postgres.drop_database(url)


def started(folder: Path, broker_url: str, database_url: str, **settings: str) -> Iterator[Fleet]:
    fleet = Fleet(folder, broker_url, database_url, max_part_size=LIMIT, **settings)
    furnish(folder)
    for lane in ("async", "process"):
        fleet.start(lane, tools="tests.part_tools:make", max_part_size=str(LIMIT), audit_interval="0", **settings)
    yield fleet
    fleet.stop()


def furnish(folder: Path) -> None:
    (folder / "notes.txt").write_text("notes")
    (folder / "link").symlink_to("/etc/passwd")


@pytest.fixture(params=["in memory", "in a folder", "on_sqlite", "on_postgres"])
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Executor]:
    if request.param.startswith("on_"):
        async with ExecutorClient(request.getfixturevalue(request.param).settings) as client:
            yield client
        return
    (tmp_path / "w").mkdir()
    furnish(tmp_path / "w")
    registry = ScopedRegistry()
    registry.register_many(make())
    artifacts = FolderArtifacts(tmp_path / "kept") if request.param == "in a folder" else None
    yield ToolExecutor(registry, reach=Reach(root=tmp_path / "w", artifacts=artifacts, max_part_bytes=LIMIT))


@pytest.fixture(params=["on_sqlite", "on_postgres"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    fleet: Fleet = request.getfixturevalue(request.param)
    return fleet


@pytest.fixture
async def store(fleet: Fleet) -> AsyncIterator[Store]:
    async with await open_store(fleet.settings.database, artifact_dir=fleet.settings.artifact_dir) as store:
        yield store


def labels(parts: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(part.type, part.name if isinstance(part, Media) else part.line) for part in parts]


async def test_bytes_of_an_image_are_an_image(executor: Executor) -> None:
    result = await executor.call("picture")

    assert (result.success, result.output) == (True, "[image image.png, 75 bytes, image/png]")
    [image] = result.images
    assert (image.width, image.height, image.size) == (10, 10, 75)
    assert await image.bytes() == png()


async def test_bytes_that_are_text_stay_text(executor: Executor) -> None:
    assert (await executor.call("plain_bytes")).content == (Text("only text"),)


async def test_an_image_of_pillow_is_an_image(executor: Executor) -> None:
    [image] = (await executor.call("drawn")).images

    assert (image.mime_type, image.width, image.height) == ("image/png", 10, 20)


async def test_parts_come_in_their_order_between_texts(executor: Executor, tmp_path: Path) -> None:
    result = await executor.call("mixed")

    assert labels(result.content) == [
        ("text", "Here it is"),
        ("image", "chart.png"),
        ("json", '{"n": 1}'),
        ("text", "and"),
        ("file", "notes.txt"),
        ("file", "x.bin"),
    ]
    saved = [await part.save(tmp_path / "saved") for part in (*result.images, *result.files)]
    assert [path.read_bytes() for path in saved] == [png(), b"notes", b"\0\1"]


async def test_what_is_attached_comes_beside_the_output(executor: Executor) -> None:
    result = await executor.call("attaching")

    assert (result.output, labels(result.content)[1:]) == ({"seen": 2}, [("image", "shot.png"), ("file", "notes.txt")])
    assert isinstance(result.content[0], Json)
    assert result.to_text().endswith("[image shot.png, 75 bytes, image/png]\n[file notes.txt, 5 bytes, text/plain]")


async def test_what_was_attached_before_a_failure_is_kept(executor: Executor) -> None:
    result = await executor.call("attaching", {"outside": True})

    assert (result.success, labels(result.content)) == (False, [("image", "shot.png")])
    assert "outside the workspace" in str(result.error)


async def test_what_bytes_are_counts_for_more_than_what_is_said(executor: Executor) -> None:
    result = await executor.call("lying")

    found = [(part.type, part.mime_type, part.note) for part in result.content if isinstance(part, Media)]
    assert found == [
        ("image", "image/png", None),
        ("file", "text/plain", "not an image"),
        ("file", "text/plain", "not an image"),
        ("file", "image/png", "damaged or cut off"),
        ("file", "image/png", "900 million pixels; the limit for models is 64 million"),
    ]


async def test_any_name_becomes_one_that_folders_and_texts_take(executor: Executor, tmp_path: Path) -> None:
    result = await executor.call("misnamed")

    names = ["é" * 98 + ".bin", "up_.bin", "c"]
    assert [(part.name, part.mime_type) for part in result.files] == [
        *((name, "application/octet-stream") for name in names[:2]),
        ("c", "text/csv"),
    ]
    assert [(await part.save(tmp_path / "saved")).name for part in result.files] == names


async def test_a_type_that_is_no_text_fails_in_the_line_of_the_author(executor: Executor) -> None:
    result = await executor.call("mistyped")

    assert (result.success, result.error_code) == (False, "EXECUTION_ERROR")
    assert "mime_type is a int, not a text" in str(result.error)


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "link", "nothing.txt", "."])
async def test_a_path_that_is_not_a_file_of_the_workspace_fails_and_the_rest_is_kept(
    executor: Executor, path: str
) -> None:
    result = await executor.call("leading", {"to": path})

    assert (result.success, result.error_code, len(result.images)) == (False, "UNSTORABLE", 1)
    assert result.output.startswith("before\n[file ")
    assert "not kept: " in result.output


async def test_parts_that_are_text_are_kept_without_the_secrets_of_the_call(executor: Executor) -> None:
    result = await executor.call("quoting", {"password": PASSWORD})

    assert PASSWORD not in repr(result)
    assert {part.mime_type: await part.bytes() for part in result.files} == {
        "text/plain": b"ada:[redacted]\n",
        "application/json": b'{"seen": "[redacted]"}',
        "application/octet-stream": b"\0" + PASSWORD.encode(),
    }


async def test_of_too_many_parts_the_first_hundred_are_kept(executor: Executor) -> None:
    result = await executor.call("many", {"count": 1_000})

    assert (result.success, len(result.files)) == (False, 100)
    assert "a result has 100 parts at most" in str(result.error)
    assert str(result.error).endswith("; and 897 more")
    assert (await result.files[99].bytes()) == b"99\0"


async def test_a_part_over_the_limit_names_the_limit_and_the_way_out(executor: Executor) -> None:
    fits, result = await executor.call("large", {"size": LIMIT}), await executor.call("large", {"size": LIMIT + 1})

    assert (fits.success, await fits.files[0].bytes()) == (True, b"\0" * LIMIT)
    assert (result.success, result.output.splitlines()[0]) == (False, "small")
    assert "Raise FORGE_MAX_PART_SIZE" in str(result.error)


def test_a_client_without_await_reads_parts_too(on_sqlite: Fleet, tmp_path: Path) -> None:
    with SyncExecutorClient(on_sqlite.settings) as client:
        [image] = client.call("picture").images
        assert isinstance(image, Image)
        assert image.bytes() == png()
        assert image.save(tmp_path).read_bytes() == png()


async def test_a_file_that_was_uploaded_is_a_parameter(on_sqlite: Fleet, tmp_path: Path) -> None:
    (tmp_path / "up.bin").write_bytes(b"\0" * 300_000)
    async with ExecutorClient(on_sqlite.settings) as client:
        handle = await client.upload(tmp_path / "up.bin", session_id="s")
        mine = await client.call("measure", {"file": handle}, ExecutionContext(working_dir=".", session_id="s"))
        other = await client.call("measure", {"file": handle}, ExecutionContext(working_dir=".", session_id="t"))
        no_handle = await client.call("measure", {"file": "up.bin"})

    assert mine.output == {"bytes": 300_000, "sha256": sha256(b"\0" * 300_000).hexdigest()}
    assert other.error_code == "ARTIFACT_NOT_FOUND"
    assert "does not match pattern" in str(no_handle.error)


async def test_a_file_over_the_limit_is_not_uploaded(on_sqlite: Fleet, tmp_path: Path) -> None:
    (tmp_path / "up.bin").write_bytes(b"\0" * (LIMIT + 1))
    async with ExecutorClient(on_sqlite.settings) as client:
        with pytest.raises(InvalidCallError, match="FORGE_MAX_PART_SIZE allows 500,000"):
            await client.upload(tmp_path / "up.bin")


async def test_a_sealed_row_that_names_other_bytes_for_a_part_is_found(fleet: Fleet, store: Store) -> None:
    async with ExecutorClient(fleet.settings) as client:
        result = await client.call("picture")
    execution_id, [image] = result.metadata["execution_id"], result.images
    await seal_all(store)
    assert (await verified(store)).is_intact

    kind = "json" if store.dialect == "postgresql" else "text"
    swapped = f"CAST(replace(CAST(metadata AS text), '{image.uri}', 'artifact://{'0' * 32}') AS {kind})"
    async with put_back(store, execution_attempts):
        await forge(store, f"UPDATE execution_attempts SET metadata = {swapped} WHERE execution_id = '{execution_id}'")
        [finding] = (await verified(store)).findings
    assert (finding.fault, finding.table, finding.key) == (
        Fault.CHANGED,
        "execution_attempts",
        f"{execution_id} attempt 1",
    )


async def test_a_part_whose_bytes_were_changed_is_refused_until_a_call_keeps_them_again(
    fleet: Fleet, store: Store
) -> None:
    (fleet.folder / "right.bin").write_bytes(b"\0right")
    async with ExecutorClient(fleet.settings) as client:
        [file] = (await client.call("leading", {"to": "right.bin"})).files
        await seal_all(store)
        its = artifact_parts.c.artifact_id == str(file.uri).removeprefix(SCHEME)
        damage = artifact_parts.update().where(its).values(data=pack(b"\0wrong"))
        if not files_of(fleet, file):
            await store.database.write(lambda connection: connection.execute(damage))
        for path in files_of(fleet, file):
            path.write_bytes(pack(b"\0wrong"))

        with pytest.raises(ArtifactDamagedError, match=f"{file.uri} is damaged: its bytes do not match its handle"):
            await file.bytes()
        assert (await verified(store)).is_intact, "the rows say what they said"
        await client.call("leading", {"to": "right.bin"})
        assert await file.bytes() == b"\0right"


async def rows_of(store: Store, part: Media) -> list[bytes]:
    """The bytes of a part as they lie in rows; empty ones if they are in files."""
    query = select(artifact_parts.c.data).where(artifact_parts.c.artifact_id == str(part.uri).removeprefix(SCHEME))
    return [bytes(one) for one in await store.database.scalars(query.order_by(artifact_parts.c.number))]


def files_of(fleet: Fleet, part: Media) -> list[Path]:
    folder = fleet.settings.artifact_dir
    return sorted(folder.glob(str(part.uri).removeprefix(SCHEME))) if folder else []


async def test_a_call_that_is_pruned_takes_along_what_nobody_else_holds(fleet: Fleet, store: Store) -> None:
    pruned = ExecutionContext(working_dir=".", session_id="pruned")
    (fleet.folder / "shared.bin").write_bytes(b"\0" * 2_222)
    async with ExecutorClient(fleet.settings) as client:
        [gone] = (await client.call("large", {"size": 1_111}, pruned)).files
        [shared] = (await client.call("large", {"size": 2_222}, pruned)).files
        [same] = (await client.call("leading", {"to": "shared.bin"})).files
        assert (shared.uri, len(await rows_of(store, gone)), len(await rows_of(store, shared))) == (same.uri, 1, 1)
        assert len(files_of(fleet, gone)) == (fleet.settings.artifact_dir is not None)

        calls = Pruning(ended_before=datetime.now(UTC) + timedelta(minutes=1), tool="large")
        assert sum([one.executions async for one in store.retention.sweep(calls, PruneRun(new_id(), "root"))]) >= 2
        await store.artifacts.purge()

        assert (await rows_of(store, gone), len(await rows_of(store, shared))) == ([], 1)
        assert await same.bytes() == b"\0" * 2_222
        with pytest.raises(ArtifactNotFoundError, match=f"no artifact {gone.uri}, or it has expired"):
            await gone.bytes()
    assert files_of(fleet, gone) == []


async def test_bytes_of_a_part_that_expired_are_deleted_and_its_row_stays(fleet: Fleet, store: Store) -> None:
    async with ExecutorClient(fleet.settings) as client:
        result = await client.call("large", {"size": 3_333})
        [file] = result.files
        expire = artifacts.update().where(artifacts.c.id == str(file.uri).removeprefix(SCHEME))
        await store.database.execute(expire.values(expires_at=artifacts.c.created_at))
        assert len(await rows_of(store, file)) == 1
        await store.artifacts.purge()

        assert await rows_of(store, file) == []
        with pytest.raises(ArtifactNotFoundError, match=f"no artifact {file.uri}, or it has expired"):
            await file.bytes()
        record = await client.history.get(result.metadata["execution_id"])
    assert record.metadata["content"][0]["uri"] == file.uri


async def test_of_a_call_with_secrets_the_parameter_is_encrypted_and_bytes_of_parts_are_not(
    fleet: Fleet, store: Store
) -> None:
    async with ExecutorClient(fleet.settings) as client:
        result = await client.call("quoting", {"password": PASSWORD})
        record = await client.history.get(result.metadata["execution_id"])
        kept = {
            one.mime_type: b"".join([*await rows_of(store, one), *(file.read_bytes() for file in files_of(fleet, one))])
            for one in result.files
        }

    assert record.parameters == {"password": "[redacted]"}
    assert zlib.decompress(kept["text/plain"]) == b"ada:[redacted]\n"
    assert PASSWORD.encode() in kept["application/octet-stream"]
