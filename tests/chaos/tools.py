"""Tools that behave in every way a tool can, in both lanes, idempotent and not; each notes what it does."""

import asyncio
import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from typing import NoReturn

from forge_tools.model import Lane, new_id
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests import impostor
from tests.chaos.effects import SHORT_FOR, note
from tests.chaos.members import MARK_VARIABLE, RUN_VARIABLE, members

FOR_EVER = 3600.0
EATS = 20
"""In the time between two notes that there are none."""
"""Seconds until what others have let go of is eaten, too."""

FEW_DESCRIPTORS = 16
FAILED_ON_PURPOSE = "failed on purpose"


class Shape(BaseTool):
    """One way to behave; `variants` makes the tools of it."""

    category = ToolCategory.EXECUTION
    parameters = (
        ToolParameter(name="mark", type="string", description="What the call is called in the effects log."),
        ToolParameter(name="seconds", type="number", description="How long it takes.", required=False, default=0.0),
    )


class Work(Shape):
    """Await a while with a file open, then succeed."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        with open(os.devnull):
            await asyncio.sleep(seconds)
        note(mark, "end")
        return self.result(mark)

    def result(self, mark: str) -> ToolResult:
        return ToolResult.ok(mark)


class Compute(Shape):
    """Hold the thread a while, then succeed."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        time.sleep(seconds)
        note(mark, "end")
        return ToolResult.ok(mark)


class Fail(Work):
    """Return a failed result."""

    def result(self, mark: str) -> ToolResult:
        return ToolResult.fail(FAILED_ON_PURPOSE)


class Raise(Work):
    """Raise what it should not."""

    def result(self, mark: str) -> NoReturn:
        raise RuntimeError(FAILED_ON_PURPOSE)


class Hang(Shape):
    """Await what never comes."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        await asyncio.sleep(FOR_EVER)
        return ToolResult.ok(mark)


class Stubborn(Shape):
    """Await what never comes, and take no cancel for an answer."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> NoReturn:
        note(mark, "start")
        while True:  # no deadline: what cannot be cancelled is the case
            try:
                await asyncio.sleep(FOR_EVER)
            except asyncio.CancelledError:
                continue


class Block(Shape):
    """Hold the thread for ever."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        time.sleep(FOR_EVER)
        return ToolResult.ok(mark)


class Exit(Shape):
    """End the process it runs in."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> NoReturn:
        note(mark, "start")
        os._exit(3)


class Kill(Shape):
    """Kill the process it runs in."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        os.kill(os.getpid(), signal.SIGKILL)
        return ToolResult.ok(mark)


class Errand(Shape):
    """Start a child, wait for it, then succeed."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        status = await self.run(["sh", "-c", self.script(seconds)], {**os.environ, MARK_VARIABLE: mark})
        if status:
            raise RuntimeError(f"the child of {mark} ended with {status}")
        note(mark, "end")
        return ToolResult.ok(mark)

    def script(self, seconds: float) -> str:
        return f"exec sleep {seconds:g}"

    async def run(self, command: list[str], environment: dict[str, str]) -> int:
        """The status that it ended with."""
        return subprocess.run(command, env=environment).returncode


class ErrandOfLoop(Errand):
    """The same by asyncio."""

    async def run(self, command: list[str], environment: dict[str, str]) -> int:
        child = await asyncio.create_subprocess_exec(*command, env=environment)
        return await child.wait()


class ErrandOfThread(Errand):
    """The same on a thread."""

    async def run(self, command: list[str], environment: dict[str, str]) -> int:
        return (await asyncio.to_thread(subprocess.run, command, env=environment)).returncode


class ErrandBySpawn(Errand):
    """The same by `posix_spawn`."""

    async def run(self, command: list[str], environment: dict[str, str]) -> int:
        child = os.posix_spawn(f"/bin/{command[0]}", command, environment)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        return os.waitstatus_to_exitcode(status)


