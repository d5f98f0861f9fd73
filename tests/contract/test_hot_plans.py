"""Plans outlive what the planner knew: one that was made for empty tables must do when a thousand calls run."""

import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from forge_tools.storage.connection.pool import PINNED
from forge_tools.storage.statements import postgres_statement

STATEMENTS = ("claim", "finish", "results")


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
