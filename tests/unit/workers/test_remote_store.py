"""Tools of the async lane read and write the rows of shells, whose database lives on another loop."""

import asyncio
import threading

import pytest

from forge_tools.errors import DatabaseUnavailableError, ToolFailure
from forge_tools.model.documents import Document, DocumentScope, DocumentWriter
from forge_tools.model.places import ShellRecord
from tests.unit.workers.watched_host import Host, shell
from workers.remote_store import RemoteDocuments, RemoteShells, RemoteStore


async def test_tools_on_another_loop_reach_the_rows(host: Host) -> None:
    book, told = RemoteShells(remote := RemoteStore()), shell()

    async def as_a_tool() -> tuple[ShellRecord | None, list[ShellRecord]]:
        await book.record(told)
        return await book.find(told.id), await book.of_session("s")

    with pytest.raises(DatabaseUnavailableError, match="not opened its database yet"):
        await book.find(told.id)
    remote.open(host.store)

    assert await asyncio.to_thread(asyncio.run, as_a_tool()) == (told, [told])
    assert await as_a_tool() == (told, [told])


async def test_a_tool_need_not_fail_because_a_row_cannot_be_written(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: object) -> None:
        raise DatabaseUnavailableError("The database is away")

    book = RemoteShells(remote := RemoteStore())
    remote.open(host.store)
    monkeypatch.setattr(host.store.shells, "record", away)

    await book.record(shell())

    assert "A shell is not in SQL yet" in caplog.text


async def test_a_tool_that_outlives_the_engine_is_told_so(host: Host) -> None:
    book = RemoteShells(remote := RemoteStore())

    async def engine() -> None:
        remote.open(host.store)

    thread = threading.Thread(target=asyncio.run, args=(engine(),))
    thread.start()
    thread.join()

    with pytest.raises(DatabaseUnavailableError, match="is stopping and has closed"):
        await book.find("sh_a_0123456789ab")


async def test_documents_are_changed_on_the_loop_of_their_database(host: Host) -> None:
    documents, scope = RemoteDocuments(remote := RemoteStore()), DocumentScope("session", "s")
    remote.open(host.store)

    def refuse(_: object) -> dict[str, str | None]:
        raise ToolFailure("no", code="VERSION_CONFLICT")

    async def as_a_tool() -> tuple[Document | None, list[Document]]:
        await documents.change(scope, ["/a"], lambda _: {"/a": "text"}, DocumentWriter())
        with pytest.raises(ToolFailure, match="no"):
            await documents.change(scope, ["/a"], refuse, DocumentWriter())
        return await documents.read(scope, "/a"), await documents.find(scope, "/a", ["text"], 9)

    read, [found] = await asyncio.to_thread(asyncio.run, as_a_tool())
    assert read == found
    assert found.content == "text"
