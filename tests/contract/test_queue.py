"""The contract of submit, claim, finish and the reads, on every database."""

from dataclasses import replace
from typing import Any

import pytest

from forge_tools.errors import UnstorableRowError
from forge_tools.model import ExecutionStatus, new_id
from forge_tools.model.execution import Kept, Outcome, Scope, Wakeup
from forge_tools.storage import Store
from tests.contract.calls import (
    SCOPE,
    call,
    claimed,
    ended,
    finish_one,
    finished,
    overdue,
    running,
    scope,
    statuses,
    submit_one,
    submitted,
)
from tests.contract.sealed import forge
from tests.waiting import reached

POOLED = True

NASTY = '{"text":"\\u0000 \\ud800 \\udfff \\u20ac","number":1.0,"big":12345678901234567890,"key \\u0000":[null,true]}'


async def test_a_submitted_call_is_queued_and_due(store: Store) -> None:
    id_ = await submitted(store)
    assert await statuses(store, [id_]) == {id_: ExecutionStatus.QUEUED}
    assert await store.queue.due(SCOPE, 10) == [Wakeup(id_, 0)]
    assert await store.queue.results([id_]) == []


async def test_submitting_again_changes_nothing_even_after_it_ended(store: Store) -> None:
    new = call()
    assert await store.queue.submit_many([new, new]) == [None, None]
    await finished(store, [new.id])
    await submit_one(store, new)
    assert await store.queue.due(SCOPE, 10) == []
    assert await statuses(store, [new.id]) == {new.id: ExecutionStatus.SUCCEEDED}


async def test_a_result_that_is_asked_for_twice_is_two_results(store: Store) -> None:
    id_ = await submitted(store)
    await finished(store, [id_])

    first, second = await store.queue.results([id_, id_])
    first.metadata["mine"] = True

    assert "mine" not in second.metadata


async def test_a_claim_carries_what_the_worker_needs(store: Store) -> None:
    new = call(parameters=NASTY, context='{"a":1}', timeout=2.5, max_attempts=3, idempotent=True, reply_to="client-1")
    await submit_one(store, new)
    claim = await claimed(store, new.id)
    assert (claim.id, claim.attempt, claim.tool, claim.tool_version) == (new.id, 1, "Grep", "1.0.0")
    assert (claim.parameters, claim.context, claim.timeout) == (NASTY, '{"a":1}', 2.5)
    assert (claim.max_attempts, claim.idempotent, claim.reply_to) == (3, True, "client-1")


async def may_claim(store: Store, wakeup: Wakeup, by: Scope = SCOPE) -> bool:
    """Whether it leads to a claim, alone or among others, which are two statements on PostgreSQL."""
    return bool(await store.queue.claim([wakeup], by) or await store.queue.claim([wakeup, Wakeup(new_id(), 0)], by))


async def test_a_running_call_cannot_be_claimed_again(store: Store) -> None:
    claim = await running(store)
    assert await store.queue.claim([Wakeup(claim.id, 0), Wakeup(claim.id, 1)], SCOPE) == []
    assert await statuses(store, [claim.id]) == {claim.id: ExecutionStatus.RUNNING}


@pytest.mark.parametrize(
    "stranger",
    [{"lane": "process"}, {"queues": ("background",)}, {"tool_keys": ("Grep@2",)}, {"queues": ()}, {"tool_keys": ()}],
)
async def test_a_worker_claims_only_what_its_scope_covers(store: Store, stranger: dict[str, object]) -> None:
    id_ = await submitted(store)
    assert not await may_claim(store, Wakeup(id_, 0), scope(**stranger))
    assert await store.queue.due(scope(**stranger), 10) == []
    assert (await claimed(store, id_)).attempt == 1


@pytest.mark.parametrize("changes", [{"delay": 60.0}, {"expires_in": -1.0}])
async def test_a_call_that_is_delayed_or_expired_is_not_claimed(store: Store, changes: dict[str, float]) -> None:
    id_ = await submitted(store, **changes)
    assert not await may_claim(store, Wakeup(id_, 0))
    assert await store.queue.due(SCOPE, 10) == []


