"""Which child runs what a message names, how long it is held, and what is left to other workers."""

import asyncio
from dataclasses import replace

import pytest

from forge_tools.errors import DatabaseUnavailableError
from tests.unit.workers.child_bench import CLAIM, ID, TIME_LIMITS, Bench, Limited, Speaker, a_process


async def test_a_child_that_brings_a_message_gets_its_call_and_may_rest_after_it(bench: Bench, child: Speaker) -> None:
    bench.claimable[ID] = CLAIM
    child.wake((ID, 0))
    assert "run" in await child.hear()

    child.finish(CLAIM)

    assert await child.hear() == {"rest": True}


async def test_a_child_that_brings_a_message_in_vain_may_rest_at_once(bench: Bench, child: Speaker) -> None:
    child.wake(("gone", 0))

    assert await child.hear() == {"rest": True}
    assert bench.lane.free_slots() == 1


@pytest.mark.parametrize("failure", [DatabaseUnavailableError("The database is away"), KeyError("a defect")])
async def test_a_claim_that_fails_costs_no_slot(
    bench: Bench, child: Speaker, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench.failure = failure
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    child.wake((ID, 0))

    assert await child.hear() == {"rest": True}
    assert bench.lane.free_slots() == 1


async def test_a_message_for_a_busy_child_waits_for_the_next_free_one(bench: Bench, child: Speaker) -> None:
    second = replace(CLAIM, id="b", token="b")
    bench.claimable["b"] = second
    bench.lane.run([CLAIM])
    assert "run" in await child.hear()
    child.wake(("b", 0))
    child.finish(CLAIM)

    assert (await child.hear())["run"]["id"] == "b"
    assert len(bench.outcomes) == 1, "it was not asked for before there was a child for it"
    child.finish(second)
    assert await child.hear() == {"rest": True}


async def test_one_message_wakes_every_child(bench: Bench, child: Speaker, other: Speaker) -> None:
    claims = [replace(CLAIM, id=id_, token=id_) for id_ in "abc"]
    bench.claimable = {claim.id: claim for claim in claims}
    child.wake(("a", 0), ("b", 0), ("c", 0))

    assert [(await one.hear())["run"]["id"] for one in (child, other)] == ["a", "b"]
    assert bench.asked == [["a", "b"]], "one claim for both, and none for more than run"
    other.finish(claims[1])
    assert (await other.hear())["run"]["id"] == "c"


async def test_each_body_of_a_message_has_its_own_time_limits_which_end_with_it(
    bench: Bench, child: Speaker, other: Speaker
) -> None:
    short, long = replace(CLAIM, timeout=5), replace(CLAIM, id="b", timeout=60)
    bench.claimable.update({ID: short, "b": long})
    child.wake((ID, 0), ("b", 0))
    await bench.until(lambda: len(bench.limited) == 2)

    child.finish(short)
    await bench.until(lambda: bench.outcomes)

    assert bench.limited == [
        Limited(child.pid, TIME_LIMITS.limits(5), is_stopped=True),
        Limited(other.pid, TIME_LIMITS.limits(60)),
    ]


async def test_no_time_limit_runs_while_a_claim_waits_for_the_database(bench: Bench, child: Speaker) -> None:
    bench.claimable[ID] = CLAIM
    bench.database.clear()
    child.wake((ID, 0))
    await bench.until(lambda: bench.asked)
    assert bench.limited == []

    bench.database.set()
    await bench.until(lambda: bench.limited)


async def test_a_full_worker_leaves_the_next_message_to_others(bench: Bench, child: Speaker, other: Speaker) -> None:
    claims = [replace(CLAIM, id=id_, token=id_) for id_ in "ab"]
    bench.claimable = {claim.id: claim for claim in claims}
    for speaker, id_ in ((child, "a"), (other, "b")):
        speaker.wake((id_, 0))
        assert (await speaker.hear())["run"]["id"] == id_

    child.finish(claims[0])
    await bench.until(lambda: bench.outcomes)

    assert await child.hear() == {"rest": True}, "one child is idle, so Celery may bring one message"
    assert other.is_at_rest


async def test_a_message_is_held_while_calls_run_whichever_child_runs_them(
    bench: Bench, child: Speaker, other: Speaker
) -> None:
    second = replace(CLAIM, id="b", token="b")
    bench.lane.run([CLAIM])
    assert "run" in await child.hear()
    bench.claimable["b"] = second
    child.wake(("b", 0))
    assert (await other.hear())["run"]["id"] == "b"

    other.finish(second)
    await bench.until(lambda: bench.outcomes)
    assert child.is_at_rest, "Celery may bring one message, to the other child"
    child.finish(CLAIM)

    assert await child.hear() == {"rest": True}


async def test_in_a_burst_the_next_message_is_fetched_before_this_one_is_used_up(
    bench: Bench, child: Speaker, other: Speaker
) -> None:
    claims = [replace(CLAIM, id=id_, token=id_) for id_ in "abcdefg"]
    bench.claimable = {claim.id: claim for claim in claims}
    child.wake(("a", 0), ("b", 0), ("c", 0))
    assert "run" in await child.hear()
    other.wake(*((id_, 0) for id_ in "defg"))
    assert "run" in await other.hear()

    child.finish(claims[0])

    assert await child.hear() == {"rest": True}
    assert (await child.hear())["run"]["id"] == "c"
    assert other.is_at_rest


async def test_messages_outlive_the_child_that_brought_them(bench: Bench, child: Speaker, other: Speaker) -> None:
    bench.lane.run([CLAIM, replace(CLAIM, id="b", token="b")])
    bench.claimable["c"] = replace(CLAIM, id="c", token="c")
    assert "run" in await other.hear()
    child.wake(("c", 0))
    child.die()
    await bench.until(lambda: bench.outcomes)

    other.finish(replace(CLAIM, id="b"))

    assert (await other.hear())["run"]["id"] == "c"


async def test_a_child_that_comes_gets_what_waits(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    child.wake(("b", 0))
    bench.claimable["b"] = replace(CLAIM, id="b", token="b")
    assert "run" in await child.hear()
    with a_process() as pid:
        newcomer = await bench.fork(pid)
        newcomer.say("answering")

        assert (await newcomer.hear())["run"]["id"] == "b"
        newcomer.die()


async def test_who_waits_for_a_slot_hears_of_each_that_no_body_freed(
    bench: Bench, child: Speaker, other: Speaker
) -> None:
    await bench.until(lambda: bench.told_of_slots == [1, 2])

    child.wake(("taken-by-another-worker", 0))

    await bench.until(lambda: bench.told_of_slots == [1, 2, 2])
