"""The canonical form of rows: bytes that must never change within a format."""

import hashlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Boolean, Column, Float, Integer, MetaData, Table, Text

from forge_tools.storage.audit.hashes import RowForm, join_hashes, line, moment_form, root_of, split_hashes
from forge_tools.storage.sqlalchemy_tables import Identifier, JsonText, Moment


def things(*more: Column[object]) -> Table:
    return Table(
        "things",
        MetaData(),
        Column("id", Identifier),
        Column("at", Moment),
        Column("count", Integer),
        Column("is_final", Boolean),
        Column("took", Float),
        Column("value", JsonText),
        Column("words", Text),
        *more,
    )


TABLE = things()
ID = "01a00000-0000-7000-8000-00000000abcd"
NOON = datetime(2026, 5, 1, 12, 0, 0, 7, tzinfo=UTC)
ON_SQLITE = (NOON.strftime("%Y-%m-%d %H:%M:%S.%f"), 3, ID, 1, 2.0, '{"a": 1.0}', None)
ON_POSTGRES = (NOON.astimezone(timezone(timedelta(hours=2))), 3, ID, True, 2.0, '{"a": 1.0}', None)
SAID = (
    '{"at":1777636800000007,"count":3,"id":"01a00000-0000-7000-8000-00000000abcd","is_final":true,"took":2.0,'
    '"value":"{\\"a\\": 1.0}"}'
)


@pytest.mark.parametrize("row", [ON_SQLITE, ON_POSTGRES], ids=["sqlite", "postgresql"])
def test_a_row_has_the_same_bytes_on_every_database(row: tuple[object, ...]) -> None:
    assert RowForm(TABLE).digest(row) == hashlib.sha256(f"forge-tools audit 1 things\n{SAID}".encode()).digest()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "2026-05-01 12:00:00.000007 "), (0, "2026-05-01T12:00:00.000007"), (0, "2026-05-01 12:00:00"), (0, 5), (0, b"x"),
        (0, "2026-13-01 12:00:00.000000"), (1, "3"), (1, 3.0), (1, True), (2, ID.upper()), (2, ID.encode()), (3, 2), (3, "1"),
        (4, "2.0"), (4, float("nan")), (4, float("inf")), (5, '{"a":1.0}'), (5, b'{"a": 1.0}'), (6, ""), (6, "\udcff"), (6, 7),
    ],
)  # fmt: skip
def test_whatever_else_may_be_stored_there_has_other_bytes(place: int, value: object) -> None:
    row = list(ON_SQLITE)
    row[place] = value
    assert RowForm(TABLE).digest(row) != RowForm(TABLE).digest(ON_SQLITE)


def test_a_column_that_is_empty_does_not_count_so_that_later_ones_may_be_added() -> None:
    later = things(Column("zone", Text))
    assert RowForm(later).digest((*ON_SQLITE, None)) == RowForm(TABLE).digest(ON_SQLITE)
    assert RowForm(later).digest((*ON_SQLITE, "")) != RowForm(TABLE).digest(ON_SQLITE)


def test_times_keep_their_microseconds_before_and_after_1970() -> None:
    assert moment_form("1969-12-31 23:59:59.999999") == -1
    assert moment_form(datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)) == 253402300799999999


def test_hashes_of_an_execution_are_told_apart_again() -> None:
    row, first, second = (hashlib.sha256(bytes([n])).digest() for n in range(3))
    joined = join_hashes(row, [(2, second), (1, first)])
    assert split_hashes(joined) == (row, {1: first, 2: second})
    assert split_hashes(join_hashes(row, [])) == (row, {})


def test_the_root_is_that_of_the_lines_whatever_their_order() -> None:
    lines = [line("event", 3, b"\x01"), line("execution", ID, b"\xff")]
    text = f"forge-tools audit 1 root\nevent 3 01\nexecution {ID} ff\n"
    assert root_of(lines) == root_of(lines[::-1]) == hashlib.sha256(text.encode()).hexdigest()
