"""The overview reads only the end of history, however long it is and whatever the database's statistics are."""

import time

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model.overview import Overview
from forge_tools.storage import Store
from tests.contract.statements import Sent, noted, plan

CALLS = 20_000
"""One a second, the last one now."""

PAGES = 1500
"""PostgreSQL; both tables have more, and a call in the window costs a few."""

_MS = f"({int(time.time() * 1000)} - 1000 * ({CALLS} - n))"
ID = {
    "postgresql": f"(lpad(to_hex({_MS}), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid",
    "sqlite": f"printf('%08x-%04x-7000-8000-%012x', {_MS} >> 16, {_MS} & 65535, n)",
}
NUMBERS = {
    "postgresql": f"generate_series(1, {CALLS}) AS n",
    "sqlite": f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {CALLS}) SELECT n FROM s)",
}
BY_ID = {"postgresql": "execution_attempts_pkey", "sqlite": "sqlite_autoindex_execution_attempts_1 (execution_id=?"}
"""The index by which the few failures that are shown say why."""

AT = {
    "postgresql": f"now() - make_interval(secs => {CALLS} - n)",
    "sqlite": f"forge_now(n - {CALLS})",
}


async def filled(store: Store) -> None:
    """Insert a history as the hot path would have left it."""
    dialect = store.dialect
    id_, numbers, at = ID[dialect], NUMBERS[dialect], AT[dialect]
    padding = '\'{"a":"' + "x" * 300 + "\"}'"

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(
            text(f"""INSERT INTO executions (id, tool, tool_key, tool_version, tool_digest, category, parameters, context, options,
                       queue, lane, timeout, timeout_source, soft_time_limit, time_limit, max_attempts, idempotent, delay,
                       expires_in, queued_at)
                     SELECT {id_}, 'Grep', 'Grep@1', '1.0.0', 'd1', 'file', {padding}, '{{}}', '{{}}', 'default', 'async', 5, 'tool',
                       6, 7, 1, true, 0, 600, {at} FROM {numbers}""")
        )
        await connection.execute(
            text(f"""INSERT INTO execution_attempts (execution_id, attempt, final, status, started_at, completed_at, duration_ms,
                       output, error_code, metadata)
                     SELECT {id_}, 1, true, CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'succeeded' END, {at}, {at}, 5, {padding},
                       'BROKEN', '{{}}' FROM {numbers}""")
        )

    await store.database.write(work)


async def looked(store: Store) -> tuple[Overview, list[Sent]]:
    """Look once; what was seen, and the statements that it took."""
    async with noted(store) as statements:
        return await store.overviews.read(window=60, lease=15, patience=10), statements


async def test_a_look_reads_the_end_of_history_through_indexes(store: Store) -> None:
    await filled(store)
    seen, statements = await looked(store)
    assert seen.total is not None
    assert 50 <= seen.total.calls <= 62
    assert len(statements) <= 16

    async with store.database.reading() as connection:
        for statement, arguments in statements:
            if statement.startswith("SET LOCAL"):
                await connection.exec_driver_sql(statement)
            elif "execution_attempts" in statement:
                shown, pages = await plan(connection, statement, arguments)
                index = BY_ID[store.dialect] if "diagnosis" in statement else "execution_attempts_completed"
                assert index in shown
                assert not any(scan in shown for scan in ("Seq Scan", "SCAN executions", "SCAN execution_attempts"))
                assert pages < PAGES
