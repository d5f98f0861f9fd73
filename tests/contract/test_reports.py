"""The contract of reports, on every database: bounded rows, delivered once each, and only by the current attempt."""

import asyncio
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select, text

from forge_tools.model import ExecutionStatus, Note, Output, Progress, StateChange
from forge_tools.model.execution import Claim
from forge_tools.model.history import Position
from forge_tools.model.scope import NewReport, Report, Told
from forge_tools.storage import Store
from forge_tools.storage.reports import MOST_READ
from forge_tools.storage.sqlalchemy_tables import execution_reports
from tests.contract.calls import UNKNOWN, claimed, ended, finish_one, running, submitted
from tests.contract.statements import noted, plan


def report(claim: Claim, number: int, **told: Any) -> NewReport:
    return NewReport(claim.id, claim.attempt, claim.token, Told(number, **told))


def plain(*heard: Any) -> list[Report | Note]:
    """Without when and where."""
    return [replace(one, cursor="", **({} if isinstance(one, Note) else {"at": None})) for one in heard]


async def rows(store: Store) -> int:
    async with store.database.reading() as connection:
        return (await connection.execute(select(func.count()).select_from(execution_reports))).scalar_one()


async def test_reports_are_heard_in_the_order_in_which_they_were_told(store: Store) -> None:
    claim = await running(store)

    await store.reports.add(
        [
            report(claim, 1, text="one\n"),
            report(claim, 2, done=1.0, total=3.0, text="first"),
            report(claim, 3, text="two\n", left_out=1234),
        ]
    )
    batch = await store.reports.poll(Position(claim.id))

    assert batch.state == StateChange(status=ExecutionStatus.RUNNING, attempt=1, hostname="host-1")
    assert plain(*batch.heard) == [
        Output(text="one\n"),
        Progress(done=1.0, total=3.0, message="first"),
        Output(text="two\n", left_out=1234),
    ]
    assert all(one.at for one in batch.heard if not isinstance(one, Note))


async def test_what_was_heard_is_not_heard_again(store: Store) -> None:
    claim = await running(store)
    await store.reports.add([report(claim, 1, text="one"), report(claim, 2, done=1.0)])
    first = await store.reports.poll(Position(claim.id))
    await store.reports.add([report(claim, 3, text="two"), report(claim, 4, done=2.0)])

    for cursor in (first.position.cursor, first.heard[-1].cursor):
        batch = await store.reports.poll(Position.of(claim.id, cursor))
        assert plain(*batch.heard) == [Output(text="two"), Progress(done=2.0)]
        assert (await store.reports.poll(batch.position)).heard == ()


async def test_progress_is_one_row_however_often_it_is_told(store: Store) -> None:
    claim = await running(store)

    for number in range(1, 30):
        await store.reports.add([report(claim, number, done=float(number), total=30.0)])

    assert await rows(store) == 1
    assert (await store.reports.progress_of([claim.id, UNKNOWN]))[claim.id].done == 29.0


async def test_writing_again_changes_nothing_and_an_older_one_does_not_come_back(store: Store) -> None:
    claim = await running(store)
    newest = [report(claim, 5, text="x"), report(claim, 6, done=6.0)]

    for batch in (newest, newest, [report(claim, 2, done=2.0)]):
        await store.reports.add(batch)

    batch = await store.reports.poll(Position(claim.id))
    assert plain(*batch.heard) == [Output(text="x"), Progress(done=6.0)]


async def test_an_attempt_that_is_no_longer_its_workers_writes_nothing(store: Store) -> None:
    first = await running(store, idempotent=True, max_attempts=2)
    await store.reports.add([report(first, 1, text="of the first")])
    await store.transitions.recover("instance-1", "gone")
    second = await claimed(store, first.id, attempt=1)

    await store.reports.add([report(first, 2, text="too late"), report(second, 1, text="of the second")])

    batch = await store.reports.poll(Position(first.id))
    told = [one for one in batch.heard if isinstance(one, Output)]
    assert [(one.attempt, one.text) for one in told] == [(1, "of the first"), (2, "of the second")]
    assert batch.state is not None
    assert batch.state.attempt == 2


