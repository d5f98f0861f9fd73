"""Rows that no code of this package wrote: SQLite keeps anything in any column, and restores and scripts put it there."""

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, LargeBinary, Row, Select, Table
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from forge_tools.errors import ForeignRowError
from forge_tools.records import Claim, ExecutionStatus, ShellStatus

T = TypeVar("T")

SHOWN = 40
"""Characters of a foreign value that messages show."""

MOST_TOLD = 10
"""Foreign rows of one reading that the log tells of one by one."""

NO_STATUS = "it has not ended, and is not in the queue"
WAY_OUT = "No forge-tools wrote it so: correct or delete the row, or restore a backup."

_TOLD: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("parameters", "context", "options", "metadata", "detail"), lambda value: isinstance(value, dict)),
    "spec": lambda value: isinstance(value, dict),
    "tools": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    **dict.fromkeys(
        ("queues", "roots"), lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)
    ),
}
"""What columns hold of all that their types could."""

_SURE = frozenset({NoneType, bool, datetime})
"""Types of which no value needs a second look."""

_SURROGATE = re.compile("[\ud800-\udfff]")

logger = logging.getLogger(__name__)

_is_sparing: ContextVar[bool] = ContextVar("_is_sparing", default=False)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Stands for a value that its column cannot hold; bound to a statement, it is that value again."""

    value: Any


def foreign(value: Any, wanted: str) -> Foreign:
    """What a column makes of such a value for a reader that is `sparing`.

    Raises:
        ForeignRowError: for all others.
    """
    if _is_sparing.get():
        return Foreign(value)
    raise misplaced(value, wanted)


def misplaced(value: Any, wanted: str) -> ForeignRowError:
    """The error of a value that stands where another kind belongs."""
    return ForeignRowError(f"A row holds {said(value)} where {wanted} belongs. {WAY_OUT}")


@contextmanager
def sparing() -> Iterator[None]:
    """Let foreign values through, for a reader that judges each row by itself."""
    token = _is_sparing.set(True)
    try:
        yield
    finally:
        _is_sparing.reset(token)


class Form:
    """What rows may hold by the types of their columns; those that are `optional` may hold nothing, too.

    Messages name rows by the table of the first column.
    """

    def __init__(self, columns: Iterable[Column[Any]], optional: Iterable[Column[Any]] = ()) -> None:
        columns = list(columns)
        self._table = columns[0].table
        statuses = ShellStatus if self._table.name == "shells" else ExecutionStatus
        self._told = _TOLD | {"status": {*statuses}.__contains__}
        self._kinds = {column.name: (*_kinds(column.type), NoneType) for column in optional}
        for column in columns:
            self._kinds[column.name] = (*_kinds(column.type), *((NoneType,) if column.nullable else ()))
        self._plans: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[tuple[type[Any], ...], ...]]] = {}
        self._wide = {column.name for column in columns if isinstance(column.type, BigInteger)}

    def misfit(self, row: Any, names: Sequence[str] | None = None) -> str | None:
        """Say which value of a row is none that its column can hold; None where all fit."""
        asked = tuple(row._fields if names is None else names)
        if asked not in self._plans:
            known = tuple(name for name in asked if name in self._kinds)
            self._plans[asked] = known, tuple(self._kinds[name] for name in known)
        known, kinds = self._plans[asked]
        values = [getattr(row, name) for name in known]
        for name, value, kind in zip(known, values, kinds, strict=True):
            # Most values fit, and this is asked of all that is listed: what takes longer is asked of the few that need it.
            plain = type(value) is str and value.isascii() and name not in self._told
            if not isinstance(value, kind) or not (plain or type(value) in _SURE or self._may_be(name, value)):
                return f"its {name} is {said(value)}"
        return None

    def _may_be(self, name: str, value: Any) -> bool:
        if not is_sound(value) or (name in self._told and not self._told[name](value)):
            return False
        return not isinstance(value, int) or name in self._wide or -(2**31) <= value < 2**31

    def require(self, row: Row[Any], names: Sequence[str] | None = None) -> Row[Any]:
        """The row, if it fits.

        Raises:
            ForeignRowError: naming it.
        """
        if (why := self.misfit(row, names)) is not None:
            key = (shown_key(getattr(row, column.name, "?")) for column in self._table.primary_key)
            raise unreadable(self._table.name, " ".join(key), why)
        return row


@cache
def form_of(table: Table) -> Form:
    """What rows of a table may hold."""
    return Form(table.c)


async def fitting(table: Table, connection: AsyncConnection, query: Select[Any]) -> list[Row[Any]]:
    """The rows of a query that fit the columns of a table; of each other one the log tells."""
    with sparing():
        rows = (await connection.execute(query)).all()
    return readable(rows, form_of(table).require)


_CLAIMED: dict[str, tuple[type[Any], ...]] = {
    **dict.fromkeys(("tool", "tool_version", "parameters", "context", "options"), (str,)),
    **dict.fromkeys(("reply_to", "sealed"), (str, NoneType)),
    "timeout": (float, int),
    "max_attempts": (int,),
}
_CLAIMED_KINDS = tuple(_CLAIMED.values())
_claimed_values = attrgetter(*_CLAIMED)


def misfit(claim: Claim) -> str | None:
    """Say which value of a claimed call no client of ours has written; None where all fit."""
    values = _claimed_values(claim)
    if all(map(isinstance, values, _CLAIMED_KINDS)) and all(map(is_sound, values)):
        return None
    told = zip(_CLAIMED, values, _CLAIMED_KINDS, strict=True)
    strange = (pair for *pair, kinds in told if not isinstance(pair[1], kinds) or not is_sound(pair[1]))
    name, value = next(strange)
    return f"its {name} is {said(value)}"


def unreadable(table: str, key: object, why: str) -> ForeignRowError:
    """The error of one row, by the table and the key that find it."""
    return ForeignRowError(f"Row {shown_key(key)} of table {table} cannot be read: {why}. {WAY_OUT}")


def shown_key(key: object) -> str:
    """A key in a message: as people write it, if it is one."""
    return str(key)[: 2 * SHOWN] if isinstance(key, str | int) and is_sound(key) else said(key)


def readable(rows: Iterable[Any], read: Callable[[Any], T]) -> list[T]:
    """What is read of those rows that can be read; the log tells of the others, of many by their number."""
    found, count = [], 0
    for row in rows:
        try:
            found.append(read(row))
        except ForeignRowError as error:
            count += 1
            if count <= MOST_TOLD:
                tell(error)
    if count > MOST_TOLD:
        logger.warning("More rows that somebody else wrote do not count", extra={"count": count - MOST_TOLD})
    return found


def tell(error: ForeignRowError) -> None:
    """Say which row does not count, and why."""
    logger.warning("A row that somebody else wrote does not count", extra={"error": error.message})


class NoText(str):
    """A text that is no UTF-8, with lone surrogates for what is none. To SQLite it goes as the bytes it was: no str could."""

    __slots__ = ()

    def __conform__(self, _: object) -> bytes:
        return self.encode(errors="surrogateescape")


def lenient(data: bytes) -> str:
    """Text as SQLite holds it, also where it is no UTF-8: somebody has put it there."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return NoText(data.decode(errors="surrogateescape"))


def said(value: Any) -> str:
    """A foreign value in a message, cut short."""
    value = value.value if isinstance(value, Foreign) else value
    text = ascii(value[:SHOWN] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}..."


def _kinds(type_: TypeEngine[Any]) -> tuple[type[Any], ...]:
    if isinstance(type_, Boolean):
        return (bool,)
    if isinstance(type_, Float):
        return (int, float)
    if isinstance(type_, Integer):
        return (int,)
    if isinstance(type_, LargeBinary):
        return (bytes,)
    holds: tuple[type[Any], ...] = getattr(type_, "holds", (str,))
    return holds


def is_sound(value: Any) -> bool:
    """Whether it could be written again: text that is no UTF-8 is read with lone surrogates."""
    if isinstance(value, str):
        return value.isascii() or not _SURROGATE.search(value)
    return not isinstance(value, float) or math.isfinite(value)
