"""One run: submit, break things on schedule, let it settle, collect the evidence, check it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_tools.client import ExecutorClient
from tests.chaos import effects, truth
from tests.chaos.checker import Evidence, Violation, check
from tests.chaos.faults import Faults
from tests.chaos.members import Member
from tests.chaos.plan import Plan
from tests.chaos.schedule import Step
from tests.chaos.stage import Stage
from tests.chaos.submitter import Submitter
from tests.waiting import reached

AFTER_THE_END = 10.0
"""Seconds within which handles must resolve once SQL says that all is over."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a plan. `settled_after` counts seconds from the last fault's end until all was over; None: never."""

    plan: Plan
    folder: Path
    evidence: Evidence
    violations: Sequence[Violation]
    faults: Counter[str]
    settled_after: float | None

    def statuses(self) -> Counter[str]:
        return Counter(row.status for row in self.evidence.executions)

    def answers(self) -> Counter[str]:
        return Counter(one.answer for one in self.evidence.submitted)


async def run(plan: Plan, folder: Path, start: AbstractAsyncContextManager[Any] | None = None) -> Run:
    """Carry a plan out on servers and workers of its own, in the new `folder`; whatever happens, no process is left behind.

    They start inside `start`, for instance a semaphore of runs that go on side by side: starting is what takes the processor.
    """
    folder.mkdir(mode=0o711)
    async with AsyncExitStack() as cleanup:
        async with start or nullcontext():
            stage = await cleanup.enter_async_context(Stage(plan, folder))
        watch = truth.Watch(stage.database, every=max(1.0, plan.seconds / 60))
        async with ExecutorClient(stage.settings) as client:
            submitter = Submitter(client, folder)
            faults = Faults(stage.crew, stage.broker, stage.database, on_starter=stage.on_starter, recent=submitter.ids)
            background = [asyncio.create_task(work) for work in (stage.crew.tend(), watch.run())]
            calls = asyncio.ensure_future(submitter.run(plan.calls))
            await reached(
                lambda: effects.read(stage.log), otherwise="no body begins"
            )  # or the first faults meet nobody
            await asyncio.gather(*(_in_time(step, faults.carry_out(step)) for step in plan.steps))
            settled_after = await _settle(plan, stage, submitter, calls)
            leftovers = [one for one in stage.members() if one.mark and settled_after is not None]
            silent = await truth.silent(stage.database, stage.crew.pids)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            faults.close()
        await stage.crew.stop(silent)
        evidence = await _evidence(stage, submitter, watch, [*leftovers, *stage.members()])
        evidence = replace(evidence, silent=silent, garbage=faults.garbage)
        return Run(plan, folder, evidence, check(evidence), faults.done, settled_after)


async def _in_time(step: Step, work: Awaitable[None]) -> None:
    await asyncio.sleep(step.at)
    await work


async def _settle(plan: Plan, stage: Stage, submitter: Submitter, calls: "asyncio.Future[None]") -> float | None:
    """Wait until every call is over in SQL and every handle knows."""
    began = time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(plan.settle):
            while not calls.done() and (
                len(submitter.submitted) < len(plan.calls) or await truth.unfinished(stage.database)
            ):
                await asyncio.sleep(0.2)
        settled_after = time.monotonic() - began
        async with asyncio.timeout(AFTER_THE_END):
            await calls
        return settled_after
    calls.cancel()
    with suppress(asyncio.CancelledError):
        await calls
    return None


async def _evidence(stage: Stage, submitter: Submitter, watch: truth.Watch, leftovers: Sequence[Member]) -> Evidence:
    return Evidence(
        submitted=list(submitter.submitted.values()),
        executions=await truth.executions(stage.database),
        queued=await truth.queued(stage.database),
        attempts=await truth.attempts(stage.database),
        sightings=list(watch.seen.values()),
        effects=effects.read(stage.log),
        resolved=submitter.resolved,
        events=await truth.events(stage.database),
        deaths=stage.crew.deaths,
        dropped=await truth.dropped(stage.database),
        leftovers={one.pid: f"{one.command} (call {one.mark})" for one in leftovers},
    )
