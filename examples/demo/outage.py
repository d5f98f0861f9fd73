"""The kill scene: a host and the broker die under load, here and, on the same schedule, under plain Celery."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo import verdict
from examples.demo.effects import Effects
from examples.demo.plain import PlainCelery
from examples.demo.schedule import COUNT, Work, due, keys, schedule
from examples.demo.second_host import SecondHost
from examples.demo.stage import BrokenPromiseError, Stage
from forge_tools.client import ExecutorClient, Handle
from forge_tools.config import Settings
from forge_tools.embedded.stack import EmbeddedStack
from forge_tools.errors import ForgeError
from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.processes.trees import Process, descendants

AGENT = "demo-outage"
DOOMED = "beta"

_MOMENT_SECONDS = 3.0
_SETTLE_SECONDS = 60.0
_POLL_SECONDS = 0.02
_TEND_SECONDS = 0.2


@dataclass
class Outage:
    """200 calls on two hosts and, beside them, the same under plain Celery; then three kinds of accident at once."""

    stage: Stage
    client: ExecutorClient
    stack: EmbeddedStack
    settings: Settings
    tools: tuple[str, ...]
    seen: list[Process] = field(default_factory=list)
    """Every process there was at the time of the accident."""

    async def play(self) -> None:
        """Start both sides, inject the faults, and report what became of every call."""
        self.stage.section(f"{COUNT} calls on two hosts; one of them and the broker are killed midway")
        home = self.settings.home
        with ExitStack() as scene:
            scene.enter_context(_expected_warnings())
            host = scene.enter_context(SecondHost(DOOMED, self.settings, tools=self.tools))
            plain = PlainCelery(home / "plain", home / "plain.effects")
            scene.callback(plain.close)
            await asyncio.gather(host.until_ready(), asyncio.to_thread(plain.__enter__))
            ours = await self._play(host, plain, home / "ours.effects")
        verdict.pronounce(self.stage, ours)

    async def _play(self, host: SecondHost, plain: PlainCelery, log: Path) -> verdict.Evidence:
        works, began = schedule(), time.monotonic()
        publishing = asyncio.create_task(asyncio.to_thread(plain.publish, works, began))
        submitting = asyncio.create_task(self._submit(works, log, began))
        tending = asyncio.create_task(_tend(plain))
        try:
            await asyncio.sleep(due(COUNT // 2, 0))
            accident = await self._strike(host, plain, works, log)
            handles = await submitting
            results = await asyncio.gather(*(_end_of(handle) for handle in handles))
            ended = time.monotonic()
            await publishing
            returned = await asyncio.to_thread(plain.settled)
        finally:
            for task in (publishing, submitting, tending):
                task.cancel()
        return verdict.Evidence(
            works=works,
            results=dict(zip((work.key for work in works), results, strict=True)),
            records=[await handle.record() for handle in handles],
            effects=Effects.read(log),
            accident=accident,
            seconds_after=ended - accident.at,
            plain_returned=returned,
            plain_refused=plain.refused,
            plain_effects=plain.effects(),
        )

    async def _submit(self, works: Sequence[Work], log: Path, began: float) -> list[Handle]:
        context = ExecutionContext(working_dir=str(self.settings.workspace), agent_id=AGENT)
        handles = []
        for work in works:
            await asyncio.sleep(max(0.0, due(work.number, began) - time.monotonic()))
            handles.append(await self.client.submit(work.tool.name, work.parameters(log), context))
        return handles

    async def _strike(self, host: SecondHost, plain: PlainCelery, works: Sequence[Work], log: Path) -> verdict.Accident:
        """Kill at the worst moment: both sides run calls on the doomed host, and elsewhere a call that must not run twice."""
        precious = keys(works, idempotent=False)
        in_children = {work.key for work in works if work.tool.lane == "process"} & precious
        valkey = next(process.pid for process in self.stack.status().processes if process.name == "valkey")
        self.seen = descendants(os.getpid())
        killed, doomed = host.pids(), plain.pids(DOOMED)
        ours, theirs = await _moment(
            killed | doomed,
            lambda: victims_of(Effects.read(log), killed, precious, in_children),
            lambda: victims_of(plain.effects(), doomed, precious, precious),
        )
        at = time.monotonic()
        host.kill()
        plain.kill_host(DOOMED)
        for pid in (ours.child, theirs.child, valkey):
            if pid is not None:
                _signal([pid], signal.SIGKILL)
        plain.kill_broker()
        return verdict.Accident(at=at, host=DOOMED, killed=killed, hit=ours.hit, child=ours.child, valkey=valkey)


@contextmanager
def _expected_warnings() -> Iterator[None]:
    """Suppress warnings about processes that are killed on purpose."""
    ours = logging.getLogger("forge_tools")
    before = ours.level
    ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ours.setLevel(before)


@dataclass(frozen=True, slots=True)
class Victims:
    """Keys whose bodies run on the doomed host; the pid of a child elsewhere whose call must not run twice."""

    hit: set[str]
    child: int


def victims_of(effects: Effects, doomed: set[int], precious: set[str], in_children: set[str]) -> Victims | None:
    """Return who would be hit now; None if that would prove little."""
    running = effects.running()
    hit = {key for key, pid in running.items() if pid in doomed}
    child = next((pid for key, pid in running.items() if key in in_children and pid not in doomed), None)
    if child is None or not hit & precious or not hit - precious:
        return None
    return Victims(hit, child)


async def _moment(doomed: Iterable[int], *finds: Callable[[], Victims | None]) -> list[Victims]:
    """Wait for victims on each side. The doomed hosts are frozen from that moment, so that no call ends before the kill."""
    deadline = time.monotonic() + _MOMENT_SECONDS
    while True:
        _signal(doomed, signal.SIGSTOP)
        found = [victims for victims in (find() for find in finds) if victims is not None]
        if len(found) == len(finds):
            return found
        _signal(doomed, signal.SIGCONT)
        if time.monotonic() > deadline:
            raise BrokenPromiseError("Not as promised: both hosts of both sides run calls. Found: some of them idle")
        await asyncio.sleep(_POLL_SECONDS)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def _end_of(handle: Handle) -> ToolResult | None:
    """Return the result that the caller gets; None if there is none."""
    try:
        return await handle.result(timeout=_SETTLE_SECONDS)
    except ForgeError:
        return None


async def _tend(plain: PlainCelery) -> None:
    while True:
        plain.tend()
        await asyncio.sleep(_TEND_SECONDS)
