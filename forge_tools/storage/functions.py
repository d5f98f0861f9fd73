"""SQL functions that each database spells differently, so that a statement is written once for both."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self

from sqlalchemy import Boolean, ColumnElement, Dialect, Text, literal, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import NullType, TypeDecorator

from forge_tools.storage.sqlalchemy_engine import AsyncConnection
from forge_tools.storage.sqlalchemy_tables import Json, Moment, Real


class from_now(FunctionElement[datetime]):
    """The database's clock, plus that many seconds."""

    type = Moment
    inherit_cache = True


async def database_now(connection: AsyncConnection, seconds: float = 0.0) -> datetime:
    """Return the current value of `from_now`."""
    said: datetime = (await connection.execute(select(from_now(seconds)))).scalar_one()
    return said


class seconds_between(FunctionElement[float]):
    """Seconds from the first moment to the second."""

    type = Real
    inherit_cache = True


class is_granted(FunctionElement[bool]):
    """Whether this role has a privilege, such as DELETE, on a table."""

    type = Boolean()
    inherit_cache = True


class hour_of(FunctionElement[str]):
    """The hour that contains a moment, in UTC, such as `2026-05-01T12:00Z`."""

    type = Text()
    inherit_cache = True


class stored(FunctionElement[Any]):
    """The column as the driver returns it, not converted to a Python type; JSON is text."""

    type = NullType()
    inherit_cache = True


def any_of(column: ColumnElement[Any], keys: Iterable[Any]) -> ColumnElement[bool]:
    """Return whether a column has one of these keys: like `column.in_(keys)`, but with one parameter.

    However long the list is, the statement is compiled once and the values are bound as one.
    """
    return _AnyOf(column, literal(list(keys), _Keys().with_variant(postgresql.ARRAY(column.type), "postgresql")))


class _Keys(TypeDecorator[list[Any]]):
    """A JSON array as text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: list[Any] | None, dialect: Dialect) -> str:
        return json.dumps(value, default=repr)  # no row has a key of bytes


class _AnyOf(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True

    def self_group(self, against: OperatorType | None = None) -> Self:
        """Stay as it is: SQLite would otherwise be asked whether it `= 1`, and would scan the table for that."""
        return self


_WORDS: dict[type[FunctionElement[Any]], dict[str, str]] = {
    from_now: {"postgresql": "(now() + make_interval(secs => {0}))", "sqlite": "forge_now({0})"},
    seconds_between: {
        # Not extract(): that computes with numeric, which took a fifth of the time for a day's figures.
        "postgresql": "date_part('epoch', {1} - {0})",
        "sqlite": "((julianday({1}) - julianday({0})) * 86400.0)",
    },
    # SQLite has no privileges; both parameters are in its text because SQLAlchemy binds them all the same.
    is_granted: {"postgresql": "has_table_privilege({0}, {1})", "sqlite": "(1 OR {0} OR {1})"},
    hour_of: {
        "postgresql": """to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:00"Z"')""",
        "sqlite": "replace(substr({0}, 1, 13), ' ', 'T') || ':00Z'",
    },
    _AnyOf: {"postgresql": "{0} = ANY ({1})", "sqlite": "{0} IN (SELECT value FROM json_each({1}))"},
    stored: dict.fromkeys(("postgresql", "sqlite"), "{0}"),
}


def _compiled(element: FunctionElement[Any], compiler: SQLCompiler, **kw: Any) -> str:
    [*arguments] = element.clauses
    said = _WORDS[type(element)][compiler.dialect.name].format(*(compiler.process(one, **kw) for one in arguments))
    is_decoded = isinstance(element, stored) and isinstance(arguments[0].type, Json)
    return f"CAST({said} AS TEXT)" if is_decoded and compiler.dialect.name == "postgresql" else said


for _function in _WORDS:
    compiles(_function)(_compiled)
