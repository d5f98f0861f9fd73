"""A rare row is looked for in all of history, and no single statement reads more than a part of it."""

from collections.abc import Callable
from typing import Any

import pytest

from forge_tools.storage import Store
from tests.contract.statements import noted, plan
from tests.contract.test_listing_plans import with_events
from tests.contract.test_overview_plans import CALLS

STEP = 1_000
"""Of 20,000 executions, as many attempts and as many events."""

PAGES = 8 * STEP
"""PostgreSQL: a row costs a few; through all of history it would be twenty times as much."""

STRETCH_PAGES = STEP // 2
"""As PAGES for a step between two others, where no index has what is looked for: pages have many rows each."""

INSTRUCTIONS = 400 * STEP
"""SQLite, as PAGES."""

RARE: dict[str, tuple[Callable[[Store], Any], dict[str, Any]]] = {
    "executions by duration": (lambda store: store.history.pages, {"max_ms": 1.0}),
    "executions by words": (lambda store: store.history.pages, {"error_text": "nowhere"}),
    "executions by two columns": (lambda store: store.history.pages, {"tool": "Grep", "min_ms": 6.0}),
    "executions by code": (lambda store: store.history.pages, {"error_code": "BROKEN", "min_ms": 6.0}),
    "all attempts": (lambda store: store.history.attempt_pages, {}),
    "attempts by duration": (lambda store: store.history.attempt_pages, {"max_ms": 1.0}),
    "attempts by category": (lambda store: store.history.attempt_pages, {"category": "file", "max_ms": 1.0}),
    "events": (lambda store: store.history.event_pages, {"tool": "Bash"}),
    "events of a kind": (lambda store: store.history.event_pages, {"kind": "cancel", "min_ms": 6.0}),
}

BY_STRETCHES = {"executions by duration", "attempts by duration", "all attempts"}


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.history.pages.LONGEST_STEP", STEP)


async def with_coarse_statistics(store: Store) -> None:
    """As of a history that is so long that all of a step lies between two ids that the planner knows."""
    await with_events(store)
    if store.dialect == "postgresql":
        async with store.database.reading() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in ("SET default_statistics_target = 1", "ANALYZE", "RESET default_statistics_target"):
                await connection.exec_driver_sql(statement)


async def cost(store: Store, statement: str, arguments: Any) -> tuple[float, str]:
    """What one run of it reads, as a part of what it may, and the statement with its plan."""
    async with store.database.reading() as connection:
        if store.dialect == "postgresql":
            shown, pages = await plan(connection, statement, arguments)
            return pages / PAGES, f"{statement}\n{arguments}\n{shown}"
        ran = [0]
        raw = (await connection.get_raw_connection()).driver_connection
        assert raw is not None
        await raw.set_progress_handler(lambda: ran.__setitem__(0, ran[0] + 1), 100)
        (await connection.exec_driver_sql(statement, arguments)).all()
        await raw.set_progress_handler(None, 0)
        return 100 * ran[0] / INSTRUCTIONS, statement


async def test_no_statement_looks_through_all_of_history_for_what_is_rare(store: Store) -> None:
    await with_coarse_statistics(store)
    for name, (pages, filters) in RARE.items():
        async with noted(store) as statements:
            found = sum([len(stretch) async for stretch in pages(store)(**filters)])
        assert found == (CALLS if name.startswith("all") else 0)
        looks = [one for one in statements if one[0].startswith("SELECT")]

        costs = [await cost(store, *look) for look in looks[:7] + looks[-6:]]
        assert max(costs)[0] < 1, (name, [part for part, _ in costs], max(costs)[1])
        if name in BY_STRETCHES and store.dialect == "postgresql":
            assert max(costs[3:7])[0] < STRETCH_PAGES / PAGES, (name, max(costs[3:7])[1])
