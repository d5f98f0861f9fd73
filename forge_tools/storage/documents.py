"""Versioned documents of sessions, agents and workspaces; no concurrent write is lost."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, insert, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model import Document, DocumentScope, DocumentWriter, Revise
from forge_tools.model.documents import KEPT_VERSIONS, MAX_CHANGED, MAX_DOCUMENTS, too_many, too_many_changed
from forge_tools.storage.connection.database import Database
from forge_tools.storage.functions import from_now
from forge_tools.storage.rows import clean, record_of
from forge_tools.storage.tables import documents

kept = documents.c
newer = documents.alias("newer")

is_replaced: ColumnElement[bool] = exists().where(
    newer.c.scope == kept.scope,
    newer.c.owner_key == kept.owner_key,
    newer.c.path == kept.path,
    newer.c.version > kept.version,
)
"""Whether there is a newer version of the document."""


class Documents:
    """Reads and writes the newest versions; the writers of a scope take turns, across all processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, scope: DocumentScope, under: str, words: Sequence[str] | None, limit: int) -> list[Document]:
        """List, by path, the document at `under` and those below it; if there are too many, the most recently written.

        With `words`, only those that contain each of them in path or content, ignoring case; without, contents are
        omitted.
        """
        content = literal("") if words is None else kept.content
        has_all = [
            or_(kept.path.icontains(word, autoescape=True), kept.content.icontains(word, autoescape=True))
            for word in map(clean, words or ())
        ]
        query = _newest(scope, [under], content=content).where(*has_all)
        rows = await self._database.rows(query.order_by(kept.updated_at.desc(), kept.path).limit(limit))
        return sorted([record_of(Document, row) for row in rows], key=lambda found: found.path)

    async def read(self, scope: DocumentScope, path: str) -> Document | None:
        """Read one; None if there is none."""
        rows = await self._database.rows(_newest(scope, []).where(kept.path == clean(path)))
        return record_of(Document, rows[0]) if rows else None

    async def change(
        self, scope: DocumentScope, paths: Sequence[str], revise: Revise, writer: DocumentWriter
    ) -> dict[str, Document]:
        """Let `revise` change the documents at these paths and below, all or nothing; return the resulting documents.

        What an earlier attempt of the same call has written is not written again.

        Raises:
            ToolFailure: there would be too many of them, or `revise` refuses.
        """

        async def work(connection: AsyncConnection) -> dict[str, Document]:
            await self._lock(connection, scope)
            is_written = select(kept.version).where(_of(scope), kept.call == writer.call).limit(1)
            if not writer.is_repeated or not await connection.scalar(is_written):
                before = await _found(connection, scope, paths)
                await _write(connection, scope, revise(before), writer)
            return await _found(connection, scope, paths)

        return await self._database.write(work)

    async def _lock(self, connection: AsyncConnection, scope: DocumentScope) -> None:
        """Block other writers to the scope until the transaction ends; on SQLite there are none."""
        if self._database.dialect == "postgresql":
            key = int.from_bytes(bytes.fromhex(_key(scope))[:8], "big", signed=True)
            await connection.execute(select(func.pg_advisory_xact_lock(key)))


async def _found(connection: AsyncConnection, scope: DocumentScope, paths: Sequence[str]) -> dict[str, Document]:
    rows = (await connection.execute(_newest(scope, paths).limit(MAX_CHANGED + 1))).all()
    if len(rows) > MAX_CHANGED:
        raise too_many_changed(paths[0])
    return {row.path: record_of(Document, row) for row in rows}


async def _write(
    connection: AsyncConnection, scope: DocumentScope, contents: Mapping[str, str | None], writer: DocumentWriter
) -> None:
    of_scope = _of(scope)
    for path, content in contents.items():
        at = and_(of_scope, kept.path == clean(path))
        version = (await connection.scalar(select(func.max(kept.version)).where(at)) or 0) + 1
        row = {
            "scope": scope.kind,
            "owner_key": _key(scope),
            "path": clean(path),
            "version": version,
            "owner": clean(scope.owner),
            "content": clean(content),
            "author": clean(writer.author),
            "call": writer.call,
        }
        await connection.execute(insert(documents).values(**row, updated_at=from_now(0.0)))
        if version > KEPT_VERSIONS:
            await connection.execute(delete(documents).where(at, kept.version <= version - KEPT_VERSIONS))
    if any(content is not None for content in contents.values()):
        held = select(func.count()).where(of_scope, kept.content.is_not(None), ~is_replaced)
        if (await connection.scalar(held) or 0) > MAX_DOCUMENTS:
            raise too_many(scope)


def _newest(scope: DocumentScope, under: Sequence[str], *, content: Any = kept.content) -> Select[Any]:
    """Select the newest versions at these paths and below; anywhere if there are none. SQLite's LIKE ignores case."""
    folders = [clean(one) for one in under]
    below = [func.substr(kept.path, 1, len(one) + 1) == f"{one}/" for one in folders]
    found = select(kept.path, kept.version, content.label("content"), kept.author, kept.updated_at)
    at = or_(kept.path.in_(folders), *below) if folders else None
    return found.where(_of(scope), kept.content.is_not(None), ~is_replaced, *(() if at is None else (at,)))


def _of(scope: DocumentScope) -> ColumnElement[bool]:
    return and_(kept.scope == scope.kind, kept.owner_key == _key(scope))


def _key(scope: DocumentScope) -> str:
    said = f"{scope.kind}:{'' if scope.owner is None else f'of {scope.owner}'}"
    return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
