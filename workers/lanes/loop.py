"""The async lane: one tool loop on its own thread runs up to `concurrency` bodies that only await."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from forge_tools.model.execution import Claim, ExecutionStatus, Outcome
from forge_tools.time_limits import TimeLimits
from forge_tools.tool.executor import ToolExecutor
from workers.lanes.base import Body, Guard, Host, Verdict, execute, outcome_of_task, scope_of
from workers.lanes.ownership import bury_orphans, end_processes, own_processes
from workers.lanes.tool_loop import LoopHeldError, Step, TaskCloser, ToolLoop, Watch
from workers.outcomes import blocked, cancelled, handed_back, lost, timed_out

HELD_SECONDS = 1.0
"""A tool that holds the loop for longer, in one step or in several within `HELD_WITHIN`, is one that blocks."""

HELD_WITHIN = 3.0
"""Steps that ended longer ago are forgotten. Those that are too short for a check to see twice do not count."""

HELD_AGAIN_SECONDS = 0.4
"""Instead of `HELD_SECONDS`, for bodies of a tool that is known to block which began before that was known."""

HOSTAGE_SECONDS = 15.0
"""How long a call into C may block: neighbours would rather wait this long than be lost with the process, but no
longer. Python code is interrupted long before.
"""

RAISE_AGAIN_SECONDS = 1.0  # a bare except in the tool may have swallowed the last one
LEAST_EXTENSION = 0.1
"""Seconds; a shorter postponement of a body's end is not worth a timer."""
FORCE_SECONDS = 0.5
"""How long a forced end may take before it is reported anyway."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Hold:
    """A step that blocks the loop, and for how many seconds its body did `earlier`. Other times are `time.monotonic`."""

    step: Step
    place: str
    earlier: float
    noticed: float
    raised: float = 0.0

    @property
    def seconds(self) -> float:
        return self.earlier + self.step.seconds


@dataclass(slots=True)
class LoopBody(Body):
    """A body on the tool loop. `due` is when it is ended by force, on the tool loop's clock."""

    due: float = 0.0
    task: asyncio.Task[Outcome] | None = None
    hold: Hold | None = None
    verdict: Verdict | None = None
    is_rerun: bool = False


