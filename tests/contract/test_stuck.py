"""The contract of stuck calls, on every database: what does not move is found, what merely waits is not."""

from typing import Any

import pytest
from sqlalchemy import update

from forge_tools.model import ToolCategory, ToolSpec
from forge_tools.model.overview import StuckCalls, StuckReason
from forge_tools.storage import Store
from forge_tools.storage.functions import from_now
from forge_tools.storage.sqlalchemy_tables import execution_queue, workers
from tests.contract.calls import instance, running, scope, submitted


async def stuck(store: Store) -> list[StuckCalls]:
    return list((await store.overviews.read(window=1.0, lease=15, patience=10)).stuck)


async def served(store: Store, name: str = "instance-1", tool: str = "Grep", **changes: Any) -> None:
    """A live worker that hosts the tool."""
    await store.workers.register(instance(name, **changes))
    await store.catalogue.publish([ToolSpec(name=tool, description="x", category=ToolCategory.FILE)], name)


async def shift(store: Store, **columns: float) -> None:
    """Let moments of every call lie that many seconds from now."""
    values = {column: from_now(seconds) for column, seconds in columns.items()}
    await store.database.write(lambda connection: connection.execute(update(execution_queue).values(**values)))


async def test_a_call_that_runs_on_a_silent_worker_is_stuck(store: Store) -> None:
    await served(store)
    claim = await running(store)
    assert await stuck(store) == []
    silent = update(workers).values(last_seen_at=from_now(-16.0))
    await store.database.write(lambda connection: connection.execute(silent))
    [found] = await stuck(store)
    assert (found.reason, found.count, found.example) == (StuckReason.OWNER_GONE, 1, claim.id)
    assert (found.hostname, found.pid, found.tool, found.queue, found.lane) == (
        "host-1", 11, "Grep", "default", "async"
    )  # fmt: skip


@pytest.mark.parametrize("owner", ["stopped", "unknown"])
async def test_a_call_whose_owner_stopped_or_has_no_row_is_stuck(store: Store, owner: str) -> None:
    await served(store)
    await running(store, by=scope(instance="instance-1" if owner == "stopped" else "ghost"))
    if owner == "stopped":
        await store.workers.stop("instance-1")
    assert [one.reason for one in await stuck(store)] == [StuckReason.OWNER_GONE]


async def test_a_call_that_runs_a_lease_beyond_its_limit_is_stuck(store: Store) -> None:
    await served(store)
    await running(store)
    await running(store)
    await shift(store, started_at=-21.0)
    assert await stuck(store) == []
    await shift(store, started_at=-23.0)
    [found] = await stuck(store)
    assert (found.reason, found.count) == (StuckReason.OVERDUE, 2)
    assert 23 <= found.seconds < 60


async def test_a_due_call_that_a_worker_with_free_slots_does_not_take_is_stuck(store: Store) -> None:
    await served(store)
    await submitted(store)
    assert await stuck(store) == []
    await shift(store, not_before=-11.0)
    assert [one.reason for one in await stuck(store)] == [StuckReason.NOT_TAKEN]


async def test_a_call_that_waits_for_a_slot_is_not_stuck(store: Store) -> None:
    await served(store, concurrency=1)
    await running(store)
    await submitted(store)
    await shift(store, not_before=-11.0)
    assert await stuck(store) == []


async def test_a_call_whose_tool_no_worker_of_its_queue_hosts_is_stuck(store: Store) -> None:
    await served(store, tool="Read")
    await submitted(store)
    await shift(store, not_before=-11.0)
    assert [one.reason for one in await stuck(store)] == [StuckReason.NOT_HOSTED]


async def test_a_call_in_a_queue_that_nobody_serves_is_not_stuck_but_unserved(store: Store) -> None:
    await served(store, queues=("background",))
    await submitted(store)
    await shift(store, not_before=-11.0)
    assert await stuck(store) == []


async def test_a_call_of_a_disabled_tool_is_said_to_wait_for_that(store: Store) -> None:
    await served(store)
    await submitted(store)
    await shift(store, not_before=-11.0)

    await store.catalogue.switch("Grep", is_enabled=False)

    assert [one.reason for one in await stuck(store)] == [StuckReason.DISABLED]
