"""The `.sql` files: what their blocks become, and that nothing of a call is left out of them."""

import re

import pytest

from forge_tools.storage.rows import ASKED, OUTCOME
from forge_tools.storage.statements import FOLDER, postgres_statement, settings, sqlite_statement

BLOCKS = [
    (file.stem.removesuffix("_statements"), name)
    for file in sorted(FOLDER.glob("*.sql"))
    for name in re.findall(r"(?m)^-- name: (\w+)$", file.read_text())
]


def text_of(dialect: str, name: str) -> str:
    return sqlite_statement(name) if dialect == "sqlite" else postgres_statement(name).text


@pytest.mark.parametrize(("dialect", "name"), BLOCKS)
def test_a_block_is_filled_and_rid_of_its_comments(dialect: str, name: str) -> None:
    text = text_of(dialect, name)

    assert text
    assert not re.search(r"\{\w+\}|^--", text, re.MULTILINE)


def test_no_two_blocks_of_a_database_share_a_name() -> None:
    assert len(BLOCKS) == len(set(BLOCKS))
    assert {dialect for dialect, _ in BLOCKS} == {"postgresql", "sqlite"}


@pytest.mark.parametrize("name", ["submit", "record", "submit_linked"])
def test_postgresql_is_given_every_column_of_a_call(name: str) -> None:
    assert set(ASKED) <= set(postgres_statement(name).names)


def test_postgresql_is_given_every_column_of_an_outcome_as_an_array_of_its_type() -> None:
    finish = postgres_statement("finish")

    assert set(OUTCOME) <= set(finish.names)
    assert f"${finish.names.index('duration_ms') + 1}::float8[]" in finish.text
    assert "metadata::json" in finish.text


def test_sqlite_is_given_every_column_of_a_call_and_of_an_outcome() -> None:
    assert all(f":{name}" in sqlite_statement("insert") for name in ASKED)
    assert all(f":{name}" in sqlite_statement("insert_attempt") for name in OUTCOME)


def test_a_parameter_has_one_number_however_often_it_stands_there() -> None:
    due = postgres_statement("due")

    assert due.names == ("queues", "keys", "lane", "limit")
    assert due.text.count("LIMIT $4") == 2
    assert due.arguments({"limit": 5, "lane": "async", "keys": ["a"], "queues": [], "more": 0}) == [
        [],
        ["a"],
        "async",
        5,
    ]


def test_what_a_transaction_needs_first_is_run_one_by_one_and_nothing_on_sqlite() -> None:
    assert len(settings("postgresql", "by_index")) == 4
    assert not any(";" in said for said in settings("postgresql", "by_index"))
    assert settings("sqlite", "by_index") == []


def test_whatever_is_prepared_is_a_block_of_postgresql() -> None:
    sources = FOLDER.parent.rglob("*.py")
    asked = {name for file in sources for name in re.findall(r'prepare\(.*?"(\w+)"', file.read_text())}

    assert len(asked) > 3
    assert {("postgresql", name) for name in asked} <= {*BLOCKS}
