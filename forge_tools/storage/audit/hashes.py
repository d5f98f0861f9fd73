"""The canonical form of rows, format 1: the same bytes for the same row, on both databases, however often it is read.

A row is the JSON object of its columns that are not NULL, in the order of their names, without spaces, in ASCII.
Times are microseconds since 1970 in UTC, floats as Python writes them, booleans true and false, JSON columns the text as
it is stored. What JSON cannot express, such as bytes that somebody wrote into a text on SQLite, becomes an object that
says so. Its hash is the SHA-256 of that, after a line that names the format and the table.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from sqlalchemy import Boolean, Column, ColumnElement, Table, select

from forge_tools.storage.functions import any_of, stored
from forge_tools.storage.heartbeat import EVER
from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import MomentText, execution_attempts, execution_events, executions, tools

FORMAT = 1
DIGEST_BYTES = 32
NO_ROW = bytes(DIGEST_BYTES)
"""Stands for the hash of a row that was not there when its execution was sealed."""

_NUMBER_BYTES = 4
NO_NUMBER = -(2**31)
"""Stands for an attempt's number that is no number: somebody else wrote it."""

READ_AT_ONCE = 50
"""How many rows are in memory at once: each may have outputs of megabytes."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}")

Definition = tuple[str, str, str]
"""Name, version and digest of a tool."""


class RowForm:
    """How the rows of one table, or only its columns `names`, are read exactly as they are stored, and hashed."""

    def __init__(self, table: Table, names: Sequence[str] = ()) -> None:
        self._columns = [table.c[name] for name in sorted(names or table.c.keys())]
        self._prefix = f"forge-tools audit {FORMAT} {table.name}\n".encode()

    def columns(self) -> list[ColumnElement[Any]]:
        """The columns to select, in the order that `digest` takes."""
        return [stored(column) for column in self._columns]

    @cached_property
    def _forms(self) -> list[tuple[str, Callable[[Any], Any] | None]]:
        """The canonical form of each column, by its type; None if that is what the driver returns."""
        return [
            (column.name, next((form for kind, form in _FORMS.items() if isinstance(column.type, kind)), None))
            for column in self._columns
        ]

    def digest(self, row: Sequence[Any]) -> bytes:
        """The hash of a row whose first values are those of `columns`."""
        pairs = zip(self._forms, row, strict=False)
        said = {name: form(value) if form else value for (name, form), value in pairs if value is not None}
        return hashlib.sha256(self._prefix + as_json(said).encode()).digest()


def moment_form(value: Any) -> Any:
    moment = moment_of(value)
    return _strange(value) if moment is None else (moment - EPOCH) // _MICROSECOND


def moment_of(value: Any) -> datetime | None:
    """Read a time as it is stored; None if it is not one."""
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        with suppress(ValueError):
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
    # PostgreSQL's infinite ones come without a zone.
    return value if isinstance(value, datetime) and value.tzinfo is not None else None


def _flag(value: Any) -> Any:
    return bool(value) if value in (0, 1) else _strange(value)


def _strange(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return {type(value).__name__: value.hex() if isinstance(value, bytes) else str(value)}


_FORMS: dict[type[Any], Callable[[Any], Any]] = {MomentText: moment_form, Boolean: _flag}

as_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_strange).encode

EXECUTION = RowForm(executions)
ATTEMPT = RowForm(execution_attempts)
EVENT = RowForm(execution_events)
DEFINITION = RowForm(tools, ("name", "version", "digest", "category", "lane", "timeout", "spec", "first_seen_at"))
"""The part of a row that never changes; people may enable, pin and disable tools at any time."""


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


async def hashes_of_executions(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, bytes]:
    """The hashes of each execution that has a row or an attempt."""
    rows = await _digests(connection, EXECUTION, executions.c.id, ids)
    attempts = await _digests(connection, ATTEMPT, execution_attempts.c.execution_id, ids, execution_attempts.c.attempt)
    found: dict[str, bytes] = {}
    for id_ in rows.keys() | attempts.keys():
        row = join_digests([digest for _, digest in rows.get(id_, ())] or [NO_ROW])
        found[id_] = join_hashes(row, attempts.get(id_, []))
    return found


async def hashes_of_events(connection: AsyncConnection, ids: Sequence[int]) -> dict[int, bytes]:
    found = await _digests(connection, EVENT, execution_events.c.id, ids)
    return {id_: join_digests([digest for _, digest in rows]) for id_, rows in found.items()}


async def hashes_of_definitions(connection: AsyncConnection, since: datetime = EVER) -> dict[Definition, bytes]:
    query = select(*DEFINITION.columns(), *tools.primary_key.columns)
    if since > EVER:
        query = query.where(tools.c.first_seen_at >= since)
    rows = (await connection.execute(query.order_by(*tools.primary_key.columns))).all()
    return {(str(row[-3]), str(row[-2]), str(row[-1])): DEFINITION.digest(row) for row in rows}


async def _digests(
    connection: AsyncConnection, form: RowForm, key: Column[Any], keys: Sequence[Any], *more: Column[Any]
) -> Mapping[Any, list[tuple[Any, bytes]]]:
    """The rows of each key as (`more`, hash)."""
    also = (column.label("also") for column in more)
    query = select(*form.columns(), key.label("key"), *also).where(any_of(key, keys))
    found = defaultdict(list)
    async with connection.stream(query, execution_options={"yield_per": READ_AT_ONCE}) as rows:
        async for part in rows.partitions():
            for row in part:
                found[row.key].append((row.also if more else None, form.digest(row)))
    return found
