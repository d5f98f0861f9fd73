"""An execution is followed in order, once, from any position, through outages, and to its end."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from forge_tools.client import handle as following
from forge_tools.client.handle import Handle
from forge_tools.errors import DatabaseUnavailableError, ExecutionNotFoundError
from forge_tools.model import Ended, ExecutionStatus, Note, Output, StateChange, ToolResult
from forge_tools.model.history import CallEvent, Event, EventBatch, Position

RESULT = ToolResult.ok("done")
ASKED = Event(at=datetime.now(UTC), kind="cancel", actor="me")


class Executions:
    """What following needs of a client: one batch after the other, and a result behind the last."""

    def __init__(self, *batches: EventBatch | Exception) -> None:
        self.batches = list(batches)
        self.positions: list[Position] = []
        self.failure: Exception | None = None
        self.is_over = asyncio.Event()

    async def poll(self, position: Position) -> EventBatch:
        self.positions.append(position)
        batch = self.batches.pop(0) if len(self.batches) > 1 else self.batches[0]
        if isinstance(batch, Exception):
            raise batch
        return batch

    async def wait(self, execution_id: str, *, is_known: bool = False) -> ToolResult:
        if self.failure:
            raise self.failure
        if isinstance(self.batches[0], EventBatch) and self.batches[0].state != ENDED:
            await self.is_over.wait()
        return RESULT


def state(status: str, attempt: int = 0, **more: Any) -> StateChange:
    return StateChange(status=ExecutionStatus(status), attempt=attempt, **more)


def output(text: str, attempt: int = 1, number: int = 1) -> Output:
    return Output(text=text, attempt=attempt, cursor=f"{attempt}.{number}.0")


def batch(of: StateChange | None, *heard: Output | Note, has_more: bool = False) -> EventBatch:
    last = heard[-1].cursor if heard else "0.0.0"
    return EventBatch(state=of, heard=heard, position=Position.of("id", last), has_more=has_more)


ENDED = state("succeeded", 2)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "AWAY_SECONDS"):
        monkeypatch.setattr(following, name, 0.001)


async def heard(executions: Executions, after: str | None = None) -> list[CallEvent]:
    async with asyncio.timeout(30):
        return [event async for event in Handle("id", executions).events(after)]


def words(events: Iterable[CallEvent]) -> list[str]:
    said = {
        StateChange: lambda event: f"{event.status} {event.attempt}",
        Output: lambda event: event.text,
        Note: lambda event: event.event.kind,
        Ended: lambda event: f"ended {event.status} {event.result.output}",
    }
    return [said[type(event)](event) for event in events]


async def test_states_reports_and_the_end_come_once_each() -> None:
    queued, running = state("queued"), state("running", 1)
    executions = Executions(
        batch(queued), batch(queued), batch(running, output("a")), batch(running), batch(ENDED, output("b", 1, 2))
    )

    assert words(await heard(executions)) == ["queued 0", "running 1", "a", "b", "ended succeeded done"]


async def test_what_an_attempt_told_comes_before_the_next_one() -> None:
    first, second = output("of the first", 1), output("of the second", 2)
    executions = Executions(batch(state("running", 2), first, second), batch(ENDED))

    assert words(await heard(executions)) == ["of the first", "running 2", "of the second", "ended succeeded done"]


async def test_a_call_that_waits_again_says_so_behind_what_its_attempt_told() -> None:
    note = Note(event=ASKED, cursor="0.0.4")
    executions = Executions(batch(state("queued", 1, reason="failed"), note, output("told")), batch(ENDED))

    events = await heard(executions)

    assert words(events) == ["cancel", "told", "queued 1", "ended succeeded done"]
    assert [event.cursor for event in events] == ["0.0.4", "1.1.0", "1.1.0", "0.0.0"]


async def test_it_goes_on_behind_a_cursor() -> None:
    executions = Executions(batch(ENDED))
    await heard(executions, "2.17.5")

    assert executions.positions == [Position("id", 2, 17, 5)]


@pytest.mark.parametrize(
    "cursor", ["", "1", "1.2", "a.b.c", "1.2.3.4", "-1.2.3", "1.2.3\n", "9" * 40 + ".1.1", "١.1.1"]
)
async def test_what_is_not_a_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="is not a cursor"):
        await heard(Executions(batch(ENDED)), cursor)


async def test_more_than_one_look_holds_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE", 60)
    executions = Executions(batch(state("running", 1), output("a"), has_more=True), batch(ENDED, output("b", 1, 2)))

    assert words(await heard(executions)) == ["running 1", "a", "b", "ended succeeded done"]


async def test_the_end_wakes_before_the_next_look_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE", 60)
    executions = Executions(batch(state("running", 1)), batch(ENDED))
    asyncio.get_running_loop().call_later(0.05, executions.is_over.set)

    assert words(await heard(executions)) == ["running 1", "ended succeeded done"]


async def test_a_database_that_is_away_is_waited_for() -> None:
    executions = Executions(DatabaseUnavailableError("away"), batch(ENDED, output("a")))

    assert words(await heard(executions)) == ["a", "ended succeeded done"]


async def test_what_is_not_there_is_told() -> None:
    executions = Executions(batch(None))
    executions.failure = ExecutionNotFoundError("No execution has the id id.")

    with pytest.raises(ExecutionNotFoundError):
        await heard(executions)


async def test_who_leaves_early_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    events = Handle("id", Executions(batch(state("running", 1)))).events()
    await anext(events)
    await events.aclose()

    assert asyncio.all_tasks() == before
