"""Tables, columns and indexes as plain data; a column's kind says what the database has to refuse, so that no reader has to doubt a row.

Statements and records are made from these alone, without SQLAlchemy, whose tables (`tables.py`) are made from them, too.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

MOMENT_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
"""How SQLite holds a time: UTC text of fixed width, so that it sorts, and SQLite's own functions read it."""


class Kind(NamedTuple):
    """What a column holds. `array` is what PostgreSQL calls a value that is given with those of other rows.

    `sqlite` and `postgresql` are the rule of the CHECK there, where `{0}` is the column; None: there is none.
    """

    name: str
    array: str = "text"
    sqlite: str | None = None
    postgresql: str | None = None
    is_json: bool = False


def choice(choices: Iterable[str]) -> Kind:
    """One of a few texts."""
    # On SQLite, IN makes a table of its list each time.
    rule = " OR ".join(f"{{0}} = '{one}'" for one in choices)
    return Kind("choice", sqlite=rule, postgresql=rule)


def _alike(name: str, rule: str, array: str = "text") -> Kind:
    return Kind(name, array, rule, rule)


Text = Kind("text")
Bytes = Kind("bytes")
PublicKey = _alike("public_key", "length({0}) = 44")
"""32 bytes in base64."""
Flag = Kind("flag", "bool", sqlite="{0} IN (0, 1)")
Integer = Kind("integer")
Count = Kind("count", "int4", "{0} BETWEEN 0 AND 2147483647", "{0} >= 0")
"""A number from 0 that fits 32 bits."""
LargeCount = _alike("large_count", "{0} >= 0")
Real = _alike("real", "abs({0}) < 1e300", "float8")
"""A finite number: no NaN, which PostgreSQL takes for the largest of all."""
Seconds = _alike("seconds", "abs({0}) <= 1e9", "float8")
"""A length of time that a clock can be moved by."""
Identifier = Kind(
    "identifier", "uuid", sqlite="{{0}} GLOB '{}'".format("-".join("[0-9a-f]" * digits for digits in (8, 4, 4, 4, 12)))
)
"""A UUID that Python sees as text."""
Moment = Kind(
    "moment",
    # The modifier makes others of days that no month has. A fraction could make the next second of one.
    sqlite="{0} GLOB coalesce(datetime(substr({0}, 1, 19), '+0 days'), '') || '.[0-9][0-9][0-9][0-9][0-9][0-9]'",
    postgresql="{0} BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00'",  # Python knows no others
)
"""An aware UTC time: `timestamptz` on PostgreSQL, text in `MOMENT_FORMAT` on SQLite."""
JsonText = Kind("json", sqlite="json_valid({0})", is_json=True)
JsonObject = Kind(
    "json_object",
    sqlite="json_valid({0}) AND json_type({0}) = 'object'",
    postgresql="json_typeof({0}) = 'object'",
    is_json=True,
)
JsonList = Kind(
    "json_list",
    sqlite="json_valid({0}) AND json_type({0}) = 'array'",
    postgresql="json_typeof({0}) = 'array'",
    is_json=True,
)
"""Any JSON, an object, an array: `json` on PostgreSQL, since `jsonb` refuses NUL."""
Numbers = Kind("numbers", sqlite=JsonList.sqlite)
"""A list of floats: `double precision[]` on PostgreSQL, a JSON array in TEXT on SQLite."""


class Column(NamedTuple):
    name: str
    kind: Kind
    nullable: bool = True
    primary_key: bool = False
    autoincrement: bool = True


class Index(NamedTuple):
    """`where` leaves rows out, spelled as in the statements that use it; `method` is PostgreSQL's."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    where: str | None = None
    method: str | None = None


class Relation:
    """A table: its columns by name, its indexes, and what else SQLAlchemy is to tell a database of it."""

    def __init__(self, name: str, *parts: Column | Index, **options: Any) -> None:
        self.name = name
        self.columns = {part.name: part for part in parts if isinstance(part, Column)}
        self.indexes = [part for part in parts if isinstance(part, Index)]
        self.options = options
