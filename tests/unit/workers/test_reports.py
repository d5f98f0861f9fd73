"""Reports are written together and seldom, before the end they belong to, through outages, and not at all if there are none."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from forge_tools.errors import DatabaseUnavailableError, UnstorableRowError
from forge_tools.model import ExecutionContext, ExecutionStatus
from forge_tools.model.execution import Claim, Outcome
from forge_tools.model.scope import NewReport
from forge_tools.tool import tool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.unit.workers.test_recorder import CLAIM
from tests.waiting import reached
from workers.lanes.base import execute, scope_of
from workers.middleware.reports import WRITE_BYTES, Reports

EVERY = 0.05


@tool(lane="async")
async def tell_apart(context: ExecutionContext, pin: str) -> None:
    """Tell a text in parts."""
    context.emit(f"it is {pin[:10]}")
    await asyncio.sleep(3 * EVERY)
    ExecutionContext(working_dir=".").emit(f"{pin[10:]}, that is {pin[:5]}")


class Store:
    """The part of a store that takes reports; may be away, or be waited for."""

    def __init__(self) -> None:
        self.writes: list[list[NewReport]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.has_begun = False

    @property
    def reports(self) -> "Store":
        return self

    async def add(self, reports: Sequence[NewReport]) -> None:
        self.has_begun = True
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if reports:
            self.writes.append(list(reports))

    @property
    def texts(self) -> list[str]:
        return [one.told.text or "" for write in self.writes for one in write]


def claim(number: int = 1, **changes: Any) -> Claim:
    return replace(CLAIM, id=f"id-{number}", token=f"token-{number}", **changes)


def end(of: Claim) -> Outcome:
    return Outcome(id=of.id, attempt=of.attempt, token=of.token, status=ExecutionStatus.SUCCEEDED)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[Reports]:
    desk = Reports(store, every=EVERY)
    writing = asyncio.ensure_future(desk.run())
    yield desk
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_what_is_told_is_written_with_whose_it_is(desk: Reports, store: Store) -> None:
    buffer = desk.begin(claim(attempt=3))
    await asyncio.to_thread(buffer.emit, "hello")
    await reached(lambda: store.writes)

    [[row]] = store.writes
    assert (row.execution_id, row.attempt, row.token, row.told.text) == ("id-1", 3, "token-1", "hello")


async def test_bodies_that_tell_nothing_cost_no_statement(desk: Reports, store: Store) -> None:
    store.error = AssertionError("nothing is to be written")
    claims = [claim(number) for number in range(50)]
    buffers = [weakref.ref(desk.begin(one)) for one in claims]
    await asyncio.sleep(3 * EVERY)
    await desk.storing([end(one) for one in claims])
    gc.collect()

    assert store.writes == []
    assert [buffer() for buffer in buffers] == [None] * 50


async def test_many_bodies_are_written_together_and_seldom(desk: Reports, store: Store) -> None:
    buffers = [desk.begin(claim(number)) for number in range(100)]
    began = asyncio.get_running_loop().time()
    for turn in range(20):
        for buffer in buffers:
            buffer.emit(f"{turn}\n")
            buffer.progress(turn, 20, None)
        await asyncio.sleep(EVERY / 5)
    seconds = asyncio.get_running_loop().time() - began

    assert len(store.writes) <= seconds / EVERY + 2
    assert len(store.writes[0]) == 200


async def test_what_is_left_is_written_before_the_end(desk: Reports, store: Store) -> None:
    one = claim()
    buffer = desk.begin(one)
    buffer.emit("first\n")
    await reached(lambda: store.writes)
    buffer.emit("last\n")

    await desk.storing([end(one)])

    assert store.texts == ["first\n", "last\n"]
    buffer.emit("too late\n")
    await asyncio.sleep(2 * EVERY)
    assert store.texts == ["first\n", "last\n"]


async def test_an_end_waits_for_a_write_of_its_own_and_for_no_other(desk: Reports, store: Store) -> None:
    mine, other = claim(1), claim(2)
    desk.begin(mine).emit("mine")
    desk.begin(other)
    store.gate = asyncio.Event()
    await reached(lambda: store.has_begun)

    await asyncio.wait_for(desk.storing([end(other)]), 30)
    waiting = asyncio.ensure_future(desk.storing([end(mine)]))
    await asyncio.sleep(EVERY)
    assert not waiting.done()

    store.gate.set()
    await asyncio.wait_for(waiting, 30)
    assert store.texts == ["mine"]


async def test_a_database_that_is_away_gets_them_later(
    desk: Reports, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = DatabaseUnavailableError("away")
    buffer = desk.begin(claim())
    buffer.emit("one\n")
    await reached(lambda: caplog.records)
    for number in range(1000):
        buffer.emit(f"{number}\n" * 100)
    await asyncio.sleep(3 * EVERY)
    assert {record.count for record in caplog.records} == {1}

    store.error = None
    await reached(lambda: len(store.texts) >= 2)
    assert store.texts[0] == "one\n"


async def test_an_end_is_not_held_up_by_reports_that_cannot_be_stored(desk: Reports, store: Store) -> None:
    one = claim()
    desk.begin(one).emit("x")
    for error in (DatabaseUnavailableError("away"), UnstorableRowError("refused")):
        store.error = error
        await asyncio.wait_for(desk.storing([end(one)]), 30)

    store.error = None
    await asyncio.sleep(3 * EVERY)
    assert store.texts == []
    desk.begin(claim(2)).emit("y")
    await reached(lambda: store.texts)
    assert store.texts == ["y"], "nor is it kept for the next write"


async def test_an_end_waits_for_a_write_that_hangs_no_longer_than_it_may(
    desk: Reports, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.middleware.reports.SETTLE_SECONDS", EVERY)
    store.gate = asyncio.Event()
    one = claim()
    desk.begin(one).emit("x")

    await asyncio.wait_for(desk.storing([end(one)]), 30)

    store.gate.set()
    desk.begin(claim(2)).emit("y")
    await reached(lambda: store.texts == ["y"])


async def test_one_write_is_bounded_and_nobody_is_passed_over(desk: Reports, store: Store) -> None:
    buffers = [desk.begin(claim(number)) for number in range(60)]
    for buffer in buffers:
        buffer.emit("x" * 20_000)
    await reached(lambda: len(store.texts) >= 60)

    assert {row.execution_id for write in store.writes for row in write} == {f"id-{number}" for number in range(60)}
    assert all(sum(len(row.told.text or "") for row in write) <= WRITE_BYTES + 40_000 for write in store.writes)


async def test_secrets_of_a_call_are_not_written_in_parts_either(desk: Reports, store: Store) -> None:
    registry = ScopedRegistry()
    registry.register(tell_apart)
    asked = {"parameters": '{"pin": "known to the worker alone"}', "context": '{"working_dir": "."}'}
    one = claim(tool="tell_apart", secrets=("to the worker",), **asked)
    await execute(ToolExecutor(registry), one, 1000, scope=scope_of(one, desk.begin(one)))
    await desk.storing([end(one)])

    assert "".join(store.texts) == "it is known [redacted] alone, that is known"
