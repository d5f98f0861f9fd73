"""A child's second line: what bodies report comes before their outcome, and what is no report does no harm."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forge_tools.records import Claim
from forge_tools.sandbox.reports import ReportBuffer
from tests.unit.workers.child_bench import CLAIM, ID, Bench, Speaker
from workers.lanes.frames import HEADER
from workers.lanes.telling import Telling


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
def desk(bench: Bench) -> Desk:
    desk = Desk()
    bench.lane.begin_reports = desk.begin
    return desk


class Line:
    """The second line of a child, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def say(self, **frame: Any) -> None:
        body = json.dumps(frame).encode()
        self._writer.write(HEADER.pack(len(body)) + body)

    def die(self) -> None:
        self._writer.close()


@pytest.fixture
async def line(bench: Bench, child: Speaker) -> AsyncIterator[Line]:
    line = Line(*await asyncio.open_unix_connection(str(bench.lane.address)))
    line.say(reports=child.pid)
    assert await asyncio.wait_for(line.reader.read(1), 5)
    yield line
    line.die()


async def run(bench: Bench, child: Speaker) -> None:
    bench.lane.run([CLAIM])
    assert "run" in await child.hear()


async def test_what_was_sent_before_the_outcome_comes_before_it(
    bench: Bench, child: Speaker, line: Line, desk: Desk
) -> None:
    await run(bench, child)
    line.say(of=[ID, 1], told=[[1, None, None, "on the line ", 0], [2, 5.0, 9.0, None, 0]])
    child.say(
        id=ID, attempt=1, status="succeeded", output="1", reports={"left": [[3, None, None, "last", 0]], "sent": 1}
    )
    await bench.until(lambda: bench.outcomes)

    assert desk.told() == ["on the line last", 5.0]


@pytest.mark.parametrize(
    "frame",
    [
        {},
        {"of": 5, "told": [[1, None, None, "x", 0]]},
        {"of": [ID, 2], "told": [[1, None, None, "of another attempt", 0]]},
        {"of": ["other", 1], "told": [[1, None, None, "of another call", 0]]},
        {"of": [ID, 1], "told": 7},
        {"of": [ID, 1], "told": [7]},
        {"of": [ID, 1], "told": [[1, 2, 3]]},
        {"of": [ID, 1], "told": [[1, None, None, "", "many"]]},
        {"of": [ID, 1], "told": [[1, {}, [], {}, None, 6, 7]]},
    ],
)
async def test_what_is_no_report_of_this_body_does_no_harm(
    bench: Bench, child: Speaker, line: Line, desk: Desk, frame: dict[str, Any]
) -> None:
    await run(bench, child)
    line.say(**frame)
    line.say(of=[ID, 1], told=[[9, None, None, "still heard", 0]])
    child.say(id=ID, attempt=1, status="succeeded", output="1", reports={"left": [], "sent": 2})
    await bench.until(lambda: bench.outcomes)

    assert "still heard" in "".join(str(one) for one in desk.told())
    assert "another" not in str(desk.told())


async def test_a_line_of_no_child_is_closed(bench: Bench) -> None:
    line = Line(*await asyncio.open_unix_connection(str(bench.lane.address)))
    line.say(reports=1)

    assert await asyncio.wait_for(line.reader.read(), 5) == b""
    line.die()


async def test_reports_while_nothing_runs_are_nobodys(bench: Bench, child: Speaker, line: Line, desk: Desk) -> None:
    telling, heard = bench.lane._children[child.pid].telling, []
    assert telling is not None
    hear = telling.hear
    telling.hear = lambda frame: (hear(frame), heard.append(frame))  # type: ignore[func-returns-value]  # both are done
    line.say(of=[ID, 1], told=[[1, None, None, "x", 0]])
    await bench.until(lambda: heard)
    await run(bench, child)
    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes)

    assert desk.buffers == []


async def test_a_child_that_tells_nothing_has_no_line_and_no_thread(bench: Bench) -> None:
    telling = Telling(bench.lane.address)
    telling.begin(ID, 1)

    assert telling.end() == {}
    assert (telling.thread, telling._line) == (None, None)


async def test_what_was_not_sent_goes_with_the_outcome(bench: Bench, child: Speaker) -> None:
    telling = Telling(bench.lane.address)
    telling._is_mute = True  # as where the line broke
    telling.begin(ID, 1).emit("all of it")

    assert telling.end() == {"reports": {"left": [[1, None, None, "all of it", 0]], "sent": 0}}


async def test_news_goes_out_by_a_thread_of_its_own(bench: Bench, child: Speaker, desk: Desk) -> None:
    await run(bench, child)
    telling = Telling(bench.lane.address)
    telling._pid = child.pid
    buffer = telling.begin(ID, 1)
    await asyncio.to_thread(buffer.emit, "one ")
    await bench.until(lambda: desk.buffers and desk.buffers[0].is_waiting)
    buffer.emit("two")
    await bench.until(lambda: telling._sent == 2)
    said = telling.end()
    child.say(id=ID, attempt=1, status="succeeded", output="1", **said)
    await bench.until(lambda: bench.outcomes)

    assert desk.told() == ["one two"]
    assert telling._line is not None
    telling._line.close()
