"""Rows are found by a list of keys through an index, however long the list is."""

from collections.abc import Sequence

import pytest
from sqlalchemy import Executable, and_, delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model import new_id
from forge_tools.storage import Store
from forge_tools.storage.functions import any_of
from forge_tools.storage.sqlalchemy_tables import execution_events, executions
from tests.contract.calls import submitted
from tests.contract.statements import noted, plan

KEYS = 70_000
"""More than either database takes as parameters of one statement."""


async def counted(store: Store, ids: Sequence[str]) -> int:
    async with store.database.reading() as connection:
        return await connection.scalar(select(func.count()).where(any_of(executions.c.id, ids))) or 0


async def test_those_are_found_whose_keys_are_listed(store: Store) -> None:
    one, _, other = [await submitted(store) for _ in range(3)]
    assert await counted(store, [one, other, new_id()]) == 2
    assert await counted(store, []) == 0
    assert await counted(store, [*(new_id() for _ in range(KEYS)), one]) == 1


async def planned(store: Store, statement: Executable) -> str:
    """How the database goes about it; PostgreSQL is kept from reading through a table only because it is small."""

    async def work(connection: AsyncConnection) -> str:
        if store.dialect == "postgresql":
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
        async with noted(store) as sent:
            await connection.execute(statement)
        return (await plan(connection, *sent[-1]))[0]

    return await store.database.write(work)


@pytest.mark.parametrize(
    "statement",
    [
        select(executions.c.tool).where(any_of(executions.c.id, [new_id()])),
        select(executions.c.tool).where(and_(any_of(executions.c.id, [new_id()]), executions.c.tool != "x")),
        delete(executions).where(any_of(executions.c.id, [new_id()])),
        delete(execution_events).where(any_of(execution_events.c.id, [7]), execution_events.c.kind != "x"),
    ],
)
async def test_no_table_is_read_through_for_them(store: Store, statement: Executable) -> None:
    shown = await planned(store, statement)
    if store.dialect == "postgresql":
        assert '"Index Cond": "(id = ANY' in shown
    else:
        assert "SEARCH execution" in shown
        assert "SCAN execution" not in shown
