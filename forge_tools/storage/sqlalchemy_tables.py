"""The tables for SQLAlchemy, made from `tables.py`; and the types of their columns.

The rule of a column is a CHECK on SQLite. On PostgreSQL it is a domain: the server would parse and plan all CHECKs of a
table again in each statement that writes a row of it.
"""

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.event import listens_for
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn
from sqlalchemy.types import TypeDecorator, TypeEngine

from forge_tools.schema import decode_json
from forge_tools.storage import columns, tables

metadata = MetaData()

_CREATING = Lock()  # migrations run on their own threads


@listens_for(Table, "before_create")
def _add_checks(made: Table, *_: object, **__: object) -> None:
    """Add the CHECKs of columns; only a process that creates tables pays for that."""
    with _CREATING:
        if made.metadata is not metadata or made.info.get("is_checked"):
            return
        made.info["is_checked"] = True
        for dialect in ("sqlite", "postgresql"):
            for column, rule in rules(made, dialect):
                if dialect == "sqlite" or _domain(made.c[column]) is None:
                    check = CheckConstraint(rule, name=check_name(made.name, column))
                    made.append_constraint(check.ddl_if(dialect=dialect))


@listens_for(Table, "before_create")
def _create_domains(made: Table, connection: Connection, **_: object) -> None:
    for column in _in_domains(made, connection):
        type_, rule = column.type.compile(connection.dialect), column.info["kind"].postgresql.format("VALUE")
        check = f"CONSTRAINT {check_name(made.name, column.name)} CHECK ({rule})"
        connection.exec_driver_sql(f"CREATE DOMAIN {_domain(column)} AS {type_} {check}")


@listens_for(Table, "after_drop")
def _drop_domains(made: Table, connection: Connection, **_: object) -> None:
    for column in _in_domains(made, connection):
        connection.exec_driver_sql(f"DROP DOMAIN {_domain(column)}")


@compiles(CreateColumn, "postgresql")
def _of_its_domain(made: CreateColumn, compiler: Any, **kw: Any) -> str:
    said: str = compiler.visit_create_column(made, **kw)
    domain = _domain(made.element)
    return said if domain is None else said.replace(f" {made.element.type.compile(compiler.dialect)}", f" {domain}", 1)


@listens_for(Table, "column_reflect")
def _as_its_base(_: object, reflected: Table, column: dict[str, Any]) -> None:
    """Let Alembic compare the type that statements use."""
    if isinstance(column["type"], postgresql.DOMAIN) and column["type"].name == domain_name(
        reflected.name, column["name"]
    ):
        column["type"] = column["type"].data_type


def _in_domains(made: Table, connection: Connection) -> list[Column[Any]]:
    return [column for column in made.c if connection.dialect.name == "postgresql" and _domain(column)]


def _domain(column: Column[Any]) -> str | None:
    """Return the domain of a column that has a rule. One that counts itself has a CHECK: its type is BIGSERIAL."""
    table = column.table
    if table.metadata is not metadata or column is table.autoincrement_column or not column.info["kind"].postgresql:
        return None
    return domain_name(table.name, column.name)


def rules(of: Table, dialect: str) -> Iterator[tuple[str, str]]:
    """Yield (column, rule) for the columns of a table that have a rule."""
    for column in of.c:
        if rule := getattr(column.info["kind"], dialect):
            said = rule.format(column.name)
            yield column.name, f"{column.name} IS NULL OR {said}" if column.nullable else said


def domain_name(table: str, column: str) -> str:
    return f"{table}_{column}"


def check_name(table: str, column: str) -> str:
    """Return the name of a column's rule, which error messages show."""
    return f"{table}_{column}_check"


# STRICT tables have no BOOLEAN, no BIGINT and no FLOAT.


class _Flag(Boolean):
    pass


@compiles(_Flag, "sqlite")
def _as_integer(*_: object, **__: object) -> str:
    return "INTEGER"


Large = BigInteger().with_variant(Integer(), "sqlite")
Real = Float().with_variant(REAL(), "sqlite")
Identifier = Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")


class MomentText(TypeDecorator[datetime]):
    """An aware UTC time as text in `MOMENT_FORMAT`."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else value.astimezone(UTC).strftime(columns.MOMENT_FORMAT)

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value).replace(tzinfo=UTC)


Moment = MomentText().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


class Json(TypeDecorator[Any]):
    """JSON kept as the original text. SQLite's own JSON type has numeric affinity and would turn `1.0` into `1`."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.dumps(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return decode_json


class _Numbers(Json):
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value


JsonText = Json().with_variant(JSON(none_as_null=True), "postgresql")
Numbers = _Numbers().with_variant(ARRAY(Float(53)), "postgresql")
"""It binds what `in_form` makes."""


def in_form(numbers: Sequence[float], dialect: str) -> Sequence[float] | str:
    """Return numbers in ascending order for a column of `Numbers`; sorting many is slow, so do it before binding."""
    ranked = sorted(numbers)
    return array("d", ranked) if dialect == "postgresql" else json.dumps(ranked, separators=(",", ":"))


_TYPES: dict[str, TypeEngine[Any]] = {
    "bytes": LargeBinary(),
    "flag": _Flag(),
    "integer": Integer(),
    "large": Large,
    "real": Real,
    "identifier": Identifier,
    "moment": Moment,
    "json": JsonText,
    "numbers": Numbers,
    "text": Text(),
}


def _table(of: columns.Relation) -> Table:
    made: list[Column[Any]] = []
    for name, kind, nullable, is_key, counts in of.columns.values():
        options: dict[str, Any] = {"primary_key": is_key, "nullable": nullable and not is_key, "autoincrement": counts}
        made.append(Column(name, _TYPES[kind.type], info={"kind": kind}, **options))
    table = Table(of.name, metadata, *made, sqlite_strict=True, **of.options)
    for index in of.indexes:
        where = None if index.where is None else text(index.where)
        options = {"postgresql_where": where, "sqlite_where": where}
        if index.method is not None:
            options["postgresql_using"] = index.method
        Index(index.name, *(table.c[name] for name in index.columns), unique=index.unique, **options)
    return table


executions = _table(tables.executions)
execution_queue = _table(tables.execution_queue)
execution_attempts = _table(tables.execution_attempts)
execution_events = _table(tables.execution_events)
tools = _table(tables.tools)
workers = _table(tables.workers)
leases = _table(tables.leases)
idempotency_keys = _table(tables.idempotency_keys)
execution_reports = _table(tables.execution_reports)
rollup_hours = _table(tables.rollup_hours)
rollup_figures = _table(tables.rollup_figures)
artifacts = _table(tables.artifacts)
artifact_parts = _table(tables.artifact_parts)
artifact_owners = _table(tables.artifact_owners)
encryption_keys = _table(tables.encryption_keys)
workspaces = _table(tables.workspaces)
session_workspaces = _table(tables.session_workspaces)
shells = _table(tables.shells)
documents = _table(tables.documents)
audit_batches = _table(tables.audit_batches)
audit_executions = _table(tables.audit_executions)
audit_events = _table(tables.audit_events)
