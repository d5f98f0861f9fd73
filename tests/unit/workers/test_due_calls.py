"""Which due rows a worker takes: all where it is alone or little is due, its own part of a burst, leftovers a look later."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forge_tools.model import Lane, new_id
from forge_tools.model.execution import Scope, Wakeup
from forge_tools.model.overview import WorkerRecord
from forge_tools.storage import Store
from workers.services.polling import FairShare

Due = Callable[[Callable[[], int]], Awaitable[tuple[list[Wakeup], bool]]]


class Rows:
    """Due rows and live workers, as a store would read them."""

    def __init__(self, count: int, instances: Iterable[str], **changes: Any) -> None:
        self.wakeups = [Wakeup(new_id(), 0) for _ in range(count)]
        self.live = [record(instance, **changes) for instance in instances]
        self.queue = SimpleNamespace(due=self._due)
        self.workers = SimpleNamespace(list=self._list)

    async def _due(self, scope: Scope, limit: int) -> list[Wakeup]:
        return self.wakeups[:limit]

    async def _list(self, *, seen_within: float) -> list[WorkerRecord]:
        return self.live


def record(instance: str, lane: Lane = "async", queues: tuple[str, ...] = ("default",), **changes: Any) -> WorkerRecord:
    return WorkerRecord(
        id=instance, hostname=instance, pid=1, lane=lane, queues=queues, concurrency=4, version="1", **changes
    )


def share(rows: Rows, instance: str = "a") -> Due:
    scope = Scope(instance=instance, hostname=instance, pid=1, lane="async", queues=("default",), tool_keys=("T@1",))
    return partial(FairShare(cast("Store", rows), scope, heartbeat=0.02, lease=15).due, scope)


async def taken(due: Due, free: int = 200) -> list[Wakeup]:
    wakeups, _ = await due(lambda: free)
    return wakeups


async def test_the_only_worker_takes_everything_at_once() -> None:
    rows = Rows(40, ["a"])
    assert await taken(share(rows)) == rows.wakeups


async def test_two_workers_take_a_burst_in_parts_that_neither_share_nor_leave_a_row() -> None:
    rows = Rows(40, ["a", "b"])
    one, other = await taken(share(rows, "a")), await taken(share(rows, "b"))
    assert not set(one) & set(other)
    assert set(one) | set(other) == set(rows.wakeups)
    assert min(len(one), len(other)) >= 5


async def test_what_a_peer_leaves_is_taken_at_the_next_look() -> None:
    rows = Rows(40, ["a", "b"])
    one = share(rows)
    mine = await taken(one)
    rows.wakeups = [wakeup for wakeup in rows.wakeups if wakeup not in mine]
    assert await taken(one) == rows.wakeups


async def test_a_handful_is_anybodys() -> None:
    rows = Rows(3, ["a", "b"])
    assert await taken(share(rows)) == rows.wakeups


async def test_rows_that_are_taken_while_it_waits_had_messages_on_their_way() -> None:
    rows = Rows(40, ["a", "b"])
    one = share(rows)
    looks = iter([rows.wakeups, []])

    async def vanishing(scope: Scope, limit: int) -> list[Wakeup]:
        return next(looks)

    rows.queue.due = vanishing
    assert await taken(one) == []


async def test_where_there_is_enough_for_everybody_every_slot_is_filled() -> None:
    rows = Rows(40, ["a", "b"])
    wakeups, is_full = await share(rows)(lambda: 10)
    assert (len(set(wakeups)), is_full) == (10, True)


@pytest.mark.parametrize("changes", [{"lane": "process"}, {"queues": ("background",)}])
async def test_workers_of_other_lanes_or_queues_are_no_peers(changes: dict[str, Any]) -> None:
    rows = Rows(40, ["b"], **changes)
    assert await taken(share(rows)) == rows.wakeups
