"""Which calls a worker claims when a message comes, and when it may have the next one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from forge_tools.errors import DatabaseUnavailableError
from forge_tools.model.execution import Claim, Wakeup
from forge_tools.storage import Store, open_store
from tests.contract.calls import SCOPE, finished, submitted
from tests.migrated import migrated
from tests.waiting import reached
from workers.app import HandOver
from workers.claims import Claims, Recorder
from workers.middleware.base import Activity
from workers.services.polling import DueCalls, FairShare


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[Store]:
    async with await open_store(migrated(sqlite_url)) as opened:
        yield opened


class Worker:
    """One with slots, which the test frees. It has not asked SQL for due calls yet, and does so at the first message."""

    def __init__(self, store: Store, *, slots: int, keeps_rest: bool) -> None:
        self.slots = slots
        self.ran: list[str] = []
        self.sent_on: list[str] = []
        self.acknowledged = 0
        self.activity = Activity()
        self.is_fit = True
        fit: Any = SimpleNamespace(lacks=None, may_claim=lambda: self.is_fit, may_run=lambda: self.is_fit)
        lane: Any = SimpleNamespace(free_slots=lambda: self.slots, run=self._run)
        recorder = Recorder(store, self.activity, (), retry_seconds=1.0)
        how: dict[str, Any] = {"middleware": (), "send_on": self._send_on, "heartbeat": 60.0, "keeps_rest": keeps_rest}
        self.claims = Claims(store, lane, lambda: SCOPE, fit, recorder, activity=self.activity, **how)

    def _run(self, claims: Sequence[Claim]) -> None:
        self.ran += [claim.id for claim in claims]
        self.slots -= len(claims)

    def _send_on(self, wakeups: Sequence[Wakeup], queue: str, *, is_bulk: bool) -> None:
        self.sent_on += [wakeup.id for wakeup in wakeups]

    def hand_over(self, *ids: str) -> None:
        self.claims.hand_over([Wakeup(one, 0) for one in ids], "default", is_bulk=False, taken=self._taken)

    def _taken(self) -> None:
        self.acknowledged += 1

    async def free(self, slots: int = 1) -> None:
        self.slots += slots
        self.activity.announce()

    async def take(self, *ids: str) -> list[str]:
        """What runs because of a message."""
        before = len(self.ran)
        await self.claims.take([Wakeup(one, 0) for one in ids], "default")
        return self.ran[before:]


@pytest.fixture
async def worker(store: Store) -> Worker:
    """Of the process lane, full with one call."""
    return Worker(store, slots=1, keeps_rest=True)


@pytest.fixture
async def roomy(store: Store) -> Worker:
    """Of the async lane."""
    return Worker(store, slots=2, keeps_rest=False)


async def test_a_call_gives_way_to_overdue_ones_that_are_still_there(store: Store) -> None:
    worker = Worker(store, slots=9, keeps_rest=True)
    first, gone, kept = [await submitted(store) for _ in range(3)]
    assert await worker.take(first) == [first]
    await finished(store, [gone])
    late, last = [await submitted(store) for _ in range(2)]
    worker.slots = 1

    taking = asyncio.create_task(worker.take(late, last))
    await reached(lambda: worker.slots == 0)
    assert worker.ran == [first, kept]
    await worker.free(2)

    assert await taking == [kept, late, last]


async def test_what_was_claimed_runs_before_the_rest_is_asked_for(
    worker: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await submitted(store) for _ in range(2)]
    taking = asyncio.create_task(worker.take(*ids))
    await reached(lambda: worker.ran)

    async def unavailable(*_: Any) -> Any:
        raise DatabaseUnavailableError("The database is away")

    monkeypatch.setattr(store.queue, "claim", unavailable)
    await worker.free()

    with pytest.raises(DatabaseUnavailableError):
        await taking
    assert worker.ran == ids[:1]


async def test_ids_that_find_no_slot_wait_for_the_next_one(worker: Worker, store: Store) -> None:
    ids = [await submitted(store) for _ in range(3)]
    worker.hand_over(*ids)
    await reached(lambda: worker.ran == ids[:1])
    assert worker.claims.woken_at

    await worker.free(2)

    await reached(lambda: worker.ran == ids)
    assert worker.sent_on == []


async def test_ids_that_find_no_slot_in_the_async_lane_are_sent_on(roomy: Worker, store: Store) -> None:
    ids = [await submitted(store) for _ in range(3)]

    assert await roomy.take(*ids) == ids[:2]
    assert roomy.sent_on == ids[2:]


async def test_overdue_calls_without_a_slot_are_not_sent_on_to_the_queue_of_a_message(
    roomy: Worker, store: Store
) -> None:
    """They may be of another queue of this worker: whoever got them there would wake for nothing."""
    overdue = [await submitted(store) for _ in range(3)]
    ids = [await submitted(store) for _ in range(3)]

    assert await roomy.take(*ids) == overdue[:2]
    assert roomy.sent_on == ids
    await roomy.free()

    assert await roomy.take(ids[0]) == overdue[2:]


async def test_a_worker_that_stops_sends_on_what_still_waits(worker: Worker, store: Store) -> None:
    ids = [await submitted(store) for _ in range(2)]
    taking = asyncio.create_task(worker.take(*ids))
    await reached(lambda: worker.ran)

    worker.claims.close()

    assert await taking == ids[:1]
    assert worker.sent_on == ids[1:]


async def test_a_message_that_comes_after_the_signal_to_stop_is_sent_on(
    roomy: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, told = await submitted(store), list[int]()
    message = SimpleNamespace(delivery_info={"routing_key": "forge.default.async"}, body=[Wakeup(id_, 0)])
    take = HandOver(roomy.claims)(None, None, SimpleNamespace(connection_errors=()))
    monkeypatch.setattr(state, "should_stop", 0)

    take(message, None, lambda *_: told.append(1))

    await reached(lambda: told)
    assert (roomy.ran, roomy.sent_on) == ([], [id_])


async def test_a_message_that_leaves_a_slot_is_acknowledged_at_once(roomy: Worker) -> None:
    roomy.hand_over("gone")

    assert roomy.acknowledged == 1


async def test_a_full_worker_leaves_the_next_message_to_others(worker: Worker, store: Store) -> None:
    worker.hand_over(id_ := await submitted(store))
    await reached(lambda: worker.ran == [id_])
    await asyncio.sleep(0.05)
    assert worker.acknowledged == 0

    await worker.free()

    await reached(lambda: worker.acknowledged == 1)


@pytest.mark.parametrize("failure", [None, DatabaseUnavailableError("The database is away"), KeyError("a defect")])
async def test_a_message_in_vain_costs_no_slot(
    worker: Worker, store: Store, failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(*_: Any) -> list[Claim]:
        if failure is not None:
            raise failure
        return []

    monkeypatch.setattr(store.queue, "claim", claim)
    worker.hand_over("gone")

    await reached(lambda: worker.acknowledged == 1)
    assert worker.claims.free_slots() == 1


async def test_a_worker_whose_heartbeats_go_unanswered_does_not_ask_for_due_calls_again_and_again(
    worker: Worker, store: Store
) -> None:
    for _ in range(2):
        await submitted(store)
    worker.is_fit = False
    due = DueCalls(worker.claims, FairShare(store, SCOPE, heartbeat=60.0, lease=15.0), worker.activity)

    async with asyncio.timeout(5):
        await due.step()

    assert worker.ran == []
