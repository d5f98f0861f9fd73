"""The parent's half of the process lane, spoken to over a real pair by a child that does as the test says."""

import asyncio
import os
import signal
import subprocess
from dataclasses import replace

import pytest

from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus
from tests.unit.workers.child_bench import CLAIM, ID, TIME_LIMITS, Bench, Limited, Speaker, a_process
from tests.waiting import is_alive
from workers.lanes import children, process


async def test_a_pulled_claim_is_run_and_its_outcome_gets_its_token_back(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    frame = await child.hear()
    assert frame["run"]["id"] == ID
    assert not {"token", "reply_to"} & set(frame["run"]), "a tool could end its call itself"
    assert (bench.lane.free_slots(), bench.lane.running()) == (0, [CLAIM])

    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)

    assert (bench.outcomes[0].token, bench.outcomes[0].status) == ("token", ExecutionStatus.SUCCEEDED)
    assert bench.lane.free_slots() == 1


async def test_claims_without_a_child_are_handed_back(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM, replace(CLAIM, id="b", token="b")])

    assert [(outcome.id, outcome.give_back) for outcome in bench.outcomes] == [("b", True)]


async def test_a_child_that_dies_in_its_body_is_lost(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    await child.hear()
    child.start()

    child.die()
    await bench.until(lambda: bench.outcomes)

    assert (bench.outcomes[0].error_code, bench.outcomes[0].give_back) == (ErrorCode.LOST, False)
    assert f"Process {child.pid} on here ended" in (bench.outcomes[0].error or "")


async def test_a_child_that_dies_before_its_body_started_costs_no_attempt(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])

    child.die()
    await bench.until(lambda: bench.outcomes)

    assert bench.outcomes[0].give_back


async def test_a_call_waits_for_the_successor_of_a_child(bench: Bench, child: Speaker) -> None:
    child.die()
    await bench.until(lambda: bench.lane.answering() == 0)
    bench.lane.run([CLAIM])
    with a_process() as pid:
        newcomer = await bench.fork(pid)
        newcomer.say("answering")

        assert (await newcomer.hear())["run"]["id"] == ID
        newcomer.die()


async def test_each_body_has_its_own_time_limits_which_end_with_it(
    bench: Bench, child: Speaker, other: Speaker
) -> None:
    short, long = replace(CLAIM, timeout=5), replace(CLAIM, id="b", timeout=60)
    bench.lane.run([short, long])

    child.finish(short)
    await bench.until(lambda: bench.outcomes)

    assert bench.limited == [
        Limited(child.pid, TIME_LIMITS.limits(5), is_stopped=True),
        Limited(other.pid, TIME_LIMITS.limits(60)),
    ]


async def test_who_waits_for_a_slot_hears_of_each(bench: Bench, child: Speaker, other: Speaker) -> None:
    await bench.until(lambda: bench.told_of_slots[:2] == [1, 2])
    bench.lane.run([CLAIM, replace(CLAIM, id="b", token="b")])
    bench.told_of_slots.clear()

    child.finish(CLAIM)

    await bench.until(lambda: bench.told_of_slots == [1])


async def test_a_child_that_will_not_stop_is_killed_and_gets_no_more_claims(bench: Bench, child: Speaker) -> None:
    bench.lane.run([replace(CLAIM, timeout=0.1)])
    await bench.until(lambda: bench.outcomes)

    assert bench.outcomes[0].error_code == ErrorCode.TIMEOUT
    assert bench.lane.free_slots() == 0, "it is dying: whatever it got now would be lost"
    await bench.until(lambda: not is_alive(child.pid))


