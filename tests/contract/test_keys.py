"""The contract of idempotency keys and replays, on every database."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.execution import Holder, KeyClaim, NewExecution, Replay, id_time
from forge_tools.storage import Store, open_store
from forge_tools.storage.queue.queue import Answer
from forge_tools.storage.sqlalchemy_tables import execution_queue, executions, idempotency_keys
from tests.clocks import SetClock, postgres_clock, sqlite_clock
from tests.contract.calls import SCOPE, call, claimed, ended, finish_one, finished, statuses, submitted

DAY = 86_400.0

known = idempotency_keys.c


async def key_of(store: Store, execution_id: str) -> tuple[str, str] | None:
    """The scope and the key that still stand for an execution."""
    rows = await store.database.rows(select(known.scope, known.key).where(known.execution_id == execution_id))
    return next(((row.scope, row.key) for row in rows), None)


@pytest.fixture
def set_clock(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return sqlite_clock(monkeypatch) if migrated_url.startswith("sqlite") else postgres_clock(migrated_url)


@pytest.fixture
async def timed(migrated_url: str, set_clock: SetClock) -> AsyncIterator[Store]:
    """A store whose clock the test sets."""
    async with await open_store(migrated_url) as opened:
        yield opened


def keyed(key: str = "build-17", *, scope: str = "shared", ttl: float = DAY, **changes: Any) -> NewExecution:
    return call(**changes, claim=KeyClaim(scope, key, '{"tool":"Grep"}', ttl))


async def submit(store: Store, row: NewExecution) -> Answer:
    [answer] = await store.queue.submit_many([row])
    return answer


async def held(store: Store, key: str = "build-17") -> str | None:
    """The id of who holds a key: one that asks in vain is not stored."""
    answer = await submit(store, keyed(key))
    return answer.execution_id if isinstance(answer, Holder) else None


async def test_the_first_call_under_a_key_is_queued_with_it(store: Store) -> None:
    row = keyed()
    assert await submit(store, row) is None
    assert (await claimed(store, row.id)).parameters == row.parameters
    assert (await store.history.get(row.id)).idempotency_key == "build-17"
    assert await key_of(store, row.id) == ("shared", "build-17")


async def test_the_second_is_told_who_holds_the_key_and_leaves_no_row(store: Store) -> None:
    first, second = keyed(), keyed()
    await submit(store, first)
    assert await submit(store, second) == Holder(first.id, '{"tool":"Grep"}')
    assert await statuses(store, [second.id]) == {}
    assert [record.id for record in await store.history.list()] == [first.id]


@pytest.mark.parametrize(
    "status", [ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED, ExecutionStatus.LOST, ExecutionStatus.TIMED_OUT]
)
async def test_a_key_holds_whatever_its_execution_came_to(store: Store, status: ExecutionStatus) -> None:
    row = keyed()
    await submit(store, row)
    claim = await claimed(store, row.id)
    assert await held(store) == row.id
    assert await finish_one(store, ended(claim, status))
    assert await held(store) == row.id


async def test_a_key_holds_after_a_cancel(store: Store) -> None:
    row = keyed()
    await submit(store, row)
    await store.transitions.cancel(row.id, actor="ann")
    assert await held(store) == row.id


async def test_one_key_in_two_scopes_is_two_keys(store: Store) -> None:
    ann, bob = keyed(scope="agent:ann"), keyed(scope="agent:bob")
    assert await store.queue.submit_many([ann, bob]) == [None, None]


async def test_one_key_twice_in_a_batch_is_one_execution(store: Store) -> None:
    rows = [keyed() for _ in range(5)]
    answers = await store.queue.submit_many(rows)
    [winner] = [row.id for row, answer in zip(rows, answers, strict=True) if answer is None]
    assert {answer.execution_id for answer in answers if isinstance(answer, Holder)} == {winner}
    assert len(await store.queue.due(SCOPE, 10)) == 1


async def test_submitting_the_same_id_again_is_no_repeat(store: Store) -> None:
    row = keyed()
    assert [await submit(store, row) for _ in range(3)] == [None, None, None]
    await finished(store, [row.id])
    assert await submit(store, row) is None
    assert await store.queue.due(SCOPE, 10) == []


async def test_a_thousand_keys_are_stored_in_one_go(store: Store) -> None:
    rows = [keyed(f"key-{number}") for number in range(1000)]
    assert await store.queue.submit_many(rows) == [None] * 1000
    again = await store.queue.submit_many([keyed(f"key-{number}") for number in range(1000)])
    assert [answer.execution_id for answer in again if isinstance(answer, Holder)] == [row.id for row in rows]


async def test_batches_with_the_same_keys_in_any_order_do_not_wait_for_each_other_for_ever(
    store: Store, migrated_url: str
) -> None:
    names = [f"key-{number}" for number in range(50)]
    async with await open_store(migrated_url) as other:
        for _ in range(5):
            answers = await asyncio.gather(
                store.queue.submit_many([keyed(name) for name in names]),
                other.queue.submit_many([keyed(name) for name in reversed(names)]),
            )
    assert all(answer is None or isinstance(answer, Holder) for part in answers for answer in part)
    assert len(await store.history.list(limit=1000)) == 50


async def test_a_call_off_the_clock_is_refused_and_takes_no_key(store: Store) -> None:
    late = keyed(id=_id_of(id_time(new_id()) - 7200))
    refused = await submit(store, late)
    assert "behind the database's clock" in str(refused)
    assert await submit(store, keyed()) is None


async def test_a_row_that_cannot_be_stored_takes_no_key_and_harms_no_other(store: Store) -> None:
    bad = keyed("bad", parameters="no json" if store.dialect == "postgresql" else "[]")
    bad = replace(bad, max_attempts=2**80)
    answers = await store.queue.submit_many([keyed("a"), bad, keyed("b")])
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    assert await submit(store, keyed("bad")) is None


async def test_keys_with_any_character_are_told_apart(store: Store) -> None:
    names = ["a", "a ", "A", "ä", "a\u0308", "a'; DROP TABLE executions; --", "🔑"]
    assert await store.queue.submit_many([keyed(name) for name in names]) == [None] * len(names)


async def test_a_key_is_free_once_its_execution_has_been_over_for_its_time(timed: Store, set_clock: SetClock) -> None:
    row = keyed(ttl=600)
    await submit(timed, row)
    set_clock(500)
    await finished(timed, [row.id])
    set_clock(1090)
    assert await held(timed) == row.id
    set_clock(1110)
    assert await held(timed) is None


async def test_a_key_holds_as_long_as_its_execution_is_not_over(timed: Store, set_clock: SetClock) -> None:
    row = keyed(ttl=1)
    await submit(timed, row)
    await claimed(timed, row.id)
    set_clock(3000)
    assert await timed.transitions.purge_keys() == 0
    assert await held(timed) == row.id


async def test_only_spent_keys_are_purged_and_the_executions_stay(timed: Store, set_clock: SetClock) -> None:
    spent, running, lasting = keyed("spent", ttl=1), keyed("running", ttl=1), keyed("lasting", ttl=DAY)
    await timed.queue.submit_many([spent, running, lasting])
    await finished(timed, [spent.id, lasting.id])
    set_clock(60)
    assert await timed.transitions.purge_keys() == 1
    assert await key_of(timed, spent.id) is None
    assert await key_of(timed, running.id) is not None
    assert (await timed.history.get(spent.id)).idempotency_key == "spent"


async def test_purging_goes_in_batches(timed: Store, set_clock: SetClock) -> None:
    rows = [keyed(f"key-{number}", ttl=1) for number in range(25)]
    await timed.queue.submit_many(rows)
    await finished(timed, [row.id for row in rows])
    set_clock(60)
    assert [await timed.transitions.purge_keys(10) for _ in range(4)] == [10, 10, 5, 0]


async def test_racing_for_a_spent_key_gives_one_execution(timed: Store, set_clock: SetClock, migrated_url: str) -> None:
    old = keyed(ttl=1)
    await submit(timed, old)
    await finished(timed, [old.id])
    set_clock(60)
    rows = [keyed() for _ in range(40)]
    async with await open_store(migrated_url) as other:
        answers = await asyncio.gather(*(submit([timed, other][n % 2], row) for n, row in enumerate(rows)))
    [winner] = [row.id for row, answer in zip(rows, answers, strict=True) if answer is None]
    assert {answer.execution_id for answer in answers if isinstance(answer, Holder)} == {winner}


async def test_a_key_whose_execution_is_no_longer_kept_is_free(store: Store) -> None:
    row = keyed()
    await submit(store, row)
    await _forget(store, row)
    assert await submit(store, keyed()) is None


async def test_a_replay_is_linked_both_ways(store: Store) -> None:
    original = await submitted(store)
    again = call(replay=Replay(original, "ann@host", "the disk was full"))
    assert [await submit(store, again), await submit(store, again)] == [None, None]
    assert (await store.history.get(again.id)).replay_of == original
    [mine], [its] = await store.history.events(again.id), await store.history.events(original)
    said = {"dry_run": False, "reason": "the disk was full"}
    assert (mine.kind, mine.actor, mine.detail) == ("replay", "ann@host", {"of": original, **said})
    assert (its.kind, its.actor, its.detail) == ("replayed", "ann@host", {"as": again.id, **said})
    assert (await claimed(store, again.id)).id == again.id


async def test_a_replay_under_a_held_key_leaves_no_link(store: Store) -> None:
    original = await submitted(store)
    await submit(store, keyed())
    assert isinstance(await submit(store, replace(keyed(), replay=Replay(original, "ann"))), Holder)
    assert await store.history.events(original) == []


async def _forget(store: Store, new: NewExecution) -> None:
    """Delete all of an execution but its key, as pruning does."""

    async def work(connection: AsyncConnection) -> None:
        for table in (execution_queue, executions):
            await connection.execute(table.delete().where(table.c.id == new.id))

    await store.database.write(work)
    async with store.database.reading() as connection:
        assert (await connection.execute(idempotency_keys.select())).one().execution_id == new.id


def _id_of(moment: float) -> str:
    milliseconds = f"{int(moment * 1000):012x}"
    return f"{milliseconds[:8]}-{milliseconds[8:]}{new_id()[13:]}"
