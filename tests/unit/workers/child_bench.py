"""A child's end of the process lane's socket, which does as the test says, and a lane to speak with."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from forge_tools.records import Claim, Outcome, Ring, new_id
from tests.waiting import reached
from workers.lanes.children import ChildrenLane
from workers.lanes.frames import Line

GRACE = 0.2
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


class Speaker:
    """A child's end of the socket. Its process is a real one, so that it can be killed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.line = Line(self._heard.put_nowait, lambda: self._heard.put_nowait({"end": True}))

    def say(self, **frame: Any) -> None:
        self.line.send(frame)

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            return await self._heard.get()

    @property
    def is_at_rest(self) -> bool:
        """Whether it has heard no more so far."""
        return self._heard.empty()

    def finish(self, claim: Claim) -> None:
        self.say(id=claim.id, attempt=claim.attempt, status="succeeded", output="1")

    def die(self) -> None:
        self.line.close()


class Bench:
    """A lane, the claims it may get, the outcomes it told."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.claimable: dict[str, Claim] = {}
        self.failure: Exception | None = None
        self.asked: list[list[str]] = []
        self.told_of_slots: list[int] = []
        self.lane = ChildrenLane(
            self._claim, self.outcomes.append, hostname="here", kill_grace=GRACE, opened=self._opened
        )

    async def _claim(self, rings: Sequence[Ring]) -> list[Claim]:
        self.asked.append([ring.id for ring in rings])
        await asyncio.sleep(0.01)
        if self.failure:
            raise self.failure
        return [self.claimable.pop(ring.id) for ring in rings if ring.id in self.claimable]

    async def _opened(self) -> None:
        self.told_of_slots.append(self.lane.free_slots())

    async def connect(self, pid: int) -> Speaker:
        slots = self.lane.free_slots()
        speaker = Speaker(pid)
        await asyncio.get_running_loop().create_unix_connection(lambda: speaker.line, str(self.lane.address))
        speaker.say(hello=pid)
        await self.until(lambda: self.lane.free_slots() == slots + 1)
        return speaker

    until = staticmethod(reached)


@contextlib.contextmanager
def a_process() -> Iterator[int]:
    """One of its own group."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()