class Family(Errand):
    """Start a child, a grandchild in a session of its own and an orphan, then wait for what never comes."""

    def script(self, seconds: float) -> str:
        return f"(setsid sleep {FOR_EVER:g} &); setsid sleep {FOR_EVER:g} & sleep {FOR_EVER:g}"

    async def run(self, command: list[str], environment: dict[str, str]) -> int:
        child = subprocess.Popen(command, env=environment)
        while (status := child.poll()) is None:  # no deadline: its call has a timeout
            await asyncio.sleep(0.05)
        return status


class FamilyOfLoop(ErrandOfLoop, Family):
    """The same by asyncio."""


class FamilyOfThread(ErrandOfThread, Family):
    """The same on a thread."""


class FamilyBySpawn(ErrandBySpawn, Family):
    """The same by `posix_spawn`."""


class Starve(Shape):
    """Take every descriptor that its process can get, and keep them for a while."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        taken: list[int] = []
        try:
            _eat(taken)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                note(mark, "short")
                for _ in range(EATS):
                    await asyncio.sleep(SHORT_FOR / EATS)
                    _eat(taken)
        finally:
            note(mark, "enough")
            for fd in taken:
                os.close(fd)
        note(mark, "end")
        return ToolResult.ok(mark)


class Lower(Shape):
    """Leave its process with fewer descriptors than it has open."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, FEW_DESCRIPTORS))
        note(mark, "short")
        note(mark, "end")
        return ToolResult.ok(mark)


class LetGo(Shape):
    """Close descriptors that are not its own, as careless daemons do."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        os.closerange(3, 256)
        await asyncio.sleep(FOR_EVER)
        return ToolResult.ok(mark)


class Pose(Shape):
    """Pose as each child of every worker, wherever one listens, and note what it is told."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        await asyncio.to_thread(_pose, mark)
        note(mark, "end")
        return ToolResult.ok(mark)


class SpeakForOthers(Shape):
    """End the calls of its siblings on its own line, and say what no child may."""

    async def _execute(self, context: ExecutionContext, mark: str, seconds: float) -> ToolResult:
        note(mark, "start")
        ends = [impostor.forged(*victim) for victim in impostor.siblings()]
        impostor.say(*ends, impostor.forged(new_id(), 1, give_back=True))
        await asyncio.sleep(FOR_EVER)
        return ToolResult.ok(mark)


def _eat(taken: list[int]) -> None:
    with suppress(OSError):
        while True:  # no deadline: it ends where descriptors do
            taken.append(os.open(os.devnull, os.O_RDONLY))


def _pose(mark: str) -> None:
    found_by_environment = [member.pid for member in members(os.environ[RUN_VARIABLE])]
    for pid in {os.getppid(), *found_by_environment}:  # our engine, which is closed to us, is no secret
        with suppress(OSError):  # it has ended meanwhile
            for found in impostor.join(pid):
                note(mark, "got", found)


def tool_name(shape: str, lane: Lane, *, idempotent: bool) -> str:
    return f"{shape}{lane.capitalize()}{'Again' if idempotent else 'Once'}"


def variants(shape: type[Shape]) -> list[type[Shape]]:
    """The shape in each lane, idempotent and not."""
    lanes: tuple[Lane, ...] = ("async", "process")
    return [_variant(shape, lane, idempotent) for lane in lanes for idempotent in (True, False)]


def _variant(shape: type[Shape], lane: Lane, idempotent: bool) -> type[Shape]:
    name = tool_name(shape.__name__, lane, idempotent=idempotent)
    capabilities = Capabilities(idempotent=idempotent)
    return type(name, (shape,), {"__doc__": shape.__doc__, "name": name, "lane": lane, "capabilities": capabilities})


ERRANDS = (ErrandOfLoop, ErrandOfThread, ErrandBySpawn)
FAMILIES = (FamilyOfLoop, FamilyOfThread, FamilyBySpawn)
SHAPES = (
    Work,
    Compute,
    Fail,
    Raise,
    Hang,
    Stubborn,
    Block,
    Exit,
    Kill,
    Family,
    Errand,
    *ERRANDS,
    *FAMILIES,
    Starve,
    Lower,
    LetGo,
    Pose,
    SpeakForOthers,
)
TOOLS = tuple(tool for shape in SHAPES for tool in variants(shape))
