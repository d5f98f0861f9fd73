"""A child's end of a pair with the process lane, which does as the test says, and a lane to speak with."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from forge_tools.config import Settings
from forge_tools.model import new_id
from forge_tools.model.execution import Claim
from forge_tools.sandbox.reach import Reach
from forge_tools.sandbox.walls.cgroups import Cgroup
from forge_tools.time_limits import CeleryLimits, TimeLimits
from tests.unit.workers.host import LaneHost
from workers.capture import ChildOutput
from workers.lanes.children import ChildrenLane
from workers.lanes.frames import HEADER, Frames, framed
from workers.lanes.walls import Walls

GRACE = 0.2
TIME_LIMITS = TimeLimits(grace=GRACE, lease=15)
ID = new_id()
"""Of this run alone: what a stopped body left is found by it on the whole machine."""
CLAIM = Claim(
    id=ID,
    attempt=1,
    token="token",
    tool="Tool",
    tool_version="1.0.0",
    parameters="{}",
    context="{}",
    timeout=20.0,
    max_attempts=1,
    idempotent=False,
    reply_to="client",
)


class Speaker(asyncio.Protocol):
    """A child's end of its pair. Its process is a real one, so that it can be killed."""

    end: socket.socket

    def __init__(self, pid: int, *, answers: bool = True) -> None:
        self.pid = pid
        self.answers = answers
        self.answered = 0
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._frames = Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for text, more in self._frames.add(data):
            frame = json.loads(text)
            if more:
                frame["artifact"]["data"] = more
            if "answer?" not in frame:
                self._heard.put_nowait(frame)
            elif self.answers:
                self.say("answering")
                self.answered += 1

    def say(self, kind: str, *files: int, **fields: Any) -> None:
        """Send a frame, perhaps with open files."""
        data = framed({"kind": kind, **fields})
        if files:
            assert not self.transport.get_write_buffer_size()
            assert socket.send_fds(self.end, [data], files) == len(data)
        else:
            self.transport.write(data)

    def start(self, **of: Any) -> None:
        self.say("started", **{"id": ID, "attempt": 1, **of})

    def send(self, data: bytes) -> None:
        """A frame of bytes that may be none."""
        self.transport.write(HEADER.pack(len(data), 0) + data)

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            return await self._heard.get()

    def finish(self, claim: Claim) -> None:
        self.say("ended", id=claim.id, attempt=claim.attempt, status="succeeded", output="1")

    def die(self) -> None:
        self.transport.close()


@dataclass
class Limited:
    """Time limits that a child's pool was told of."""

    pid: int
    limits: CeleryLimits
    is_stopped: bool = False

    def stop(self) -> None:
        self.is_stopped = True


def no_walls() -> Walls:
    """Those of a worker without tools."""
    return Walls(Settings(), Reach(), ())


class Bench(LaneHost):
    """A lane, the claims it may get, the outcomes it told."""

    def __init__(self) -> None:
        super().__init__()
        self.told_of_slots: list[int] = []
        self.limited: list[Limited] = []
        self.lane = self.lane_with()

    def lane_with(self, **options: Any) -> ChildrenLane:
        options = {"walls": no_walls()} | options
        return ChildrenLane(hostname="here", time_limits=TIME_LIMITS, max_output_bytes=1_000_000, **options)

    def slot_opened(self) -> None:
        self.told_of_slots.append(self.lane.free_slots())

    def _limit(self, pid: int, limits: CeleryLimits) -> "Limited":
        self.limited.append(limited := Limited(pid, limits))
        return limited

    async def connect(self, pid: int, *, answers: bool = True) -> Speaker:
        answering = self.lane.answering()
        speaker = await self.fork(pid, answers=answers)
        speaker.say("answering")
        await self.until(lambda: self.lane.answering() == answering + 1)
        return speaker

    async def fork(self, pid: int, *, answers: bool = True) -> Speaker:
        """A child that has not said anything yet."""
        ours, theirs = socket.socketpair()
        output = ChildOutput()
        output.born()
        self.lane.adopt(SimpleNamespace(pid=pid, exitcode=None), ours, partial(self._limit, pid), output, Cgroup())
        speaker = Speaker(pid, answers=answers)
        speaker.end = theirs
        await asyncio.get_running_loop().create_connection(lambda: speaker, sock=theirs)
        return speaker


@contextlib.contextmanager
def a_process() -> Iterator[int]:
    """One of its own group."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()