async def test_a_call_whose_attempts_are_used_up_is_not_claimed(store: Store) -> None:
    id_ = await submitted(store)
    await forge(store, "UPDATE execution_queue SET attempt = max_attempts")
    assert not await may_claim(store, Wakeup(id_, 1))
    assert await store.queue.due(SCOPE, 10) == []


async def test_a_wakeup_with_another_attempt_or_of_no_call_is_dropped(store: Store) -> None:
    id_ = await submitted(store)
    for wakeup in (Wakeup(id_, 1), Wakeup(id_, 2**31 - 1), Wakeup(new_id(), 0)):
        assert not await may_claim(store, wakeup)
    assert (await claimed(store, id_)).id == id_


async def test_two_wakeups_for_one_call_win_once(store: Store) -> None:
    id_ = await submitted(store)
    assert len(await store.queue.claim([Wakeup(id_, 0), Wakeup(id_, 0)], SCOPE)) == 1


async def test_a_finished_call_gives_its_result_as_it_was_written(store: Store) -> None:
    claim = await running(store)
    outcome = ended(claim, output=NASTY, duration_ms=12.5, metadata='{"lines":3}')
    assert await finish_one(store, outcome)
    [stored] = await store.queue.results([new_id(), claim.id])
    assert (await store.history.get(claim.id)).status == ExecutionStatus.SUCCEEDED
    assert stored.success
    assert stored.output == {
        "text": "\0 \ud800 \udfff €", "number": 1.0, "big": 12345678901234567890, "key \0": [None, True]
    }  # fmt: skip
    assert stored.duration_ms == 12.5
    assert stored.metadata == {"lines": 3, "execution_id": claim.id, "attempt": 1}


@pytest.mark.parametrize("value", ["1.0", "1", '"1"', "null", "1e400", '"\\u0000"', "[]", "-0.0"])
async def test_json_texts_are_kept_letter_by_letter(store: Store, value: str) -> None:
    new = call(parameters=f'{{"a": {value}}}', options=f'{{"a": {value}}}')
    await submit_one(store, new)
    assert (await claimed(store, new.id)).parameters == new.parameters


async def test_a_failure_keeps_error_code_and_details(store: Store) -> None:
    claim = await running(store)
    outcome = ended(claim, ExecutionStatus.FAILED, error="no", error_code="TOOL_ERROR", error_details='{"at":[1]}')
    assert await finish_one(store, outcome)
    [stored] = await store.queue.results([claim.id])
    assert not stored.success
    assert (stored.error, stored.error_code) == ("no", "TOOL_ERROR")
    assert stored.error_details == {"at": [1]}


async def test_plain_texts_with_nul_and_lone_surrogates_are_made_storable(store: Store) -> None:
    id_ = await submitted(store, tool="Gr\0ep", agent_id="a\ud800", session_id="s\0")
    claim = await claimed(store, id_)
    assert await finish_one(store, ended(claim, ExecutionStatus.FAILED, error="bad \0 \udc80 byte"))
    [stored] = await store.queue.results([id_])
    assert stored.error == "bad \\x00 \\udc80 byte"
    assert (await store.history.get(id_)).agent_id == "a\\ud800"


async def test_finishing_twice_with_one_token_is_one_finish(store: Store) -> None:
    claim = await running(store)
    outcome = ended(claim)
    assert await store.queue.finish_many([outcome, outcome]) == [True, True]
    assert await finish_one(store, outcome)
    assert len(await store.history.attempts(claim.id)) == 1
    assert await store.history.events(claim.id) == []


async def test_a_fenced_off_finish_changes_nothing_and_is_kept_as_late(store: Store) -> None:
    claim = await running(store)
    assert await finish_one(store, ended(claim, output='"first"'))
    stranger = ended(claim, output='"second"', token=new_id())
    assert await store.queue.finish_many([stranger, stranger]) == [False, False]
    [stored] = await store.queue.results([claim.id])
    assert stored.output == "first"
    [event] = await store.history.events(claim.id)
    assert event.kind == "late"
    assert event.detail["output"] == '"second"'


