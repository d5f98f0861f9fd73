"""The page for auditors: each statement runs unchanged on every database and returns rows."""

import re
from pathlib import Path

import pytest
from celery.backends.database.models import TaskExtended
from sqlalchemy import LargeBinary

from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus
from forge_tools.storage import Store
from tests.contract.calls import ended, finish_one, running
from tests.contract.sealed import seal_all, sealed_past
from tests.contract.test_retention import everything, pruned

PAGE = (Path(__file__).parents[2] / "docs" / "auditors.md").read_text()
STATEMENTS = re.findall(r"^(\S[^\n]*\?)[^\n]*\n\n```sql\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_has_a_question_above_every_statement() -> None:
    assert len(STATEMENTS) == PAGE.count("```sql") == 10


@pytest.fixture
async def audited(store: Store) -> Store:
    """A past in which everything happened that is asked for."""
    await sealed_past(store)
    lost = await running(store)
    await finish_one(store, ended(lost, ExecutionStatus.LOST, error="died", error_code=ErrorCode.LOST))
    await finish_one(store, ended(await running(store, tool="Bash"), ExecutionStatus.FAILED))
    assert await pruned(store, everything(tool="Bash")) == 1
    await seal_all(store)
    return store


async def test_every_statement_runs_as_it_stands_and_finds_something(audited: Store) -> None:
    for question, statement in STATEMENTS:
        async with audited.database.reading() as connection:
            rows = (await connection.exec_driver_sql(statement)).all()
        assert rows, question


def test_the_table_of_celery_is_as_the_page_says() -> None:
    columns = TaskExtended.__table__.columns
    assert f"`{', '.join(column.name for column in columns)}`" in PAGE
    assert all(isinstance(columns[name].type, LargeBinary) for name in ("result", "args", "kwargs"))
