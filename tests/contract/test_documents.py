"""The contract of documents, on every database and in the memory of a process: versions, turns, limits."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.errors import ToolFailure
from forge_tools.model.documents import (
    KEPT_VERSIONS,
    MAX_CHANGED,
    MAX_DOCUMENTS,
    Document,
    DocumentScope,
    DocumentWriter,
)
from forge_tools.sandbox.reach import Documents, ProcessDocuments
from forge_tools.storage import Store, open_store
from forge_tools.storage.functions import from_now
from forge_tools.storage.retention import DELETED_SECONDS, SESSION_SECONDS
from forge_tools.storage.sqlalchemy_tables import documents as table

MINE, OTHERS = DocumentScope("session", "session-1"), DocumentScope("session", "session-2")
BY = DocumentWriter("agent-1")


@pytest.fixture(params=["sqlite", "postgres", "process"])
async def documents(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "process":
        yield ProcessDocuments()
        return
    async with await open_store(request.getfixturevalue(f"migrated_{request.param}")) as store:
        yield store.documents


async def put(documents: Documents, path: str, content: str | None, of: DocumentScope = MINE, **by: Any) -> int | None:
    after = await documents.change(of, [path], lambda _: {path: content}, BY._replace(**by))
    return after[path].version if path in after else None


async def paths(
    documents: Documents, under: str = "/m", words: Sequence[str] | None = None, limit: int = 100
) -> list[str]:
    return [one.path for one in await documents.find(MINE, under, words, limit)]


async def test_each_write_is_a_version_that_its_scope_alone_sees(documents: Documents) -> None:
    assert [await put(documents, "/m/a", text) for text in ("one", "two")] == [1, 2]

    found = await documents.read(MINE, "/m/a")

    assert found is not None
    assert (found.content, found.version, found.author) == ("two", 2, "agent-1")
    assert await documents.read(OTHERS, "/m/a") is None
    assert await documents.read(DocumentScope("agent", "session-1"), "/m/a") is None
    assert await documents.read(DocumentScope("session", None), "/m/a") is None


async def test_a_version_is_not_given_again_after_a_deletion(documents: Documents) -> None:
    await put(documents, "/m/a", "one")
    assert await put(documents, "/m/a", None) is None
    assert await documents.read(MINE, "/m/a") is None
    assert await put(documents, "/m/a", "new") == 3


async def test_of_many_writers_at_once_none_is_lost(documents: Documents) -> None:
    def add(number: int) -> Any:
        def revise(before: Mapping[str, Document]) -> Mapping[str, str | None]:
            return {"/m/a": f"{before['/m/a'].content if before else ''}{number},"}

        return revise

    await asyncio.gather(*(documents.change(MINE, ["/m/a"], add(number), BY) for number in range(40)))

    found = await documents.read(MINE, "/m/a")
    assert found is not None
    assert sorted(found.content.split(",")) == sorted(["", *map(str, range(40))])


async def test_what_is_refused_leaves_all_as_it_was(documents: Documents) -> None:
    def refuse(before: Mapping[str, Document]) -> Mapping[str, str | None]:
        raise ToolFailure(f"no: {before['/m/a'].version}", code="VERSION_CONFLICT")

    await put(documents, "/m/a", "one")
    with pytest.raises(ToolFailure, match="no: 1"):
        await documents.change(MINE, ["/m/a"], refuse, BY)
    assert await put(documents, "/m/a", "two") == 2


async def test_a_path_is_told_from_what_only_looks_like_it(documents: Documents) -> None:
    for path in ("/m", "/m/a", "/m/a/b", "/M/a", "/m/ab", "/mm/a", "/m%/a", "/m/\N{GRINNING FACE}"):
        await put(documents, path, "text")

    assert await paths(documents) == ["/m", "/m/a", "/m/a/b", "/m/ab", "/m/\N{GRINNING FACE}"]
    assert await paths(documents, "/m/a") == ["/m/a", "/m/a/b"]
    assert await paths(documents, "/m%") == ["/m%/a"]


@pytest.mark.parametrize("word", ["%", "_", '"', "NEAR(", "a*", "-b", "\\", "'; --", "\N{CJK UNIFIED IDEOGRAPH-732B}"])
async def test_characters_that_mean_something_to_a_search_mean_nothing_here(documents: Documents, word: str) -> None:
    await put(documents, "/m/with", f"before {word} AFTER")
    await put(documents, "/m/without", "before after")

    assert await paths(documents, words=[word]) == ["/m/with"]
    assert await paths(documents, words=[word, "after"]) == ["/m/with"]
    assert await paths(documents, words=["WITHOUT", "before"]) == ["/m/without"]


async def test_a_change_sees_what_is_below_a_path_only_if_that_ends_in_a_slash(documents: Documents) -> None:
    for path in ("/m", "/m/a", "/mm"):
        await put(documents, path, "text")
    seen: list[list[str]] = []

    def look(before: Mapping[str, Document]) -> dict[str, None]:
        seen.append(sorted(before))
        return {}

    for asked in (["/m"], ["/m/"], ["/m/", "/mm/"], ["/none"], ["/none/"]):
        await documents.change(MINE, asked, look, BY)

    assert seen == [["/m"], ["/m", "/m/a"], ["/m", "/m/a", "/mm"], [], []]


async def test_of_too_many_those_written_last_are_listed(documents: Documents) -> None:
    for number in range(5):
        await put(documents, f"/m/{number}", "text")
    await put(documents, "/m/1", "newer")

    assert await paths(documents, limit=2) == ["/m/1", "/m/4"]


async def test_a_scope_and_a_call_have_their_limits(documents: Documents) -> None:
    full = {f"/m/{number:04}": "text" for number in range(MAX_DOCUMENTS)}
    await documents.change(MINE, ["/m/new"], lambda _: full, BY)

    with pytest.raises(ToolFailure, match=r"1,000 documents, the limit. Delete some first"):
        await put(documents, "/m/one-more", "text")
    with pytest.raises(ToolFailure, match=f"more than {MAX_CHANGED} documents in /m"):
        await documents.change(MINE, ["/m/"], lambda _: {}, BY)
    assert await put(documents, "/m/0001", "changed") == 2
    assert await put(documents, "/m/one-more", "text", OTHERS) == 1


@pytest.mark.parametrize("path", ["/m/zero \x00 and half \ud800"])
async def test_any_text_can_be_kept(store: Store, path: str) -> None:
    owner = DocumentScope("agent", "s" * 50_000 + "\x00\ud800")
    after = await store.documents.change(owner, [path], lambda _: {path: "\x00 \ud800"}, BY)

    assert [one.content for one in after.values()] == ["\\x00 \\ud800"]


async def test_a_call_that_is_started_again_does_not_write_twice(store: Store) -> None:
    first = {"call": "call-1"}
    assert await put(store.documents, "/m/a", "one", **first) == 1
    assert await put(store.documents, "/m/a", "by another") == 2

    assert await put(store.documents, "/m/a", "one", **first, is_repeated=True) == 2
    assert await put(store.documents, "/m/a", "one", call="call-2", is_repeated=True) == 3


async def test_old_versions_make_room(store: Store) -> None:
    for number in range(KEPT_VERSIONS + 5):
        await put(store.documents, "/m/a", str(number))

    rows = await store.database.scalars(table.select().with_only_columns(table.c.version))

    assert sorted(rows) == list(range(6, KEPT_VERSIONS + 6))


async def test_what_sessions_left_and_what_was_replaced_long_ago_goes_by_itself(store: Store) -> None:
    agent = DocumentScope("agent", "agent-1")
    for scope in (MINE, OTHERS, agent):
        for text in ("old", "new"):
            await put(store.documents, "/m/a", text, scope)
    await put(store.documents, "/m/gone", "text", agent)
    await put(store.documents, "/m/gone", None, agent)
    for owner, seconds in (
        ("session-1", SESSION_SECONDS),
        ("session-2", DELETED_SECONDS),
        ("agent-1", SESSION_SECONDS),
    ):
        aged = update(table).where(table.c.owner == owner).values(updated_at=from_now(-seconds - 60))
        await store.database.execute(aged)

    assert await store.leftovers.clear() == 2 + 1 + 1 + 2

    kept = [await store.documents.read(scope, "/m/a") for scope in (MINE, OTHERS, agent)]
    assert [one and one.content for one in kept] == [None, "new", "new"]