async def test_a_second_verdict_under_the_same_token_is_late_too(store: Store) -> None:
    claim = await running(store)
    assert await finish_one(store, ended(claim, ExecutionStatus.TIMED_OUT))
    assert not await finish_one(store, ended(claim, ExecutionStatus.SUCCEEDED))


async def test_a_finish_of_nothing_at_all_is_false(store: Store) -> None:
    ghost = Outcome(id=new_id(), attempt=1, token=new_id(), status=ExecutionStatus.SUCCEEDED)
    assert await store.queue.finish_many([ghost, ghost]) == [False, False]


async def test_a_retry_puts_the_call_back_with_its_attempt_recorded(store: Store) -> None:
    claim = await running(store, max_attempts=3, idempotent=True)
    assert await finish_one(store, ended(claim, ExecutionStatus.FAILED, error="flaky", retry_in=0.0))
    assert await store.queue.results([claim.id]) == []
    again = await claimed(store, claim.id, attempt=1)
    assert again.attempt == 2
    assert await finish_one(store, ended(again))
    statuses = [attempt.status for attempt in await store.history.attempts(claim.id)]
    assert statuses == [ExecutionStatus.FAILED, ExecutionStatus.SUCCEEDED]


async def test_a_retry_waits_for_its_delay(store: Store) -> None:
    claim = await running(store, max_attempts=2)
    assert await finish_one(store, ended(claim, ExecutionStatus.FAILED, retry_in=0.3))
    assert await store.queue.claim([Wakeup(claim.id, 1)], SCOPE) == []

    async def is_due() -> bool:
        return bool(await store.queue.due(SCOPE, 1))

    await reached(is_due)
    assert (await claimed(store, claim.id, attempt=1)).attempt == 2


async def test_a_retry_after_the_waiting_time_has_the_waiting_time_again(store: Store) -> None:
    claim = await running(store, max_attempts=2)
    await overdue(store, claim.id)
    assert await finish_one(store, ended(claim, ExecutionStatus.FAILED, retry_in=0.0))
    assert (await claimed(store, claim.id, attempt=1)).attempt == 2


async def test_a_retry_that_no_attempt_is_left_for_is_the_end(store: Store) -> None:
    claim = await running(store, max_attempts=1)
    assert await finish_one(store, ended(claim, ExecutionStatus.FAILED, error="flaky", retry_in=0.0))
    [stored] = await store.queue.results([claim.id])
    assert ((await store.history.get(claim.id)).status, stored.error) == (ExecutionStatus.FAILED, "flaky")


async def test_a_retry_of_a_call_whose_cancel_was_asked_is_the_end(store: Store) -> None:
    claim = await running(store, max_attempts=3)
    assert await store.transitions.cancel(claim.id, actor="ann") == "requested"
    assert await finish_one(store, ended(claim, ExecutionStatus.FAILED, retry_in=0.0))
    assert len(await store.queue.results([claim.id])) == 1


async def test_giving_back_does_not_count_the_attempt(store: Store) -> None:
    claim = await running(store, max_attempts=1)
    given_back = ended(claim, ExecutionStatus.QUEUED, give_back=True)
    assert await finish_one(store, given_back)
    assert await finish_one(store, given_back)
    assert await store.history.attempts(claim.id) == []
    again = await claimed(store, claim.id)
    assert (again.attempt, again.token != claim.token) == (1, True)
    assert await finish_one(store, given_back)
    assert await finish_one(store, ended(again))


async def test_the_old_token_cannot_finish_what_was_given_back(store: Store) -> None:
    claim = await running(store)
    assert await finish_one(store, ended(claim, ExecutionStatus.QUEUED, give_back=True))
    again = await claimed(store, claim.id)
    assert not await finish_one(store, replace(ended(again), token=new_id()))
    assert await finish_one(store, ended(again))


