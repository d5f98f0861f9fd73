"""Plans outlive what the planner knew: one that was made for empty tables must do when a thousand calls run."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from forge_tools.storage.connection.pool import PINNED
from forge_tools.storage.statements import postgres_statement

STATEMENTS = ("claim", "finish", "results")
EACH = ("submit", "submit_one", "submit_linked", "record", "claim", "claim_one", "claim_again", "finish", "finish_one")
EACH += ("settle_late", "results", "holders", "free", "heartbeat", "due", "directory", "workspace_of_session")
OURS = 16_384
"""The least number of a type that is not PostgreSQL's own."""


@pytest.fixture
async def emptied(migrated_postgres: str) -> AsyncIterator[Any]:
    """A connection as the hot path has them, to tables that were looked at while they were empty."""
    connection = await asyncpg.connect(migrated_postgres, server_settings=PINNED)
    await connection.execute("VACUUM ANALYZE")
    yield connection
    await connection.close()


@pytest.mark.parametrize("name", STATEMENTS)
async def test_each_row_is_looked_up_by_its_id_even_by_a_plan_for_empty_tables(emptied: Any, name: str) -> None:
    statement = postgres_statement(name)
    await emptied.execute(f"PREPARE hot AS {statement.text}")

    plan = await emptied.fetch(f"EXPLAIN EXECUTE hot({', '.join(['NULL'] * len(statement.names))})")

    text = "\n".join(line for (line,) in plan)
    scans = re.findall(r"Scan using \w+ on \w+.*\n\s+(\w+ \w+|\w+):", text)
    assert scans
    assert set(scans) == {"Index Cond"}, text
    assert "Seq Scan" not in text


async def test_a_new_connection_never_has_to_ask_about_a_domain(emptied: Any) -> None:
    asked: list[int] = []

    def note(query: Any) -> None:
        if "typeinfo_tree" in query.query:  # asyncpg's own, for types that it does not know
            asked.extend(query.args[0])

    emptied.add_query_logger(note)
    for name in EACH:
        await emptied.prepare(postgres_statement(name).text)
        await asyncio.sleep(0)  # the loop calls it
        assert [each for each in asked if each >= OURS] == [], name
    assert asked  # arrays of its own it does ask about