class LoopLane:
    """Runs bodies on a separate loop, so that a stuck tool never stops the engine."""

    def __init__(
        self, executor: ToolExecutor, *, concurrency: int, time_limits: TimeLimits, max_output_bytes: int
    ) -> None:
        self._executor = executor
        self._concurrency = concurrency
        self._time_limits, self._grace = time_limits, time_limits.grace
        self._max_output_bytes = max_output_bytes
        self._bodies: dict[tuple[str, int], LoopBody] = {}
        self._not_begun: dict[int, LoopBody] = {}
        self._banned: set[str] = set()
        self._hold: Hold | None = None
        self._long_steps: list[Step] = []
        self._done: list[tuple[LoopBody, Outcome]] = []
        self._done_lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="forge-tools-loop", daemon=True)
        self._is_started = False
        self._is_hopeless = False
        self._is_stopped = False
        self._is_over = False
        self._sweeps: set[asyncio.Task[None]] = set()

    async def start(self, host: Host) -> None:
        self._host = host
        self._engine = asyncio.get_running_loop()
        own_processes()
        self._tools = ToolLoop()
        self._closer = TaskCloser(self._tools, grace=self._grace, survived=self._survived)
        self._thread.start()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._executor.initialize(), self._tools))
        self._watch = Watch(
            self._tools, self._thread, self._see, is_busy=lambda: bool(self._bodies) or self._tools.has_tasks
        )
        self._is_started = True

    def free_slots(self) -> int:
        return max(0, self.answering() - len(self._bodies))

    def answering(self) -> int:
        """Return 0 while a body holds the loop: other workers are faster."""
        owner = self._hold.step.owner if self._hold is not None else None
        return self._concurrency if owner is None or owner.is_over else 0

    def run(self, claims: Sequence[Claim]) -> None:
        bodies = []
        for claim in claims:
            if claim.tool in self._banned:
                self._host.finished(handed_back(claim))
                continue
            bodies.append(body := LoopBody(claim, reports=self._host.begin_reports(claim)))
            self._bodies[claim.id, claim.attempt] = body
            self._not_begun[id(body)] = body
            body.due = self._tools.time() + (seconds := self._time_limits.force(claim.timeout))
            body.guard = Guard(seconds, partial(self._on_due, body), patience=self._grace)
        self._watch.begin()
        self._tools.call_soon_threadsafe(self._launch, bodies)

    def cancel(self, execution_id: str, attempt: int) -> None:
        body = self._bodies.get((execution_id, attempt))
        if body is None or body.is_cancelled or self._is_stopped:
            return
        body.is_cancelled = True
        if self._withdraw(body):
            self._tell(body, cancelled(body.claim, body.elapsed_ms))
            return
        self._tools.call_soon_threadsafe(self._cancel, body)
        self._engine.call_later(self._grace, self._end_by_force, body, cancelled)

    def ban(self, tools: Iterable[str]) -> None:
        """Start no more bodies of those tools, and hand back those that have not begun."""
        self._banned.update(tools)
        for body in list(self._not_begun.values()):
            if body.claim.tool in self._banned and self._withdraw(body):
                self._tell(body, handed_back(body.claim))

    def running(self) -> list[Claim]:
        return [body.claim for body in self._bodies.values()]

    async def stop(self) -> list[Claim]:
        self._collect()
        if self._is_started:
            self._watch.stop()
        for body in list(self._not_begun.values()):
            if self._withdraw(body):
                self._tell(body, handed_back(body.claim))
        if self._sweeps:
            await asyncio.wait(self._sweeps, timeout=self._grace)
        self._is_stopped = True
        if self._thread.is_alive() and not self._is_hopeless:
            winding_down = asyncio.run_coroutine_threadsafe(self._wind_down(), self._tools)
            await asyncio.wait([asyncio.wrap_future(winding_down)], timeout=self._grace * 2)
            winding_down.cancel()  # and the loop ends a turn later, since a cancelled task takes a last step
            self._tools.call_soon_threadsafe(self._tools.call_soon, self._end)
            await asyncio.to_thread(self._thread.join, self._grace)
        for body in self._bodies.values():
            body.is_ending = True
        await asyncio.gather(*(end_processes(body) for body in self._bodies.values() if body.starts or body.processes))
        return self.running()

    # The engine's side: everything above, the return of a body's end, and what ends those that do not stop.

    def _collect(self) -> None:
        with self._done_lock:
            done, self._done = self._done, []
        for body, outcome in done:
            self._tell(body, outcome)

    def _tell(self, body: LoopBody, outcome: Outcome) -> None:
        if body.is_over or body.is_ending or self._is_stopped:
            return
        if body.guard is not None:
            body.guard.stop()
        if body.hold is not None or outcome.status not in {ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED}:
            body.is_ending = True  # it did not end by itself, and starts no process from now on
        if body.is_ending and (body.starts or body.processes):
            self._sweeps.add(sweep := self._engine.create_task(self._sweep_and_tell(body, outcome)))
            sweep.add_done_callback(self._sweeps.discard)
            return
        if body.processes:
            bury_orphans()
        self._end_body(body, outcome)

    async def _sweep_and_tell(self, body: LoopBody, outcome: Outcome) -> None:
        await end_processes(body)
        if not self._is_stopped:
            self._end_body(body, outcome)

    def _end_body(self, body: LoopBody, outcome: Outcome) -> None:
        body.is_over = True
        del self._bodies[body.key]
        self._host.finished(outcome)

    def _withdraw(self, body: LoopBody) -> bool:
        """Keep a body from beginning, unless it has begun: whichever thread removes it first wins."""
        return self._not_begun.pop(id(body), None) is not None

    def _on_due(self, body: LoopBody) -> None:
        """End a body whose time is up, unless time in which another one held the loop must be added."""
        left = body.due - self._tools.time()
        if self._tools.turn_seconds > LEAST_EXTENSION:  # the loop may be held by a body not blamed yet
            left = max(left, HELD_SECONDS)
        if left > LEAST_EXTENSION and body.hold is None:
            body.guard = Guard(left, partial(self._on_due, body), patience=self._grace)
        elif self._withdraw(body):
            self._tell(body, handed_back(body.claim))
        else:
            self._end_by_force(body, timed_out)

    def _end_by_force(self, body: LoopBody, verdict: Verdict) -> None:
        self._collect()
        if not (body.is_over or body.verdict or self._is_stopped):
            body.verdict = verdict
            self._tools.call_soon_threadsafe(self._closer.by_force, body)
            self._engine.call_later(FORCE_SECONDS, self._tell_verdict, body)

    def _tell_verdict(self, body: LoopBody) -> None:
        self._collect()
        self._tell(body, self._judgement(body))

    # Still the engine's side: a step that holds the loop.

    def _see(self, step: Step) -> None:
        """Handle a step seen again at this check: blame it in time, interrupt it, finally give up on the process."""
        if self._hold is None or self._hold.step is not step:
            hold = self._judge(step)
            if hold is None:
                return
            self._hold = hold
        now = time.monotonic()
        if step.owner is not None and now - self._hold.raised >= RAISE_AGAIN_SECONDS:
            self._hold.raised = now
            self._watch.interrupt(step)
        if self._is_beyond_hope(self._hold):
            self._give_up(self._hold)

    def _judge(self, step: Step) -> Hold | None:
        """Blame a step if its body has held the loop for too long, in this step and in others shortly before.

        If bodies of one tool did so together, it is demoted, and each goes on as long as it does not block by itself.
        """
        since = step.seen_at - HELD_WITHIN
        self._long_steps = [one for one in self._long_steps if one.seen_at > since and one is not step] + [step]
        by_tool = [one for one in self._long_steps if one.tool == step.tool]
        by_body = [one for one in by_tool if one.owner is step.owner]
        is_known = step.tool in self._banned
        if max(step.seconds, _holding(by_body)) >= (HELD_AGAIN_SECONDS if is_known else HELD_SECONDS):
            self._long_steps = [one for one in self._long_steps if one not in by_body]
            return self._blame(step, _holding(by_body) - step.holding)
        if _holding(by_tool) >= HELD_SECONDS and not is_known:
            self._demote(step, _holding(by_tool), self._watch.place(step))
        return None

    def _blame(self, step: Step, earlier: float) -> Hold:
        hold = Hold(step, self._watch.place(step), earlier, noticed=time.monotonic())
        self._tools.excuse(step.turn)  # the timers of its neighbours stand still meanwhile
        owner = step.owner
        facts = owner.claim.facts() if owner is not None else {}
        logger.error("The event loop of the tools is blocked", extra={"place": hold.place, **facts})
        if isinstance(owner, LoopBody):
            owner.hold = None if owner.is_over else hold
            self._demote(step, hold.seconds, hold.place)
            self._stop_siblings(owner)
            self._tools.call_soon_threadsafe(self._closer.politely, owner)
        return hold

    def _demote(self, step: Step, seconds: float, place: str) -> None:
        if step.tool is not None:
            self.ban([step.tool])
            self._host.demote(step.tool, f"blocked the event loop for {seconds:.1f}s in {place}")

    def _stop_siblings(self, blocker: LoopBody) -> None:
        """Stop other bodies of the tool that may run again elsewhere, before they block in turn.

        While its thread is inside the blocker no other task takes a step, so these can be cancelled from here. Those
        that must not run twice go on.
        """
        for body in self._bodies.values():
            claim = body.claim
            may_run_again = claim.idempotent and claim.attempt < claim.max_attempts
            if claim.tool == blocker.claim.tool and body is not blocker and may_run_again and body.task is not None:
                body.is_rerun = True
                body.task.cancel()

    def _is_beyond_hope(self, hold: Hold) -> bool:
        owner = hold.step.owner
        if not isinstance(owner, LoopBody) or owner.hold is not hold:
            return hold.seconds >= HOSTAGE_SECONDS
        is_due = owner.elapsed_ms / 1000 >= self._time_limits.force(owner.claim.timeout)
        return hold.seconds >= HOSTAGE_SECONDS or (is_due and time.monotonic() - hold.noticed >= self._grace)

    def _give_up(self, hold: Hold) -> None:
        """Give up on this process: nothing in it ends that step."""
        if self._is_hopeless:
            return
        self._is_hopeless = True
        self._collect()
        owner = hold.step.owner
        if isinstance(owner, LoopBody) and owner.hold is hold:
            self._tell(owner, self._judgement(owner))
        who = "a callback of an unknown tool" if owner is None else f"tool {owner.claim.tool}"
        self._host.replace_process(f"{who} blocked its event loop for {hold.seconds:.0f}s in {hold.place}")

    # The tool loop's side.

    def _serve(self) -> None:
        asyncio.set_event_loop(self._tools)
        try:
            while not self._is_over:
                self._run_tools()
            self._tools.close()
        finally:
            if not self._is_over:  # nobody told it to stop
                with suppress(RuntimeError):  # the engine's loop has ended, and with it the process
                    self._engine.call_soon_threadsafe(self._host.replace_process, "the event loop of its tools failed")

    def _run_tools(self) -> None:
        try:
            self._tools.run_forever()
        except (KeyboardInterrupt, SystemExit):  # raised in a task that a tool started and abandoned
            logger.exception("A tool tried to end the process; its neighbours continue")
        except LoopHeldError:  # raised just after its target had ended
            logger.warning("The event loop was interrupted between two steps; it continues")

    def _launch(self, bodies: Sequence[LoopBody]) -> None:
        for body in bodies:
            context = self._tools.context_of(body)
            body.task = self._tools.create_task(self._run(body), context=context)
            body.task.add_done_callback(partial(self._settle, body))

    async def _run(self, body: LoopBody) -> Outcome:
        if not self._withdraw(body):
            return handed_back(body.claim)
        scope = scope_of(body.claim, body.reports)
        return await execute(self._executor, body.claim, self._max_output_bytes, scope=scope)

    def _settle(self, body: LoopBody, task: asyncio.Task[Outcome]) -> None:
        body.task = None
        with suppress(asyncio.CancelledError):  # a task keeps its own until then, and with it the frames of its body
            task.exception()  # retrieved, or asyncio would log what is judged here
        outcome = self._judgement(body, task)
        if task.cancelled() or outcome.status is ExecutionStatus.TIMED_OUT or body.hold is not None:
            self._closer.politely(body)
        with self._done_lock:
            self._done.append((body, outcome))
            is_first = len(self._done) == 1  # otherwise a collection is already scheduled
        if is_first:
            with suppress(RuntimeError):  # the engine's loop has ended: nobody waits for this any more
                self._engine.call_soon_threadsafe(self._collect)

    def _judgement(self, body: LoopBody, task: asyncio.Task[Outcome] | None = None) -> Outcome:
        """Return how to record a body that ended by itself, by force, for holding the loop, or for its neighbours."""
        claim, after_ms = body.claim, body.elapsed_ms
        if body.hold is not None:
            return cancelled(claim, after_ms) if body.is_cancelled else _for_blocking(body, body.hold)
        if body.verdict is not None or task is None:
            return (body.verdict or cancelled)(claim, after_ms)
        if body.is_rerun and task.cancelled() and not body.is_cancelled:
            return lost(
                claim, f"Another call of {claim.tool} blocked the event loop, and this one was stopped", after_ms
            )
        if not task.cancelled() and isinstance(task.exception(), LoopHeldError):
            return lost(claim, "A neighbour blocked the event loop, and its interruption hit this call", after_ms)
        return outcome_of_task(task, claim, after_ms, is_asked=body.is_cancelled)

    def _cancel(self, body: LoopBody) -> None:
        if body.task is not None:
            body.task.cancel()

    def _survived(self, body: Body) -> None:
        with suppress(RuntimeError):  # the engine's loop has ended
            self._engine.call_soon_threadsafe(self._expel, body.claim.tool)

    def _expel(self, tool: str) -> None:
        self.ban([tool])
        self._host.demote(tool, "swallowed cancellation and could not be closed")

    async def _wind_down(self) -> None:
        tasks = [body.task for body in list(self._bodies.values()) if body.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._grace)
        await self._executor.shutdown()

    def _end(self) -> None:
        self._is_over = True
        self._tools.stop()


def _holding(steps: Iterable[Step]) -> float:
    return sum(step.holding for step in steps)


def _for_blocking(body: LoopBody, hold: Hold) -> Outcome:
    """Return BLOCKED, unless its time was up before anybody could notice that it blocks."""
    was_overdue = hold.noticed - body.started >= body.claim.timeout
    if was_overdue:
        return timed_out(body.claim, body.elapsed_ms)
    return blocked(body.claim, hold.place, hold.seconds, body.elapsed_ms)