async def test_a_rejected_call_is_recorded_at_once_and_once(store: Store) -> None:
    new = call(tool="Nope\0")
    outcome = Outcome(id=new.id, attempt=0, token="", status=ExecutionStatus.REJECTED, error="Unknown tool: Nope")
    await store.queue.record(new, outcome)
    await store.queue.record(new, outcome)
    record = await store.history.get(new.id)
    assert (record.status, record.attempt, record.started_at) == (ExecutionStatus.REJECTED, 0, None)
    assert (record.tool, record.error) == ("Nope\\x00", "Unknown tool: Nope")
    assert await store.queue.due(SCOPE, 10) == []


@pytest.mark.parametrize("seconds", [-4000.0, 4000.0])
async def test_an_id_an_hour_off_the_database_clock_is_refused_alone(store: Store, seconds: float) -> None:
    off = call(id=shifted(new_id(), seconds))
    good = call()
    error, fine = await store.queue.submit_many([off, good])
    assert isinstance(error, UnstorableRowError)
    assert "of the database's clock" in str(error) or "behind the database's clock" in str(error)
    assert fine is None
    assert await statuses(store, [off.id, good.id]) == {good.id: ExecutionStatus.QUEUED}
    with pytest.raises(UnstorableRowError, match="clock"):
        await store.queue.record(off, Outcome(id=off.id, attempt=0, token="", status=ExecutionStatus.REJECTED))


@pytest.mark.parametrize("fault", [{"parameters": '{"text":"\ud800"}'}, {"expires_in": float("inf")}, {"delay": 1e300}])
async def test_a_row_that_the_database_refuses_fails_alone(store: Store, fault: dict[str, Any]) -> None:
    good = [call() for _ in range(20)]
    bad = call(**fault)
    outcomes = await store.queue.submit_many([*good[:10], bad, *good[10:]])
    assert isinstance(outcomes.pop(10), UnstorableRowError)
    assert outcomes == [None] * 20
    assert len(await store.queue.due(SCOPE, 100)) == 20


async def test_an_invalid_id_is_refused_alone(store: Store) -> None:
    error, fine = await store.queue.submit_many([call(id="00000000-0000-7000-8000-00000000000G"), call()])
    assert isinstance(error, UnstorableRowError)
    assert fine is None


async def test_a_result_that_the_database_refuses_becomes_a_failed_result_alone(store: Store) -> None:
    claims = [await running(store) for _ in range(5)]
    outcomes = [ended(claim, output='"fine"') for claim in claims]
    outcomes[3] = replace(outcomes[3], output='"\ud800"')
    whole = Kept.WHOLE
    assert await store.queue.finish_many(outcomes) == [whole, whole, whole, Kept.REPLACED, whole]
    results = await store.queue.results([claim.id for claim in claims])
    assert [stored.output for stored in results] == ["fine"] * 3 + [None, "fine"]
    assert [stored.error_code for stored in results if not stored.success] == ["UNSTORABLE"]


async def test_a_large_batch_goes_through_in_bounded_flushes(store: Store) -> None:
    calls = [call(parameters='{"text":"' + "x" * 5_000 + '"}') for _ in range(2_500)]
    assert await store.queue.submit_many(calls) == [None] * 2_500
    claims = await store.queue.claim([Wakeup(new.id, 0) for new in calls], SCOPE)
    assert [claim.id for claim in claims] == [new.id for new in calls]
    assert all(await store.queue.finish_many([ended(claim, output='"ok"') for claim in claims]))
    assert len(await store.queue.results([new.id for new in calls])) == 2_500


async def test_twenty_megabytes_of_output_come_back_whole(store: Store) -> None:
    claim = await running(store)
    assert await finish_one(store, ended(claim, output='"' + "é" * 10_000_000 + '"'))
    [stored] = await store.queue.results([claim.id])
    assert len(stored.output) == 10_000_000


def shifted(id_: str, seconds: float) -> str:
    """The id as a clock that is `seconds` off would have made it."""
    milliseconds = int(id_[:8] + id_[9:13], 16) + int(seconds * 1000)
    text = f"{milliseconds:012x}"
    return f"{text[:8]}-{text[8:]}{id_[13:]}"