async def test_a_cancel_is_passed_on_and_then_enforced(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    await child.hear()

    bench.lane.cancel(ID, 2)
    bench.lane.cancel(ID, 1)
    bench.lane.cancel(ID, 1)

    assert await child.hear() == {"cancel": ID}
    await bench.until(lambda: bench.outcomes)
    assert bench.outcomes[0].error_code == ErrorCode.CANCELLED
    await bench.until(lambda: not is_alive(child.pid))


async def test_an_outcome_of_something_else_is_not_this_bodys(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    child.finish(replace(CLAIM, id="other"))
    child.finish(CLAIM)

    await bench.until(lambda: bench.outcomes)

    assert [outcome.id for outcome in bench.outcomes] == [ID]


async def test_stopping_kills_what_runs_and_returns_its_claims(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])

    left = await bench.lane.stop()

    assert left == [CLAIM]
    assert bench.outcomes == []
    await bench.until(lambda: not is_alive(child.pid))


async def test_stopping_hands_back_a_body_whose_child_died_without_having_said_it_started(
    bench: Bench, child: Speaker
) -> None:
    bench.lane.run([CLAIM])
    stopping = asyncio.create_task(bench.lane.stop())
    await asyncio.sleep(0)
    child.die()

    assert await stopping == []
    assert [outcome.give_back for outcome in bench.outcomes] == [True]


async def test_what_a_body_had_returned_before_it_was_stopped_counts(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    child.start()
    stopping = asyncio.create_task(bench.lane.stop())
    await asyncio.sleep(0)
    child.finish(CLAIM)
    child.die()

    assert await stopping == []
    assert [outcome.status for outcome in bench.outcomes] == [ExecutionStatus.SUCCEEDED]


async def test_a_body_that_had_started_is_left_to_the_worker_to_settle(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    child.start()
    stopping = asyncio.create_task(bench.lane.stop())
    await asyncio.sleep(0)
    child.die()

    assert await stopping == [CLAIM]
    assert bench.outcomes == []


async def test_a_lane_that_stops_starts_nothing_more(bench: Bench, child: Speaker) -> None:
    await bench.lane.stop()

    bench.lane.run([CLAIM])

    assert [outcome.give_back for outcome in bench.outcomes] == [True]


@pytest.mark.parametrize("status", ["timed_out", "cancelled", "failed"])
async def test_a_child_that_cannot_vouch_for_its_end_is_replaced(bench: Bench, child: Speaker, status: str) -> None:
    bench.lane.run([CLAIM])

    child.say("ended", id=ID, attempt=1, status=status, is_tainted=True)

    await bench.until(lambda: bench.outcomes)
    assert (bench.outcomes[0].status, bench.lane.free_slots()) == (status, 0)
    assert not is_alive(child.pid)


async def test_what_a_stopped_body_left_is_gone_when_its_outcome_is_told(bench: Bench) -> None:
    script = f"FORGE_EXECUTION={ID}-left.1 setsid sleep 60 & echo $!; wait; sleep 60"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        leftover = int(os.read(process.stdout.fileno(), 20))
        child = await bench.connect(process.pid)
        bench.lane.run([replace(CLAIM, id=f"{ID}-left")])
        child.say("ended", id=f"{ID}-left", attempt=1, status="timed_out")

        await bench.until(lambda: bench.outcomes)

        assert not is_alive(leftover)
        assert (is_alive(child.pid), bench.lane.free_slots()) == (True, 1)
        os.killpg(process.pid, signal.SIGKILL)
        child.die()


async def test_what_a_finished_body_left_lives_on(bench: Bench, child: Speaker) -> None:
    bench.lane.run([replace(CLAIM, id=f"{ID}-kept")])
    environment = {"FORGE_EXECUTION": f"{ID}-kept.1"}
    with subprocess.Popen(["/bin/sleep", "60"], env=environment, start_new_session=True) as leftover:
        child.finish(replace(CLAIM, id=f"{ID}-kept"))

        await bench.until(lambda: bench.outcomes)

        assert leftover.poll() is None
        leftover.kill()


async def test_an_idle_child_that_holds_much_is_replaced(bench: Bench, pid: int) -> None:
    await bench.lane.stop()
    bench.lane = bench.lane_with(memory_limit=2**20)
    await bench.lane.start(bench)
    child = await bench.connect(pid)

    await bench.until(lambda: not is_alive(pid))

    assert bench.lane.free_slots() == 0
    child.die()


async def test_a_body_that_holds_too_much_is_ended_and_told_the_limit(bench: Bench, pid: int) -> None:
    await bench.lane.stop()
    bench.lane = bench.lane_with(memory_limit=2**20)
    await bench.lane.start(bench)
    child = await bench.connect(pid)
    bench.lane.run([CLAIM])

    await bench.until(lambda: bench.outcomes)

    assert bench.outcomes[0].error_code == ErrorCode.OUT_OF_MEMORY
    assert "Tool needed more than 1 MiB" in (bench.outcomes[0].error or "")
    assert not is_alive(pid)
    child.die()


async def test_a_process_that_says_nothing_gets_nothing(bench: Bench, pid: int) -> None:
    mute = await bench.fork(pid)
    bench.lane.run([CLAIM])

    assert (bench.lane.free_slots(), bench.lane.answering()) == (0, 0)
    assert [outcome.give_back for outcome in bench.outcomes] == [True]
    mute.die()


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_child_that_does_not_answer_is_replaced(
    bench: Bench, pid: int, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    monkeypatch.setattr(process, "ANSWER_SECONDS" if is_ready else "START_SECONDS", 0.1)
    monkeypatch.setattr(children, "POLL_SECONDS", 0.02)
    await bench.lane.stop()
    bench.lane = bench.lane_with()
    await bench.lane.start(bench)
    child = await (bench.connect if is_ready else bench.fork)(pid, answers=False)

    await bench.until(lambda: not is_alive(pid))

    assert bench.lane.answering() == 0
    child.die()


async def test_a_child_that_answers_stays(bench: Bench, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(children, "POLL_SECONDS", 0.02)
    await bench.lane.stop()
    bench.lane = bench.lane_with()
    await bench.lane.start(bench)
    child = await bench.connect(pid)

    await bench.until(lambda: child.answered > 50)

    assert (is_alive(pid), bench.lane.answering()) == (True, 1)
    child.die()


FORBIDDEN = [
    b'{"kind":"ended","id":"%b","attempt":1,"status":"failed","retry_in":0.0}',
    b'{"kind":"ended","id":"%b","attempt":1,"status":"failed","give_back":true}',
    b'{"kind":"ended","id":"%b","attempt":1,"status":"queued"}',
    b'{"kind":"ended","id":"%b","attempt":1,"status":"lost"}',
    b'{"kind":"ended","id":"%b","attempt":1,"status":"succeeded","token":"t"}',
    b'{"kind":"ended","id":"%b","attempt":1,"status":"succeeded","output":"no JSON"}',
    b'{"kind":"ended","id":"%b","attempt":1,"status":"succeeded","metadata":"[]"}',
    b'{"kind":"ended","id":"%b","attempt":"1","status":"succeeded"}',
    b'{"kind":"reported","id":"%b","attempt":1,"told":[[1,{},null,null,0]]}',
    b'{"kind":"started","id":"%b","attempt":-1}',
    b'{"kind":"started","id":"%b","attempt":2147483648}',
    b'{"kind":"started","id":{},"attempt":1}',
    b'{"kind":"hello","pid":1}',
    b'{"hello":1}',
    b"{}",
]


@pytest.mark.parametrize("frame", FORBIDDEN)
async def test_a_child_that_says_what_it_may_not_is_ended_and_its_body_lost(
    bench: Bench, child: Speaker, frame: bytes
) -> None:
    bench.lane.run([CLAIM])
    child.start()

    child.send(frame.replace(b"%b", ID.encode()))
    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)

    [outcome] = bench.outcomes
    assert (outcome.error_code, outcome.give_back, outcome.retry_in) == (ErrorCode.LOST, False, None)
    assert "was ended because of what it sent, a child may not send it" in (outcome.error or "")
    assert not is_alive(child.pid)


async def test_a_child_ends_its_own_body_alone(bench: Bench, child: Speaker, other: Speaker) -> None:
    bench.lane.run([CLAIM, replace(CLAIM, id="b", token="b")])
    other.finish(CLAIM)
    other.say("ended", id="b", attempt=2, status="succeeded")
    other.say("reported", id=ID, attempt=1, told=[[1, None, None, "of another call", 0]])
    other.finish(replace(CLAIM, id="b"))
    await bench.until(lambda: bench.outcomes)

    assert [outcome.id for outcome in bench.outcomes] == ["b"]
    assert bench.lane.running() == [CLAIM]


async def test_a_child_of_which_there_is_no_second_handle_is_settled_all_the_same(
    bench: Bench, child: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lane.run([CLAIM])
    await child.hear()
    child.start()
    monkeypatch.setattr("forge_tools.sandbox.processes.endings.os.dup", lambda fd: os.open("", 0))
    child.die()
    await bench.until(lambda: bench.outcomes)
    assert (bench.outcomes[0].status, bench.lane.running()) == (ExecutionStatus.LOST, [])