async def test_nothing_is_written_behind_the_end(store: Store) -> None:
    claim = await running(store)
    await finish_one(store, ended(claim))

    await store.reports.add([report(claim, 1, text="too late")])

    batch = await store.reports.poll(Position(claim.id))
    assert (batch.heard, batch.state) == (
        (),
        StateChange(status=ExecutionStatus.SUCCEEDED, attempt=1, hostname="host-1"),
    )


async def test_a_call_that_waits_for_its_next_attempt_says_why(store: Store) -> None:
    claim = await running(store, max_attempts=3)
    await finish_one(store, ended(claim, ExecutionStatus.FAILED, error="no luck", retry_in=60.0))

    state = (await store.reports.poll(Position(claim.id))).state

    assert state is not None
    assert (state.status, state.attempt, state.reason) == (ExecutionStatus.QUEUED, 1, "no luck")
    assert state.due_at is not None


async def test_what_was_done_to_an_execution_is_heard_once(store: Store) -> None:
    claim = await running(store)
    await store.transitions.cancel(claim.id, actor="somebody", reason="enough")

    batch = await store.reports.poll(Position(claim.id))

    assert [one.event.kind for one in batch.heard if isinstance(one, Note)] == ["cancel"]
    assert (await store.reports.poll(Position.of(claim.id, batch.heard[0].cursor))).heard == ()


async def test_hostile_text_is_stored_as_it_can_be_shown(store: Store) -> None:
    claim = await running(store)

    await store.reports.add([report(claim, 1, text="a\0b\ud800\tc\n"), report(claim, 2, done=1.0, text="\0")])

    heard = (await store.reports.poll(Position(claim.id))).heard
    assert plain(*heard) == [Output(text="a\\x00b\\ud800\tc\n"), Progress(done=1.0, message="\\x00")]


async def test_very_many_reports_are_heard_in_several_looks(store: Store) -> None:
    claim = await running(store)
    count = MOST_READ + 10
    await store.reports.add([report(claim, number, text=f"{number} ") for number in range(1, count + 1)])

    first = await store.reports.poll(Position(claim.id))
    rest = await store.reports.poll(first.position)

    assert (len(first.heard), first.has_more) == (MOST_READ, True)
    assert (len(rest.heard), rest.has_more) == (10, False)
    told = [one.text for one in (*first.heard, *rest.heard) if isinstance(one, Output)]
    assert told == [f"{number} " for number in range(1, count + 1)]


async def test_who_looks_at_the_same_moment_gets_his_own(store: Store) -> None:
    claims = [await running(store) for _ in range(5)]
    await store.reports.add([report(claim, 1, text=claim.id) for claim in claims])

    batches = await asyncio.gather(*(store.reports.poll(Position(claim.id)) for claim in claims for _ in range(2)))

    assert [plain(*batch.heard) for batch in batches] == [[Output(text=one.id)] for one in claims for _ in range(2)]


async def test_an_execution_that_is_not_there_has_no_state(store: Store) -> None:
    assert (await store.reports.poll(Position(UNKNOWN))).state is None
    assert (await store.reports.poll(Position("no id'; --"))).state is None
    assert await store.reports.progress_of(["no id"]) == {}


async def test_what_waits_has_a_state_and_tells_nothing(store: Store) -> None:
    batch = await store.reports.poll(Position(await submitted(store)))

    assert (batch.state, batch.heard) == (StateChange(status=ExecutionStatus.QUEUED), ())


async def test_following_a_call_that_has_told_much_reads_only_what_is_new(store: Store) -> None:
    """The plan is the database's own word for it."""
    claim, others = await running(store), [await running(store) for _ in range(4)]
    for one in (claim, *others):
        await store.reports.add([report(one, 1, done=0.0)])
        await store.reports.add([report(one, number, text="x" * 100) for number in range(2, 700)])

    async with noted(store) as sent:
        assert len((await store.reports.poll(Position(claim.id, 1, 690))).heard) == 9
    [query] = [one for one in sent if "FROM execution_reports" in one[0]]
    async with store.database.reading() as connection:
        if store.dialect == "postgresql":
            await connection.execute(text("ANALYZE execution_reports"))
        shown, pages = await plan(connection, *query)
    if store.dialect == "sqlite":
        assert shown.count("USING PRIMARY KEY") == 3, shown
        assert "SCAN" not in shown
    assert "Seq Scan" not in shown, shown
    assert pages < 20, shown
