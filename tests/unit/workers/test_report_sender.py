"""What bodies in children report comes before their outcome, and does not wait for a loop that they block."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from forge_tools.model.execution import Claim
from forge_tools.sandbox.reports import ReportBuffer
from tests.unit.workers.child_bench import CLAIM, ID, Bench, Speaker
from workers.lanes.child import ReportSender
from workers.lanes.frames import ChildEnd


class Desk:
    """Keeps the buffers that a lane begins."""

    def __init__(self) -> None:
        self.buffers: list[ReportBuffer] = []

    def begin(self, _: Claim) -> ReportBuffer:
        self.buffers.append(ReportBuffer(lambda: None))
        return self.buffers[-1]

    def told(self) -> list[Any]:
        return [one.text if one.done is None else one.done for buffer in self.buffers for one in buffer.close()]


@pytest.fixture
def desk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk()
    monkeypatch.setattr(bench, "begin_reports", desk.begin)
    return desk


async def run(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    assert "run" in await child.hear()


def reported(*told: Any, **of: Any) -> dict[str, Any]:
    return {"id": ID, "attempt": 1, "told": [[*one, "output", None] for one in told], **of}


async def test_what_was_told_before_the_outcome_comes_before_it(bench: Bench, child: Speaker, desk: Desk) -> None:
    await run(bench, child)
    child.say("reported", **reported([1, None, None, "early ", 0], [2, 5.0, 9.0, None, 0]))
    child.say("reported", **reported([3, None, None, "late", 0]))
    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)

    assert desk.told() == ["early late", 5.0]


async def test_what_a_body_told_before_it_was_ended_comes_before_its_outcome(
    bench: Bench, child: Speaker, desk: Desk
) -> None:
    bench.lane.run([replace(CLAIM, timeout=0.1)])
    child.say("reported", **reported([1, None, None, "x" * 60_000, 0]))
    child.die()
    await bench.until(lambda: bench.outcomes)

    assert "xxx" in desk.told()[0]


@pytest.mark.parametrize("of", [{"attempt": 2}, {"id": "other"}])
async def test_reports_of_another_body_are_nobodys(bench: Bench, pid: int, desk: Desk, of: dict[str, Any]) -> None:
    child = await bench.fork(pid)
    child.say("reported", **reported([1, None, None, "while nothing runs", 0]))
    child.say("answering")
    await bench.until(bench.lane.answering)  # both were heard
    await run(bench, child)
    child.say("reported", **reported([1, None, None, "of another", 0], **of))
    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)

    assert desk.buffers == []
    child.die()


async def test_a_child_that_tells_nothing_has_no_thread(bench: Bench) -> None:
    sent: list[dict[str, Any]] = []
    sender = ReportSender(sent.append)
    sender.begin(ID, 1)
    sender.end()

    assert (sender.thread, sent) == (None, [])


async def test_what_is_left_is_told_at_the_end() -> None:
    sent: list[dict[str, Any]] = []
    sender = ReportSender(sent.append)
    sender.begin(ID, 1).emit("all of it")
    sender.end()

    assert "".join(told[3] for frame in sent for told in frame["told"]) == "all of it"


async def test_news_goes_out_by_a_thread_of_its_own(bench: Bench, child: Speaker, desk: Desk) -> None:
    await run(bench, child)
    sender = ReportSender(ChildEnd(line := child.end.dup()).send)
    buffer = sender.begin(ID, 1)
    await asyncio.to_thread(buffer.emit, "one ")
    await bench.until(lambda: desk.buffers and desk.buffers[0].is_waiting)
    buffer.emit("two")
    sender.end()
    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)

    line.close()
    assert desk.told() == ["one two"]


def test_where_there_is_no_room_for_a_thread_a_body_prints_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sent: list[dict[str, Any]] = []
    sender = ReportSender(sent.append)
    buffer = sender.begin(ID, 1)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    buffer.emit("in vain, at first")
    sender.end()

    assert [told[3] for told in sent[0]["told"]] == ["in vain, at first"]
    assert sender.thread is None
