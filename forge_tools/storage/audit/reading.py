"""Reads what is hashed: executions with their attempts, and events, so many bytes at a time."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import Column, Row, Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.storage.audit.canonical import ATTEMPT, EVENT, EXECUTION, NO_ROW, RowForm, join_digests, join_hashes
from forge_tools.storage.columns import Json
from forge_tools.storage.engine import Database
from forge_tools.storage.functions import among
from forge_tools.storage.models import execution_attempts, execution_events, executions
from forge_tools.storage.statements import prepare

MOST_BYTES = 8_000_000
"""Of texts that are read at once; one row may be larger."""

LARGE = 8_000
"""Rows with shorter texts are not counted: hundreds of them always fit."""

_WIDE = {
    table: [column for column in table.c if isinstance(column.type, Json)] for table in (executions, execution_attempts)
}


@asynccontextmanager
async def reading_raw(database: Database) -> AsyncIterator[AsyncConnection]:
    """A connection to read with, on which nothing changes meanwhile."""
    async with database.reading() as connection:
        await prepare(connection, "still")
        yield connection


async def hashes_of_executions(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, bytes]:
    """The hashes of each execution of which there is a row or an attempt."""
    found: dict[str, bytes] = {}
    for some in await _portions(connection, ids):
        rows = await _digests(connection, EXECUTION, executions.c.id, some)
        attempts = await _digests(
            connection, ATTEMPT, execution_attempts.c.execution_id, some, execution_attempts.c.attempt
        )
        for id_ in rows.keys() | attempts.keys():
            row = join_digests([digest for _, digest in rows.get(id_, ())] or [NO_ROW])
            found[id_] = join_hashes(row, attempts.get(id_, []))
    return found


async def hashes_of_events(connection: AsyncConnection, ids: Sequence[int]) -> dict[int, bytes]:
    """The hash of each of those events that is there."""
    found = await _digests(connection, EVENT, execution_events.c.id, ids)
    return {id_: join_digests([digest for _, digest in rows]) for id_, rows in found.items()}


async def _digests(
    connection: AsyncConnection, form: RowForm, key: Column[Any], keys: Sequence[Any], *more: Column[Any]
) -> Mapping[Any, list[tuple[Any, bytes]]]:
    """By key, what `more` says of a row, and its hash."""
    query = select(*form.columns(), key.label("key"), *(column.label("also") for column in more)).where(
        among(key, keys)
    )
    found = defaultdict(list)
    for row in await connection.execute(query):
        found[row.key].append((row.also if more else None, form.digest(row)))
    return found


async def _portions(connection: AsyncConnection, ids: Sequence[str]) -> Iterable[Sequence[str]]:
    """The ids in portions whose rows fit in memory together."""
    sizes: dict[str, int] = defaultdict(int)
    for table, key in ((executions, executions.c.id), (execution_attempts, execution_attempts.c.execution_id)):
        size = _size(_WIDE[table])
        large = select(key.label("key"), size.label("size")).where(among(key, ids), size > LARGE)
        for row in await connection.execute(large):
            sizes[row.key] += row.size
    if sum(sizes.values()) <= MOST_BYTES:
        return [ids]
    portions: list[list[str]] = [[]]
    held = 0
    for id_ in ids:
        held += sizes[id_]
        if portions[-1] and held > MOST_BYTES:
            portions.append([])
            held = sizes[id_]
        portions[-1].append(id_)
    return portions


def _size(columns: Sequence[Column[Any]]) -> Any:
    lengths = (func.coalesce(func.length(cast(column, Text)), 0) for column in columns)
    return reduce(add, lengths)


def keys_of(rows: Sequence[Row[Any, Any]]) -> list[Any]:
    """The first value of each row."""
    return [row[0] for row in rows]
