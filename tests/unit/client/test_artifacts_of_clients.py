"""Artifacts as clients read them: all of one, or page by page, with `await` and without, from rows and from a folder."""

import asyncio
from pathlib import Path

import pytest

from forge_tools.artifacts.parts import ArtifactFiles, folder_of
from forge_tools.client import ExecutorClient, SyncExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import ArtifactFolderError, ArtifactNotFoundError, InvalidCallError
from forge_tools.storage import open_store
from tests.contract.test_artifacts import put
from tests.waiting import within

LINES = [f"{number:06} {'-' * 50}\n".encode() for number in range(12_000)]
TEXT = b"".join(LINES)


@pytest.fixture(params=["rows", "files", "beside"])
def reading(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Settings:
    """Settings whose database, or folder, holds the text."""
    if request.param == "files":
        settings = settings.model_copy(update={"artifact_dir": tmp_path / "artifacts"})
    if (folder := folder_of(settings)) is not None and request.param != "rows":
        ArtifactFiles(folder).prepare()
    return settings


@pytest.fixture
async def handle(request: pytest.FixtureRequest, reading: Settings) -> str:
    folder = None if "rows" in request.node.callspec.id else folder_of(reading)
    async with await open_store(reading.database, artifact_dir=folder) as store:
        return (await put(store, TEXT)).handle


async def test_a_client_reads_all_of_it_or_pages_that_lead_to_each_other(reading: Settings, handle: str) -> None:
    async with ExecutorClient(reading) as client:
        assert b"".join([chunk async for chunk in client.history.artifact(handle)]) == TEXT
        page = await client.history.artifact_page(handle)
        assert (page.first_line, page.lines, page.next) == (1, 2000, {"offset": 2001})
        seen = [page.data]
        time_left = within(60, "the pages do not end")
        while page.next and next(time_left):
            page = await client.history.artifact_page(handle, **page.next)
            seen.append(page.data)
    assert b"".join(seen) == TEXT
    assert len(seen) == 6


async def test_a_script_reads_the_same_without_await(reading: Settings, handle: str) -> None:
    def read() -> tuple[bytes, bytes, bytes]:
        with SyncExecutorClient(reading) as client:
            page = client.history.artifact_page(handle, offset=9000, limit=2)
            first = next(iter(client.history.artifact(handle)))
            return b"".join(client.history.artifact(handle)), page.data, first

    whole, page, first = await asyncio.to_thread(read)
    assert whole == TEXT
    assert page == b"".join(LINES[8999:9001])
    assert TEXT.startswith(first)


async def test_a_script_whose_client_is_closed_meanwhile_reads_on(reading: Settings, handle: str) -> None:
    def read() -> bytes:
        with SyncExecutorClient(reading) as client:
            read = bytearray()
            for chunk in client.history.artifact(handle):
                read += chunk
                client.close()  # by another thread, say
            return bytes(read)

    assert await asyncio.to_thread(read) == TEXT


async def test_what_is_not_there_is_said(reading: Settings, handle: str) -> None:
    async with ExecutorClient(reading) as client:
        for unknown in ("x", "artifact://" + "0" * 32):
            with pytest.raises(ArtifactNotFoundError, match="There is no artifact"):
                await client.history.artifact_page(unknown)
        with pytest.raises(InvalidCallError, match="past the end"):
            await client.history.artifact_page(handle, offset=13_000)
        with pytest.raises(TypeError, match="ofset"):
            await client.history.artifact_page(handle, ofset=1)


async def test_a_client_that_does_not_know_the_folder_says_so(settings: Settings, tmp_path: Path) -> None:
    ArtifactFiles(tmp_path / "artifacts").prepare()
    async with await open_store(settings.database, artifact_dir=tmp_path / "artifacts") as store:
        kept = (await put(store, TEXT)).handle
    async with ExecutorClient(settings) as client:
        with pytest.raises(
            ArtifactFolderError,
            match=r"forge.db.artifacts \(FORGE_ARTIFACT_DIR\) cannot be used: it does not exist; copy it with the database",
        ):
            await client.history.artifact_page(kept)
