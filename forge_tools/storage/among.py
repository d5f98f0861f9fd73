"""Rows by a list of keys that is one parameter: however long, its statement is compiled once and its values are bound at once."""

import json
from collections.abc import Iterable
from typing import Any, Self

from sqlalchemy import Boolean, ColumnElement, Dialect, LargeBinary, Text, cast, literal
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from forge_tools.storage.foreign import NoText


def among(column: ColumnElement[Any], keys: Iterable[Any]) -> ColumnElement[bool]:
    """Whether a column has one of these keys: as `column.in_(keys)`, which compiles and binds each of them by itself."""
    listed = list(keys)
    if not any(isinstance(key, bytes | NoText) for key in listed):
        return _Among(column, literal(listed, _Keys(column.type)))
    # SQLite takes them from a forger, and JSON has none: such a key is worth a look through the whole table.
    blobs = [key for key in listed if isinstance(key, bytes | NoText)]
    rest = among(column, (key for key in listed if not isinstance(key, bytes | NoText)))
    return rest | cast(column, LargeBinary).in_([literal(key, NullType()) for key in blobs])


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
        return value if dialect.name == "postgresql" else json.dumps(value)


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
