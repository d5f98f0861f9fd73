"""Rows by a list of keys that is one parameter: however long, its statement is compiled once and its values are bound at once."""

import json
from collections.abc import Iterable
from typing import Any, Self

from sqlalchemy import Boolean, ColumnElement, Dialect, Text, literal
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeDecorator, TypeEngine


def among(column: ColumnElement[Any], keys: Iterable[Any]) -> ColumnElement[bool]:
    """Whether a column has one of these keys: as `column.in_(keys)`, which compiles and binds each of them by itself."""
    return _Among(column, literal(list(keys), _Keys(column.type)))


class _Keys(TypeDecorator[list[Any]]):
    """An array on PostgreSQL, text of JSON on SQLite."""

    impl = Text
    cache_ok = True

    def __init__(self, of: TypeEngine[Any]) -> None:
        super().__init__()
        self.of = of

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.ARRAY(self.of.dialect_impl(dialect)))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: list[Any] | None, dialect: Dialect) -> Any:
        return value if dialect.name == "postgresql" else json.dumps(value, default=repr)  # bytes are no row's key


class _Among(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True

    def self_group(self, against: OperatorType | None = None) -> Self:
        """Stay as it is: SQLite would be asked whether it `= 1`, and would look through the table for that."""
        return self


@compiles(_Among, "postgresql")
def _among_on_postgresql(element: _Among, compiler: SQLCompiler, **kw: Any) -> str:
    column, keys = (compiler.process(one, **kw) for one in element.clauses)
    return f"{column} = ANY ({keys})"


@compiles(_Among, "sqlite")
def _among_on_sqlite(element: _Among, compiler: SQLCompiler, **kw: Any) -> str:
    column, keys = (compiler.process(one, **kw) for one in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({keys}))"
