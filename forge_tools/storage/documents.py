"""Versioned documents of sessions, agents and workspaces; no concurrent write is lost."""

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
)

from forge_tools.model.documents import (
    KEPT_VERSIONS,
    MAX_CHANGED,
    MAX_DOCUMENTS,
    Document,
    DocumentScope,
    DocumentWriter,
    Revise,
    too_many,
    too_many_changed,
)
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import documents

_ESCAPED = str.maketrans({one: f"/{one}" for one in "%_/"})  # what means something to LIKE

kept = documents.c
newer = documents.alias("newer")

is_replaced: ColumnElement[bool] = exists().where(
    newer.c.scope == kept.scope,
    newer.c.owner_key == kept.owner_key,
    newer.c.path == kept.path,
    newer.c.version > kept.version,
)

# Statements are made once: SQLAlchemy takes longer to make one than SQLite to run it.
OF_SCOPE = and_(kept.scope == bindparam("in_scope"), kept.owner_key == bindparam("in_key"))
AT = and_(OF_SCOPE, kept.path == bindparam("at"))
FOUND = (kept.path, kept.version, kept.content, kept.author, kept.updated_at)
NEWEST = (OF_SCOPE, kept.content.is_not(None), ~is_replaced)

ONE = select(*FOUND).where(*NEWEST, AT)
WRITTEN = select(kept.version).where(OF_SCOPE, kept.call == bindparam("by_call")).limit(1)
ROWS = select(func.count()).where(OF_SCOPE).scalar_subquery().label("rows")
INSERT = insert(documents).returning(kept.version, kept.updated_at, ROWS)
WRITE = INSERT.values(
    scope=bindparam("in_scope"),
    owner_key=bindparam("in_key"),
    path=bindparam("at"),
    version=select(func.coalesce(func.max(kept.version), 0) + 1).where(AT).scalar_subquery(),
    owner=bindparam("of_owner"),
    content=bindparam("text"),
    author=bindparam("by"),
    call=bindparam("by_call"),
    updated_at=from_now(0.0),
)
FORGET = delete(documents).where(AT, kept.version <= bindparam("up_to"))
HELD = select(func.count()).where(*NEWEST)


class Documents:
    """Reads and writes the newest versions; the writers of a scope take turns, across all processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        """List, by path, the document at `under` and those below it; if there are too many, the most recently written.

        With `words`, only those that contain each of them in path or content, ignoring case; without, contents are
        omitted.
        """
        query = _listed(None if words is None else len(words))
        sought = {f"word{n}": f"%{clean(word).translate(_ESCAPED)}%" for n, word in enumerate(words or ())}
        rows = await self._database.rows(query, {**_of(scope), **_below([under]), **sought, "most": limit})
        return sorted([record_of(Document, row) for row in rows], key=lambda found: found.path)

    async def read(self, scope: DocumentScope, path: str) -> Document | None:
        rows = await self._database.rows(ONE, {**_of(scope), "at": clean(path)})
        return record_of(Document, rows[0]) if rows else None

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Let `revise` change the documents at these paths, all or nothing; return the resulting documents.

        A path that ends in a slash stands for the document there and all below it. What an earlier attempt of the same
        call wrote is not written again.

        Raises:
            ToolFailure: there would be too many of them, or `revise` refuses.
        """
        of_scope = _of(scope)

        async def work(connection: AsyncConnection) -> dict[str, Document]:
            await self._lock(connection, scope)
            before = await _found(connection, of_scope, paths)
            if writer.is_repeated and await connection.scalar(WRITTEN, {**of_scope, "by_call": writer.call}):
                return before
            after: dict[str, Document | None] = dict(before)
            for path, content in revise(before).items():
                at = {**of_scope, "of_owner": clean(scope.owner), "at": clean(path)}
                after[path], rows = await _written(connection, at, content, writer)
            # Fewer rows hold fewer documents; the one just inserted may not be among them.
            may_be_full = after.keys() - before and rows >= MAX_DOCUMENTS
            if may_be_full and (await connection.scalar(HELD, of_scope) or 0) > MAX_DOCUMENTS:
                raise too_many(scope)
            return {path: one for path, one in after.items() if one is not None}

        return await self._database.write(work)

    async def _lock(self, connection: AsyncConnection, scope: DocumentScope) -> None:
        """Block other writers to the scope until the transaction ends; on SQLite there are none."""
        if self._database.dialect == "postgresql":
            key = int.from_bytes(bytes.fromhex(_key(scope))[:8], "big", signed=True)
            await connection.execute(select(func.pg_advisory_xact_lock(key)))


async def _found(connection: AsyncConnection, scope: Mapping[str, str], paths: Sequence[str]) -> dict[str, Document]:
    if len(paths) == 1 and not paths[0].endswith("/"):  # nearly every write: looked up, and not among all of the scope
        rows = (await connection.execute(ONE, {**scope, "at": clean(paths[0])})).all()
    else:
        limit = {"most": MAX_CHANGED + 1}
        rows = (await connection.execute(_at_and_below(len(paths)), {**scope, **_below(paths), **limit})).all()
    if len(rows) > MAX_CHANGED:
        raise too_many_changed(paths[0])
    return {row.path: record_of(Document, row) for row in rows}


async def _written(
    connection: AsyncConnection, at: Mapping[str, Any], content: str | None, writer: DocumentWriter
) -> tuple[Document | None, int]:
    """Write a version and forget the oldest; return the document, unless it is deleted, and how many rows the scope has."""
    text, author = clean(content), clean(writer.author)
    row = {**at, "text": text, "by": author, "by_call": writer.call}
    version, now, rows = (await connection.execute(WRITE, row)).one()
    if version > KEPT_VERSIONS:
        await connection.execute(FORGET, {**at, "up_to": version - KEPT_VERSIONS})
    if text is None:
        return None, rows
    return Document(path=at["at"], version=version, content=text, author=author, updated_at=now), rows


@cache
def _at_and_below(paths: int) -> Select[Any]:
    """Select the newest versions at so many paths and below them; without LIKE, which ignores case on SQLite."""
    at = [kept.path == bindparam(f"path{n}") for n in range(paths)]
    below = [
        func.substr(kept.path, 1, bindparam(f"length{n}", type_=Integer)) == bindparam(f"folder{n}")
        for n in range(paths)
    ]
    return select(*FOUND).where(*NEWEST, or_(*at, *below)).limit(bindparam("most", type_=Integer))


@cache
def _listed(words: int | None) -> Select[Any]:
    """Select the newest versions at and below a path, those written last first; None omits contents."""
    said = kept.path + literal("\n") + kept.content
    query = _at_and_below(1).where(*(said.ilike(bindparam(f"word{n}"), escape="/") for n in range(words or 0)))
    if words is None:
        query = query.with_only_columns(
            *(literal("").label("content") if one is kept.content else one for one in FOUND)
        )
    return query.order_by(kept.updated_at.desc(), kept.path)


def _below(paths: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `_at_and_below`."""
    values: dict[str, Any] = {}
    for n, path in enumerate(clean(path).rstrip("/") for path in paths):
        values |= {f"path{n}": path, f"folder{n}": f"{path}/", f"length{n}": len(path) + 1}
    return values


def _of(scope: DocumentScope) -> dict[str, str]:
    return {"in_scope": scope.kind, "in_key": _key(scope)}


def _key(scope: DocumentScope) -> str:
    said = f"{scope.kind}:{'' if scope.owner is None else f'of {scope.owner}'}"
    return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
