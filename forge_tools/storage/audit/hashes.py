"""The canonical form of rows, format 1: the same bytes for the same row, on both databases, however often it is read.

A row is the JSON object of its columns that are not NULL, in the order of their names, without spaces, in ASCII.
Times are microseconds since 1970 in UTC, floats as Python writes them, booleans true and false, JSON columns the text as
it is stored. What a column of that type could not hold, such as a number that somebody wrote into a text on SQLite,
becomes an object that says so. Its hash is the SHA-256 of that, after a line that names the format and the table.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from operator import add
from typing import Any

from sqlalchemy import Boolean, Column, ColumnElement, Float, Integer, Table, Text, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.storage.connection.database import Database, prepare
from forge_tools.storage.functions import any_of, stored
from forge_tools.storage.tables import Json, MomentText, execution_attempts, execution_events, executions

FORMAT = 1
DIGEST_BYTES = 32
NO_ROW = bytes(DIGEST_BYTES)
"""Stands for the hash of a row that was not there when its execution was sealed."""

_NUMBER_BYTES = 4
NO_NUMBER = -(2**31)
"""Stands for what is no number of an attempt."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, check_circular=False).encode
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RowForm:
    """How the rows of one table, or those of its columns that are named, are read, exactly as they are stored, and hashed."""

    def __init__(self, table: Table, names: Sequence[str] = ()) -> None:
        self.table = table
        self._columns = [table.c[name] for name in sorted(names or table.c.keys())]
        self._prefix = f"forge-tools audit {FORMAT} {table.name}\n".encode()

    def columns(self) -> list[ColumnElement[Any]]:
        """The columns to select, in the order that `digest` takes."""
        return [stored(column) for column in self._columns]

    @cached_property
    def _forms(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """The canonical form of each column, by its type; all others are texts."""
        return [
            (column.name, next((form for kind, form in _FORMS if isinstance(column.type, kind)), _text))
            for column in self._columns
        ]

    def digest(self, row: Sequence[Any]) -> bytes:
        """The hash of a row whose first values are those of `columns`."""
        pairs = zip(self._forms, row, strict=False)
        said = {name: form(value) for (name, form), value in pairs if value is not None}
        return hashlib.sha256(self._prefix + _as_json(said).encode()).digest()


def _boolean(value: Any) -> Any:
    return bool(value) if isinstance(value, bool | int) and value in (0, 1) else _strange(value)


def _integer(value: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else _strange(value)


def _float(value: Any) -> Any:
    return float(value) if isinstance(value, float | int) else _strange(value)


def moment_form(value: Any) -> Any:
    """A time in the canonical form."""
    moment = moment_of(value)
    return _strange(value) if moment is None else (moment - EPOCH) // _MICROSECOND


def moment_of(value: Any) -> datetime | None:
    """Read a time as it is stored; None for what is no time."""
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        with suppress(ValueError):
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
    # PostgreSQL's infinite ones come without a zone.
    return value if isinstance(value, datetime) and value.tzinfo is not None else None


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    text = str(value)  # PostgreSQL's driver has a class of its own for UUIDs
    return text if _UUID.fullmatch(text) and not isinstance(value, bytes) else _strange(value)


def _strange(value: Any) -> dict[str, str]:
    return {type(value).__name__: value.hex() if isinstance(value, bytes) else str(value)}


_FORMS: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = (
    (MomentText, moment_form),
    (Boolean, _boolean),
    (Float, _float),
    (Integer, _integer),
)

EXECUTION = RowForm(executions)
ATTEMPT = RowForm(execution_attempts)
EVENT = RowForm(execution_events)


def join_hashes(execution: bytes, attempts: Sequence[tuple[int, bytes]]) -> bytes:
    """The `hashes` of an execution: of its row, then number and hash of each attempt in their order."""
    numbered = sorted((_number(number), digest) for number, digest in attempts)
    return execution + b"".join(number.to_bytes(_NUMBER_BYTES, signed=True) + digest for number, digest in numbered)


def join_digests(digests: Sequence[bytes]) -> bytes:
    """One hash for all rows with one key: that of the row; of several, which no key allows, one that fits none."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(sorted(digests))).digest()


def split_hashes(hashes: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Undo `join_hashes`."""
    attempts = {}
    for start in range(DIGEST_BYTES, len(hashes), _NUMBER_BYTES + DIGEST_BYTES):
        digest_at = start + _NUMBER_BYTES
        number = int.from_bytes(hashes[start:digest_at], signed=True)
        attempts[number] = hashes[digest_at : digest_at + DIGEST_BYTES]
    return hashes[:DIGEST_BYTES], attempts


def _number(value: Any) -> int:
    return value if isinstance(value, int) and NO_NUMBER < value < -NO_NUMBER else NO_NUMBER


def line(kind: str, key: object, hashes: bytes) -> str:
    """One line of what a batch covers: `execution <id> <hex>` or `event <id> <hex>`."""
    return f"{kind} {key} {hashes.hex()}\n"


def root_of(lines: Sequence[str]) -> str:
    """The hash over all lines of a batch, sorted."""
    text = f"forge-tools audit {FORMAT} root\n{''.join(sorted(lines))}"
    return hashlib.sha256(text.encode("ascii", "backslashreplace")).hexdigest()


MOST_BYTES = 8_000_000
"""How many bytes of text are read at once; one row may be larger."""

LARGE = 8_000
"""Rows with shorter texts are not measured: hundreds of them always fit."""

_WIDE = {
    table: [column for column in table.c if isinstance(column.type, Json)] for table in (executions, execution_attempts)
}


@asynccontextmanager
async def reading_raw(database: Database) -> AsyncIterator[AsyncConnection]:
    """A connection that reads everything as of one moment."""
    async with database.reading() as connection:
        await prepare(connection, "still")
        yield connection


async def hashes_of_executions(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, bytes]:
    """The hashes of each execution that has a row or an attempt."""
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
    """The hash of each of those events that exists."""
    found = await _digests(connection, EVENT, execution_events.c.id, ids)
    return {id_: join_digests([digest for _, digest in rows]) for id_, rows in found.items()}


async def _digests(
    connection: AsyncConnection, form: RowForm, key: Column[Any], keys: Sequence[Any], *more: Column[Any]
) -> Mapping[Any, list[tuple[Any, bytes]]]:
    """The rows of each key as (`more`, hash)."""
    query = select(*form.columns(), key.label("key"), *(column.label("also") for column in more)).where(
        any_of(key, keys)
    )
    found = defaultdict(list)
    for row in await connection.execute(query):
        found[row.key].append((row.also if more else None, form.digest(row)))
    return found


async def _portions(connection: AsyncConnection, ids: Sequence[str]) -> Iterable[Sequence[str]]:
    """Split the ids into portions whose rows fit in memory together."""
    sizes: dict[str, int] = defaultdict(int)
    for table, key in ((executions, executions.c.id), (execution_attempts, execution_attempts.c.execution_id)):
        size = _size(_WIDE[table])
        large = select(key.label("key"), size.label("size")).where(any_of(key, ids), size > LARGE)
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
