"""Driver errors, translated into this package's errors."""

import sqlite3

import pytest

from forge_tools.errors import DatabaseCorruptError, ForgeError, SchemaVersionError, StorageError
from forge_tools.storage.connection.faults import ConflictError, RefusedError, UnreachableError, explain, translated

SHOWN = "postgresql://forge:***@db/tools"


class ServerError(Exception):
    """What asyncpg raises for an error that the server reports."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("said the server")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("40P01", ConflictError),
        ("40001", ConflictError),
        ("57014", ConflictError),
        ("22P05", RefusedError),
        ("23514", RefusedError),
        ("54000", RefusedError),
        ("42P01", SchemaVersionError),
        ("XX001", DatabaseCorruptError),
        ("57P01", UnreachableError),
        ("08006", UnreachableError),
        ("53300", UnreachableError),
        ("3D000", UnreachableError),
        ("28P01", UnreachableError),
        ("25006", UnreachableError),
        ("42601", StorageError),
    ],
)
def test_each_class_of_server_error_has_one_meaning(state: str, kind: type[ForgeError]) -> None:
    error = explain(ServerError(state), SHOWN)
    assert type(error) is kind
    assert SHOWN in str(error)


def test_a_server_that_only_reads_is_told_from_one_that_is_away() -> None:
    assert "only be read there: name the primary in FORGE_DATABASE_URL" in str(explain(ServerError("25006"), SHOWN))


@pytest.mark.parametrize(("state", "may_pass"), [("57P03", True), ("53300", True), ("3D000", False), ("28P01", False)])
def test_what_somebody_has_to_change_does_not_pass(state: str, may_pass: bool) -> None:
    error = explain(ServerError(state), SHOWN)
    assert isinstance(error, UnreachableError)
    assert error.may_pass is may_pass


@pytest.mark.parametrize(("state", "maybe"), [("57P01", True), ("08006", True), ("57P03", False), ("3D000", False)])
def test_only_an_error_during_a_statement_leaves_doubt(state: str, maybe: bool) -> None:
    error = explain(ServerError(state), SHOWN)
    assert isinstance(error, UnreachableError)
    assert error.maybe_committed is maybe


@pytest.mark.parametrize(
    ("provoke", "kind"),
    [
        ("INSERT INTO nowhere VALUES (1)", SchemaVersionError),
        ("INSERT INTO t (missing) VALUES (1)", SchemaVersionError),
        ("INSERT INTO t VALUES (NULL)", RefusedError),
        ("SELEKT", StorageError),
    ],
)
def test_sqlite_errors_are_told_apart_by_their_code(provoke: str, kind: type[ForgeError]) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x NOT NULL)")
    with pytest.raises(kind), translated("sqlite:///x.db"):
        connection.execute(provoke)
    connection.close()


@pytest.mark.parametrize("value", ["\ud800", 2**80, object()])
def test_values_that_sqlite_cannot_take_are_refused(value: object) -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(RefusedError), translated("sqlite:///x.db"):
        connection.execute("SELECT ?", (value,))
    connection.close()


def test_a_full_database_says_what_to_do() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(UnreachableError, match=r"is full.*Make room") as caught, translated("sqlite:///x.db"):
        connection.execute("CREATE TABLE t (x)")
    connection.close()

    assert not caught.value.maybe_committed
    assert "is full" in str(explain(ServerError("53100"), SHOWN))


def test_a_silent_timeout_says_what_happened() -> None:
    assert "did not answer in time" in str(explain(TimeoutError(), SHOWN))


def test_errors_of_this_package_and_defects_pass_as_they_are() -> None:
    for error in (StorageError("x"), KeyError("x")):
        with pytest.raises(type(error)) as caught, translated(SHOWN):
            raise error
        assert caught.value is error
