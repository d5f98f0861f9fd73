"""The rules of natural batching, one by one; they need no database."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from forge_tools.errors import DatabaseUnavailableError, ForgeError, StorageError
from forge_tools.storage.connection.faults import ConflictError, RefusedError, UnreachableError
from forge_tools.storage.queue.batcher import Batcher, Limits
from tests.waiting import reached

Flush = Callable[[Sequence[int]], Awaitable[list[int | ForgeError]]]


class Sink:
    """A flush that doubles its rows, remembers each batch, and fails as told."""

    def __init__(self, *failures: Exception, poison: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self.failures = list(failures)
        self.poison = poison
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, rows: Sequence[int]) -> list[int | ForgeError]:
        self.batches.append(list(rows))
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.poison in rows:
            raise RefusedError("bad row")
        return [row * 2 for row in rows]


async def test_rows_that_come_during_a_flush_go_together_in_the_next() -> None:
    sink = Sink()
    sink.gate.clear()
    batcher = Batcher(sink)
    first = asyncio.create_task(batcher.add(1))
    await reached(lambda: len(sink.batches) == 1)
    rest = [asyncio.create_task(batcher.add(row)) for row in (2, 3, 4)]
    await asyncio.sleep(0)
    sink.gate.set()
    assert await asyncio.gather(first, *rest) == [2, 4, 6, 8]
    assert sink.batches == [[1], [2, 3, 4]]


async def test_a_lone_row_is_flushed_without_waiting_for_company() -> None:
    sink = Sink()
    assert await asyncio.wait_for(Batcher(sink).add(21), 30) == 42
    assert sink.batches == [[21]]


async def test_a_flush_holds_no_more_rows_than_the_limit() -> None:
    sink = Sink()
    assert await Batcher(sink, Limits(rows=3)).add_many(range(8)) == [row * 2 for row in range(8)]
    assert [len(batch) for batch in sink.batches] == [3, 3, 2]


async def test_a_flush_holds_no_more_bytes_than_the_limit_and_a_huge_row_goes_alone() -> None:
    sink = Sink()
    batcher = Batcher(sink, Limits(size=10), size=lambda row: row)
    await batcher.add_many([4, 6, 1, 50, 2])
    assert sink.batches == [[4, 6], [1], [50], [2]]


async def test_a_set_of_rows_has_one_future_and_keeps_its_order() -> None:
    batcher = Batcher(Sink(), Limits(rows=2))
    assert await batcher.put([5, 6, 7]) == [10, 12, 14]


async def test_a_conflict_repeats_the_same_rows() -> None:
    sink = Sink(ConflictError("deadlock detected"))
    assert await Batcher(sink).add_many([1, 2]) == [2, 4]
    assert sink.batches == [[1, 2], [1, 2]]


async def test_a_conflict_that_never_ends_gives_up_after_patience() -> None:
    sink = Sink(*[ConflictError("locked")] * 100)
    with pytest.raises(DatabaseUnavailableError, match="locked"):
        await Batcher(sink, Limits(patience=0)).add(1)
    assert len(sink.batches) == 5


async def test_a_lost_connection_is_retried_within_patience() -> None:
    sink = Sink(UnreachableError("gone", maybe_committed=True), UnreachableError("refused"))
    assert await Batcher(sink).add(1) == 2
    assert len(sink.batches) == 3


async def test_without_patience_limit_a_lost_connection_is_retried_until_it_is_back() -> None:
    sink = Sink(*[UnreachableError("refused")] * 6)
    assert await Batcher(sink, Limits(patience=None)).add(1) == 2


async def test_the_error_says_whether_any_try_may_have_been_written() -> None:
    sink = Sink(UnreachableError("cut", maybe_committed=True), *[UnreachableError("refused")] * 50)
    with pytest.raises(UnreachableError) as caught:
        await Batcher(sink, Limits(patience=0.1)).add(1)
    assert caught.value.maybe_committed


async def test_rows_that_gathered_behind_a_flush_that_gave_up_fail_with_it_and_were_never_sent() -> None:
    sink = Sink(*[UnreachableError("cut", maybe_committed=True)] * 50)
    sink.gate.clear()
    batcher = Batcher(sink, Limits(patience=0))
    first = asyncio.create_task(batcher.add(1))
    await reached(lambda: len(sink.batches) == 1)
    second = asyncio.create_task(batcher.add(2))
    await asyncio.sleep(0)
    sink.gate.set()
    errors = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(error, DatabaseUnavailableError) for error in errors)
    assert not isinstance(errors[1], UnreachableError)
    assert sink.batches == [[1]]


async def test_what_was_written_before_the_database_went_away_was_written() -> None:
    sink = Sink(RefusedError("bad row"), RefusedError("bad row"))
    batcher = Batcher(sink, Limits(patience=0))

    async def flush(rows: Sequence[int]) -> list[int | ForgeError]:
        if rows == [3, 4]:
            raise UnreachableError("gone")
        return await sink(rows)

    batcher.flush = flush
    outcomes = await batcher.add_many([1, 2, 3, 4, 5, 6, 7, 8])
    assert outcomes[:2] == [2, 4]
    assert [type(outcome) for outcome in outcomes[2:]] == [UnreachableError] * 2 + [DatabaseUnavailableError] * 4


async def test_after_giving_up_the_next_row_is_tried_afresh() -> None:
    sink = Sink(UnreachableError("gone"))
    batcher = Batcher(sink, Limits(patience=0))
    with pytest.raises(DatabaseUnavailableError):
        await batcher.add(1)
    assert await batcher.add(2) == 4


async def test_halving_leaves_the_poison_row_alone() -> None:
    sink = Sink(poison=5)
    outcomes = await Batcher(sink).add_many(range(8))
    assert isinstance(outcomes.pop(5), RefusedError)
    assert outcomes == [0, 2, 4, 6, 8, 12, 14]
    assert [5] in sink.batches


async def test_a_poison_row_does_not_reach_the_other_callers() -> None:
    batcher = Batcher(Sink(poison=2))
    outcomes = await asyncio.gather(*(batcher.add(row) for row in (1, 2, 3)), return_exceptions=True)
    assert outcomes[0] == 2
    assert isinstance(outcomes[1], RefusedError)
    assert outcomes[2] == 6


async def test_a_cancelled_waiter_stops_neither_its_flush_nor_its_neighbours() -> None:
    sink = Sink()
    sink.gate.clear()
    batcher = Batcher(sink)
    impatient, patient = asyncio.create_task(batcher.add(1)), asyncio.create_task(batcher.add(2))
    await reached(lambda: len(sink.batches) == 1)
    impatient.cancel()
    await asyncio.wait([impatient])
    sink.gate.set()
    assert await patient == 4
    assert sink.batches == [[1, 2]]


async def test_an_error_that_is_no_fault_of_the_rows_reaches_all_their_callers() -> None:
    batcher = Batcher(Sink(StorageError("no such table")))
    outcomes = await batcher.add_many([1, 2])
    assert [str(outcome) for outcome in outcomes] == ["no such table"] * 2


async def test_a_defect_in_the_driver_reaches_its_waiters_instead_of_leaving_them() -> None:
    with pytest.raises(DatabaseUnavailableError, match="KeyError"):
        await asyncio.wait_for(Batcher(Sink(KeyError("x"))).add(1), 30)


async def test_each_error_is_worded_for_its_row() -> None:
    batcher = Batcher(Sink(StorageError("away")), give_up=lambda row, error: StorageError(f"{row}: {error.message}"))
    assert [str(outcome) for outcome in await batcher.add_many([7, 8])] == ["7: away", "8: away"]


async def test_closing_waits_for_rows_under_way_and_refuses_new_ones() -> None:
    sink = Sink()
    sink.gate.clear()
    batcher = Batcher(sink)
    row = asyncio.create_task(batcher.add(1))
    await reached(lambda: len(sink.batches) == 1)
    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0)
    sink.gate.set()
    await closing
    assert await row == 2
    with pytest.raises(StorageError, match="closed"):
        await batcher.add(2)


async def test_closing_ends_the_patience_of_those_who_would_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tools.storage.queue.batcher.LAST_PATIENCE", 0.0)
    sink = Sink(*[UnreachableError("refused")] * 1000)
    batcher = Batcher(sink, Limits(patience=None))
    row = asyncio.create_task(batcher.add(1))
    await reached(lambda: len(sink.batches) == 2)
    await asyncio.wait_for(batcher.close(), 30)
    with pytest.raises(DatabaseUnavailableError):
        await row


async def test_no_rows_need_no_flush() -> None:
    sink = Sink()
    assert await Batcher(sink).add_many([]) == []
    assert sink.batches == []


async def brought_alone() -> tuple[Sink, Batcher[int, int], "asyncio.Task[list[int | ForgeError]]"]:
    """A row that is being flushed by who brought it, until the gate opens."""
    sink = Sink()
    sink.gate.clear()
    batcher = Batcher(sink)
    alone = asyncio.create_task(batcher.add_many([1]))
    await reached(lambda: len(sink.batches) == 1)
    return sink, batcher, alone


async def test_rows_that_come_alone_are_flushed_by_who_brings_them_and_others_gather_behind() -> None:
    sink, batcher, alone = await brought_alone()
    rest = [asyncio.create_task(batcher.add_many([row])) for row in (2, 3)]
    await asyncio.sleep(0)
    sink.gate.set()
    assert await asyncio.gather(alone, *rest) == [[2], [4], [6]]
    assert sink.batches == [[1], [2, 3]]
    await batcher.close()


async def test_closing_waits_for_what_is_flushed_by_who_brought_it_and_for_what_gathered_behind() -> None:
    sink, batcher, alone = await brought_alone()
    behind = batcher.put([2])
    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0)
    assert not closing.done()
    sink.gate.set()
    await closing
    assert (await alone, await behind) == ([2], [4])


async def test_cancelling_who_brought_rows_alone_leaves_those_behind_to_be_flushed() -> None:
    sink, batcher, alone = await brought_alone()
    behind = batcher.put([2])
    alone.cancel()
    await asyncio.wait([alone])
    sink.gate.set()
    assert await behind == [4]
