"""A page of events is read through indexes, the thousandth like the first."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.storage import Store
from tests.contract.statements import Sent, noted, plan
from tests.contract.test_overview_plans import AT, ID, NUMBERS, filled

PAGES = 800
"""PostgreSQL; the tables have more, and a row of a page costs a few."""


async def with_events(store: Store) -> None:
    await filled(store)
    id_, numbers, at = ID[store.dialect], NUMBERS[store.dialect], AT[store.dialect]

    async def work(connection: AsyncConnection) -> None:
        kind = "CASE WHEN n % 1000 = 0 THEN 'lost' ELSE 'cancel' END"
        await connection.execute(
            text(f"""INSERT INTO execution_events (execution_id, at, kind, actor, detail)
                     SELECT {id_}, {at}, {kind}, 'somebody', '{{}}' FROM {numbers}""")
        )

    await store.database.write(work)
    async with store.database.reading() as connection:
        if store.dialect == "postgresql":
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.exec_driver_sql("VACUUM ANALYZE")


async def statement_of(store: Store, read: Any, filters: dict[str, Any]) -> Sent:
    async with noted(store) as statements:
        assert await read(limit=20, **filters)
    return statements[-1]


async def test_a_page_of_events_is_read_in_order_through_an_index(store: Store) -> None:
    await with_events(store)
    for filters in ({}, {"kind": "lost"}, {"tool": "Grep"}, {"before": "3000"}, {"before": "3000", "kind": "lost"}):
        statement, arguments = await statement_of(store, store.history.list_events, filters)
        async with store.database.reading() as connection:
            shown, pages = await plan(connection, statement, arguments)
        assert not any(scan in shown for scan in ("Seq Scan", "USE TEMP B-TREE FOR ORDER BY")), (filters, shown)
        assert "execution_events_by_" in shown
        assert pages < PAGES, (filters, shown)
