"""The types of columns. Each says what the database has to refuse, so that no reader has to doubt a row.

`array` is what PostgreSQL calls a value that is given with those of other rows; without it, text.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from sqlalchemy import ARRAY, JSON, BigInteger, Boolean, CheckConstraint, Dialect, Float, Integer, MetaData, Table, Text
from sqlalchemy.dialects import postgresql
from sqlalchemy.event import listens_for
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeDecorator

from forge_tools.validation import decode_json

metadata = MetaData()

MOMENT_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
"""How SQLite holds a time: UTC text of fixed width, so that it sorts, and SQLite's own functions read it."""

_MAKING = Lock()  # migrations run on threads of their own


@listens_for(Table, "before_create")
def _make_strict(made: Table, *_: object, **__: object) -> None:
    """Make tables STRICT on SQLite, with the CHECKs of their columns' types; only a process that creates tables pays for that."""
    if made.metadata is not metadata:
        return
    with _MAKING:
        if made.dialect_options["sqlite"]["strict"]:
            return
        made.dialect_options["sqlite"]["strict"] = True
        for dialect in ("sqlite", "postgresql"):
            for column, rule in rules(made, dialect):
                made.append_constraint(
                    CheckConstraint(rule, name=check_name(made.name, column)).ddl_if(dialect=dialect)
                )


def rules(of: Table, dialect: str) -> Iterator[tuple[str, str]]:
    """(column, rule) for the columns of a table that have a CHECK."""
    for column in of.c:
        if rule := getattr(column.type, dialect, None):
            said = rule.format(column.name)
            yield column.name, f"{column.name} IS NULL OR {said}" if column.nullable else said


def check_name(table: str, column: str) -> str:
    """The name of the CHECK of a column, which error messages show."""
    return f"{table}_{column}_check"


class Flag(Boolean):
    """True or false."""

    array = "bool"
    sqlite = "{0} IN (0, 1)"


class Count(Integer):
    """A number from 0 that fits 32 bits."""

    array = "int4"
    sqlite = "{0} BETWEEN 0 AND 2147483647"
    postgresql = "{0} >= 0"


class LargeCount(BigInteger):
    """A number from 0."""

    sqlite = postgresql = "{0} >= 0"


class Real(Float[float]):
    """A finite number: no NaN, which PostgreSQL takes for the largest of all."""

    array = "float8"
    sqlite = postgresql = "abs({0}) < 1e300"


class Seconds(Real):
    """A length of time that a clock can be moved by."""

    sqlite = postgresql = "abs({0}) <= 1e9"


@compiles(Flag, "sqlite")
@compiles(LargeCount, "sqlite")
def _as_integer(*_: object, **__: object) -> str:
    return "INTEGER"  # STRICT tables know no BOOLEAN and no BIGINT


@compiles(Real, "sqlite")
@compiles(Seconds, "sqlite")
def _as_real(*_: object, **__: object) -> str:
    return "REAL"


class Choice(TypeDecorator[str]):
    """One of a few texts."""

    impl = Text
    cache_ok = True

    def __init__(self, choices: Iterable[str]) -> None:
        super().__init__()
        self.choices = tuple(map(str, choices))
        # On SQLite, IN makes a table of its list each time.
        self.sqlite = self.postgresql = " OR ".join(f"{{0}} = '{one}'" for one in self.choices)


class PublicKey(Text):
    """32 bytes in base64."""

    sqlite = postgresql = "length({0}) = 44"


class _Uuid(Text):
    array = "uuid"
    sqlite = "{{0}} GLOB '{}'".format("-".join("[0-9a-f]" * digits for digits in (8, 4, 4, 4, 12)))


Identifier = _Uuid().with_variant(postgresql.UUID(as_uuid=False), "postgresql")
"""A UUID that Python sees as text."""


class MomentText(TypeDecorator[datetime]):
    """An aware UTC time as text in `MOMENT_FORMAT`."""

    impl = Text
    cache_ok = True
    # The modifier makes others of days that no month has. A fraction could make the next second of one.
    sqlite = "{0} GLOB coalesce(datetime(substr({0}, 1, 19), '+0 days'), '') || '.[0-9][0-9][0-9][0-9][0-9][0-9]'"
    postgresql = "{0} BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00'"  # Python knows no others

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else value.astimezone(UTC).strftime(MOMENT_FORMAT)

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value).replace(tzinfo=UTC)


Moment = MomentText().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
"""An aware UTC time: `timestamptz` on PostgreSQL, text on SQLite."""


class Json(TypeDecorator[Any]):
    """JSON kept as the text it came in. SQLite's own JSON type has numeric affinity and would turn `1.0` into `1`."""

    impl = Text
    cache_ok = True
    sqlite = "json_valid({0})"

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.dumps(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return decode_json


class _Object(Json):
    cache_ok = True
    sqlite = "json_valid({0}) AND json_type({0}) = 'object'"
    postgresql = "json_typeof({0}) = 'object'"


class _List(Json):
    cache_ok = True
    sqlite = "json_valid({0}) AND json_type({0}) = 'array'"
    postgresql = "json_typeof({0}) = 'array'"


class _Numbers(Json):
    cache_ok = True
    sqlite = _List.sqlite

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value


JsonText, JsonObject, JsonList = (
    kind.with_variant(JSON(none_as_null=True), "postgresql") for kind in (Json(), _Object(), _List())
)
"""Any JSON, an object, an array: `json` on PostgreSQL, since `jsonb` refuses NUL."""

Numbers = _Numbers().with_variant(ARRAY(Float(53)), "postgresql")
"""A list of floats: `double precision[]` on PostgreSQL, a JSON array in TEXT on SQLite. It binds what `in_form` makes."""


def in_form(numbers: Sequence[float], dialect: str) -> Sequence[float] | str:
    """Numbers in ascending order, as a column of `Numbers` takes them; sorting many takes long, so it is done before they are bound."""
    ranked = sorted(numbers)
    return array("d", ranked) if dialect == "postgresql" else json.dumps(ranked, separators=(",", ":"))
