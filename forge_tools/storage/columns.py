"""Tables, columns and indexes as plain data; a column's kind says what the database refuses, so readers trust rows.

Statements and records are made from these without SQLAlchemy; its own (`sqlalchemy_tables.py`) are made from them, too.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

MOMENT_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
"""How SQLite stores a time: fixed-width UTC text, which sorts, and which SQLite's own functions can read."""


class Kind(NamedTuple):
    """What a column holds: its `type`, by a name of ours, which several kinds may share (`sqlalchemy_tables.py`).

    `array` is PostgreSQL's type for its values when those of many rows are passed as one array. `sqlite` and `postgresql`
    are its rule there, with `{0}` for the column; None: no rule.
    """

    type: str
    array: str = "text"
    sqlite: str | None = None
    postgresql: str | None = None


def choice(choices: Iterable[str]) -> Kind:
    # On SQLite, IN would build a table of its list on each evaluation.
    rule = " OR ".join(f"{{0}} = '{one}'" for one in choices)
    return _alike("text", rule)


def _alike(type: str, rule: str) -> Kind:
    return Kind(type, sqlite=rule, postgresql=rule)


Text = Kind("text")
Bytes = Kind("bytes")
PublicKey = _alike("text", "length({0}) = 44")
"""32 bytes in base64."""
Flag = Kind("flag", "bool", sqlite="{0} IN (0, 1)")
Integer = Kind("integer")
Count = Kind("integer", "int4", "{0} BETWEEN 0 AND 2147483647", "{0} >= 0")
"""A non-negative number that fits 32 bits."""
PositiveCount = Kind("integer", "int4", "{0} BETWEEN 1 AND 2147483647", "{0} >= 1")
LargeCount = _alike("large", "{0} >= 0")
Real = Kind("real", "float8", "abs({0}) < 1e300", "abs({0}) < float8 '1e300'")
"""A finite number: not NaN, which PostgreSQL orders above all others.

Without the type PostgreSQL would keep a number of 300 digits.
"""
Seconds = Kind("real", "float8", "abs({0}) <= 1e9", "abs({0}) <= float8 '1e9'")
"""A duration that can be added to a clock."""
Identifier = Kind(
    "identifier", "uuid", sqlite="{{0}} GLOB '{}'".format("-".join("[0-9a-f]" * digits for digits in (8, 4, 4, 4, 12)))
)
"""A UUID, which is text in Python."""
Moment = Kind(
    "moment",
    # The modifier normalizes days that do not exist. With a fraction it could round up to the next second.
    sqlite="{0} GLOB coalesce(datetime(substr({0}, 1, 19), '+0 days'), '') || '.[0-9][0-9][0-9][0-9][0-9][0-9]'",
    postgresql="{0} BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00'",  # the range of Python's datetime
)
"""An aware UTC time: `timestamptz` on PostgreSQL, text in `MOMENT_FORMAT` on SQLite."""
JsonText = Kind("json", "text", "json_valid({0})")
JsonObject = Kind("json", "text", "json_valid({0}) AND json_type({0}) = 'object'", "json_typeof({0}) = 'object'")
JsonList = Kind("json", "text", "json_valid({0}) AND json_type({0}) = 'array'", "json_typeof({0}) = 'array'")
"""Any JSON, an object, an array: `json` on PostgreSQL, since `jsonb` refuses NUL."""
Numbers = Kind("numbers", sqlite=JsonList.sqlite)
"""A list of floats: `double precision[]` on PostgreSQL, a JSON array in TEXT on SQLite."""


class Column(NamedTuple):
    name: str
    kind: Kind
    nullable: bool = True
    primary_key: bool = False
    autoincrement: bool = False


class Index(NamedTuple):
    """`where` makes the index partial, spelled as in the statements that use it; `method` is PostgreSQL's."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    where: str | None = None
    method: str | None = None


class Relation:
    """A table: its columns by name, its indexes, and the options that SQLAlchemy passes to a database."""

    def __init__(self, name: str, *parts: Column | Index, **options: Any) -> None:
        self.name = name
        self.columns = {part.name: part for part in parts if isinstance(part, Column)}
        self.indexes = [part for part in parts if isinstance(part, Index)]
        self.options = options
