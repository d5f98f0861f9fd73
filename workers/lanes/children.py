"""The process lane, parent's half: one execution a child, over a private socket; what will not stop is killed."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from forge_tools.errors import ErrorCode, ForgeError
from forge_tools.records import Claim, ExecutionContext, ExecutionStatus, Outcome, Ring
from forge_tools.sandbox.leftovers import Quarry, end
from forge_tools.sandbox.marks import attempt_mark
from forge_tools.sandbox.reports import ReportBuffer
from forge_tools.sandbox.scratch import scratch_folder
from workers.artifacts import from_text, to_text
from workers.lanes.base import Body, Finished, Verdict, context_of
from workers.lanes.exits import exit_of, pool_process, said
from workers.lanes.frames import Line, fields_of
from workers.lanes.guard import Guard
from workers.lanes.memory import heavy
from workers.lanes.messages import Messages
from workers.lanes.telling import pass_on, pass_on_told
from workers.outcomes import cancelled, handed_back, lost, out_of_memory, timed_out
from workers.proofs import Proofs
from workers.reports import BeginReports, unheard

STOPPED = (ExecutionStatus.TIMED_OUT, ExecutionStatus.CANCELLED)
IDLE_SHARE = 2
"""An idle child that still holds more than this part of what a call may have is replaced."""

logger = logging.getLogger(__name__)

MOST_ASKED = 32
"""Requests of one child under way: more would keep the engine's own statements waiting behind them."""

ClaimRings = Callable[[Sequence[Ring]], Awaitable[list[Claim]]]

Opened = Callable[[], Coroutine[Any, Any, None]]
"""Told when a slot is free without a body having ended: who waits for one would not hear of it otherwise."""

Answer = Callable[[dict[str, Any], ExecutionContext, Proofs], Awaitable[dict[str, Any]]]
"""Does what the tools of children ask of artifacts; what a call has not proven yet goes with it."""


@dataclass(slots=True)
class _Child:
    """One pool process. It gets nothing more once it `is_doomed`: it is being killed, with all that it started."""

    pid: int
    line: Line
    quarry: Quarry
    process: Any
    body: Body | None = None
    has_started: bool = False
    is_doomed: bool = False
    asked: int = 0
    telling: Line | None = None
    is_silent: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_idle(self) -> bool:
        return self.body is None and not self.is_doomed


class ChildrenLane:
    """Hands claims to pool processes and watches them. Children hold no database URL: they see one call at a time.

    A message rings for several calls, and each is run by whichever child is idle, not by the one that the message came to.
    However a body is stopped, what it started is ended before its outcome is told.
    """

    def __init__(
        self,
        claim: ClaimRings,
        finished: Finished,
        *,
        hostname: str,
        opened: Opened | None = None,
        answer: Answer | None = None,
        kill_grace: float,
        memory_limit: int = 0,
        look_seconds: float = 1.0,
    ) -> None:
        self._claim = claim
        self._finished = finished
        self._hostname = hostname
        self._opened = opened
        self._answer = answer
        self.begin_reports: BeginReports = unheard
        self._kill_grace = kill_grace
        self._memory_limit = memory_limit
        self._look_seconds = look_seconds
        self._children: dict[int, _Child] = {}
        self._scratch = ExitStack()
        self.address = self._scratch.enter_context(scratch_folder("forge-lanes-")) / "sock"
        self._server: asyncio.Server | None = None
        self._lines: set[Line] = set()
        self._steps: set[asyncio.Task[Any]] = set()
        self._endings: set[asyncio.Task[Any]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._messages = Messages()
        self._claiming = 0
        self._is_stopping = False
        self._is_stopped = False

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, str(self.address))
        if self._memory_limit:
            self._looking = asyncio.create_task(self._look_at_memory())

    def free_slots(self) -> int:
        return sum(child.is_idle for child in self._children.values()) - self._claiming

    def run(self, claims: Sequence[Claim]) -> None:
        idle = [] if self._is_stopping else [child for child in self._children.values() if child.is_idle]
        for claim, child in zip(claims, idle, strict=False):
            self._start_body(child, claim)
        for claim in claims[len(idle) :]:
            self._finished(handed_back(claim))

    def cancel(self, execution_id: str, attempt: int) -> None:
        for child in self._children.values():
            body = child.body
            if body is not None and body.key == (execution_id, attempt):
                if not body.is_cancelled:
                    body.is_cancelled = True
                    child.line.send({"cancel": execution_id})
                    Guard(self._kill_grace, partial(self._force, child, body, cancelled), patience=self._kill_grace)
                return

    def running(self) -> list[Claim]:
        return [child.body.claim for child in self._children.values() if child.body is not None]

    async def stop(self) -> list[Claim]:
        self._is_stopping = True
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(self._stop_body(child) for child in list(self._children.values())))
        if self._endings:
            await asyncio.wait(self._endings, timeout=self._kill_grace)
        self._is_stopped = True
        left = self.running()
        for line in self._lines:
            line.close()
        if self._server is not None:
            self._server.close()
        if self._steps:
            await asyncio.wait(self._steps, timeout=self._kill_grace)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._kill_grace):
                await asyncio.gather(*(child.is_silent.wait() for child in self._children.values()))
        self._scratch.close()
        return left

    # Hearing the children.

    def _accept(self) -> Line:
        line = Line(lambda frame: self._greet(line, frame), lambda: self._lines.discard(line))
        self._lines.add(line)
        return line

    def _greet(self, line: Line, hello: dict[str, Any]) -> None:
        if "reports" in hello:
            self._greet_telling(line, self._children.get(hello["reports"]))
            return
        pid = int(hello["hello"])
        child = _Child(pid, line, Quarry(pid), pool_process(pid))
        self._children[pid] = child
        line.hear, line.ended = partial(self._hear, child), partial(self._lose, child)
        self._serve_rings()
        self._tell_of_slots()

    def _greet_telling(self, line: Line, child: _Child | None) -> None:
        """A second line of a child, for what its bodies report; it waits until we listen."""
        if child is None:
            line.close()
            return
        child.telling = line
        line.hear = partial(self._hear_reports, child)
        line.send({})

    def _lose(self, child: _Child) -> None:
        self._lines.discard(child.line)
        self._doom(child)
        child.is_silent.set()
        self._bury(child)
        self._forget(child)
        self._serve_rings()

    def _doom(self, child: _Child) -> None:
        child.is_doomed = True
        self._messages.forget(child.pid)

    def _hear(self, child: _Child, frame: dict[str, Any]) -> None:
        if "ring" in frame:
            rings = [Ring(*ring) for ring in frame["ring"]]
            self._messages.add(child.pid, rings, partial(child.line.send, {"rest": True}))
            self._serve_rings()
        elif child.body is None or frame.get("id") != child.body.claim.id:
            return  # of a body that was given up
        elif "started" in frame:
            child.has_started = True
        elif "ask" in frame:
            self._do(self._answer_child(child, child.body, frame), self._steps)
        elif not child.body.is_ending or self._is_stopping:  # in the latter case it returned just before it was killed
            self._hear_outcome(child, child.body, frame)

    async def _answer_child(self, child: _Child, body: Body, frame: dict[str, Any]) -> None:
        """A body asks for itself: whose it is says its claim, not the child."""
        answer: dict[str, Any] = {"error": "This worker has no artifacts.", "code": ErrorCode.TOOL_ERROR}
        child.asked += 1
        try:
            if child.asked > MOST_ASKED:
                answer["error"] = f"More than {MOST_ASKED} requests at once. Wait for answers to some."
            elif self._answer is not None and not body.is_over:
                body.proofs = body.proofs or Proofs()
                answer = await self._answer(from_text(frame["artifact"]), context_of(body.claim), body.proofs)
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": f"Malformed request: {error!r}", "code": ErrorCode.VALIDATION_ERROR}
        finally:
            child.asked -= 1
            child.line.send({"answer": frame["ask"], "artifact": to_text(answer)})

    def _hear_reports(self, child: _Child, frame: dict[str, Any]) -> None:
        if child.body is not None:
            pass_on(frame, child.body.key, partial(self._reports_of, child.body))

    def _reports_of(self, body: Body) -> ReportBuffer:
        if body.reports is None:
            body.reports = self.begin_reports(body.claim)
        return body.reports

    def _hear_outcome(self, child: _Child, body: Body, frame: dict[str, Any]) -> None:
        reports = frame.pop("reports", {})
        if child.telling is not None and reports.get("sent"):
            child.telling.hear_now()
        pass_on_told(reports.get("left", ()), partial(self._reports_of, body))
        is_tainted, unfit = frame.pop("is_tainted", False), frame.pop("unfit", None)
        outcome = Outcome(status=ExecutionStatus(frame.pop("status")), token=body.claim.token, **frame)
        if self._is_stopping or not (is_tainted or outcome.status in STOPPED):
            if unfit:
                self._retire(child, "A process is unfit; it is replaced", why=unfit)
            self._end(child, body, outcome)
        else:
            self._end_with_leftovers(child, body, outcome, is_doomed=bool(is_tainted or unfit))

    # Ringing: one claim for as many calls as children are idle.

    def _serve_rings(self) -> None:
        if self._is_stopping:
            return
        free = self.free_slots()
        if free > 0 and self._messages.waiting:
            rings = self._messages.take(free)
            self._claiming += len(rings)
            self._do(self._claim_and_run(rings), self._steps)
        self._let_rest()

    def _let_rest(self) -> None:
        """Be open to as many messages as children are idle; in the midst of a burst to one, so that it comes in time."""
        living = [child.pid for child in self._children.values() if not child.is_doomed]
        open_ = sum(not self._messages.holds(pid) for pid in living)
        is_burst = self._messages.waiting > len(living)
        self._messages.let_rest(max(self.free_slots(), is_burst) - open_)

    async def _claim_and_run(self, rings: Sequence[Ring]) -> None:
        claims: list[Claim] = []
        try:
            claims = await self._claim(rings)
        except ForgeError as error:
            logger.warning("Rung calls cannot be claimed; they will be pulled", extra={"error": str(error)})
        finally:
            self._claiming -= len(rings)
            self.run(claims)
            self._serve_rings()
            if len(claims) < len(rings):
                self._tell_of_slots()

    def _tell_of_slots(self) -> None:
        if self._opened is not None and self.free_slots() > 0:
            self._do(self._opened(), self._steps)

    def _start_body(self, child: _Child, claim: Claim) -> None:
        body = Body(claim)
        child.body, child.has_started = body, False
        patience = claim.timeout + self._kill_grace
        body.guard = Guard(patience, partial(self._force, child, body, timed_out), patience=self._kill_grace)
        child.line.send({"run": fields_of(claim, "token", "reply_to", "sealed")})

    # Ending bodies.

    def _force(self, child: _Child, body: Body, verdict: Verdict) -> None:
        if body.is_ending or child.body is not body or self._is_stopping:
            return
        logger.warning("Tool did not stop; its processes are killed", extra={"pid": child.pid, "tool": body.claim.tool})
        self._end_with_leftovers(child, body, verdict(body.claim, body.elapsed_ms), is_doomed=True)

    def _end_with_leftovers(self, child: _Child, body: Body, outcome: Outcome, *, is_doomed: bool) -> None:
        body.is_ending = True
        if is_doomed:  # it takes no more claims while it dies
            self._doom(child)
        self._do(self._sweep_and_end(child, body, outcome), self._endings)

    async def _sweep_and_end(self, child: _Child, body: Body, outcome: Outcome) -> None:
        await self._sweep(child, body)
        if child.telling is not None:  # what it told before it was ended
            child.telling.hear_now()
        self._end(child, body, outcome)

    async def _sweep(self, child: _Child, body: Body) -> None:
        """End what the body started; with a doomed child, the child and its whole tree."""
        mark = attempt_mark(body.claim.id, body.claim.attempt)
        try:
            with closing(child.quarry.again()) as hold:
                root, spare = (hold, ()) if child.is_doomed else (None, (child.pid,))
                await asyncio.to_thread(end, mark, root=root, within=hold, spare=spare)
        except OSError as error:  # out of handles, for one
            logger.error("What a tool left running lives on", extra={"tool": body.claim.tool, "error": str(error)})

    def _end(self, child: _Child, body: Body, outcome: Outcome) -> None:
        if body.is_over or self._is_stopped:
            return
        body.is_over = body.is_ending = True
        if body.guard is not None:
            body.guard.stop()
        if body.proofs is not None:
            body.proofs.end()
        child.body = None
        self._finished(outcome)
        self._forget(child)
        self._serve_rings()

    def _bury(self, child: _Child) -> None:
        body = child.body
        if body is not None and not body.is_ending and not self._is_stopping:
            body.is_ending = True
            self._do(self._settle_death(child, body), self._endings)

    async def _settle_death(self, child: _Child, body: Body) -> None:
        """A body that its child never said it started has not run."""
        what = f"Process {child.pid} on {self._hostname} {said(await exit_of(child.pid, child.process))}"
        outcome = lost(body.claim, what, body.elapsed_ms) if child.has_started else handed_back(body.claim)
        await self._sweep_and_end(child, body, outcome)

    async def _stop_body(self, child: _Child) -> None:
        """End a body for good. What its child had said before counts; a body that it never said it started has not run."""
        body = child.body
        if body is None or body.is_ending:
            return
        body.is_ending = child.is_doomed = True
        await self._sweep(child, body)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._kill_grace):
                await child.is_silent.wait()
        if child.is_silent.is_set() and not child.has_started:
            self._end(child, body, handed_back(body.claim))

    # Memory.

    async def _look_at_memory(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            with suppress(OSError):  # a process ended while it was looked at; there is another look
                await self._end_heavy()

    async def _end_heavy(self) -> None:
        bodies = {child.pid: (child, child.body) for child in self._children.values() if child.body is not None}
        idle = {child.pid: child for child in self._children.values() if child.is_idle}
        for pid in await asyncio.to_thread(heavy, list(bodies), self._memory_limit):
            self._force(*bodies[pid], self._too_big)
        for pid in await asyncio.to_thread(heavy, list(idle), self._memory_limit // IDLE_SHARE):
            if idle[pid].is_idle:
                self._retire(idle[pid], "An idle process holds much memory; it is replaced")

    def _too_big(self, claim: Claim, after_ms: float) -> Outcome:
        return out_of_memory(claim, self._memory_limit, after_ms)

    def _retire(self, child: _Child, message: str, **why: str) -> None:
        """What a body left on purpose lives on."""
        logger.warning(message, extra={"pid": child.pid, **why})
        self._doom(child)
        child.quarry.send(signal.SIGKILL)

    def _forget(self, child: _Child) -> None:
        """Let go of a child that is gone and of which nothing is left to tell."""
        if child.is_silent.is_set() and child.body is None:
            child.quarry.close()
            if self._children.get(child.pid) is child:
                del self._children[child.pid]

    def _do(self, work: Coroutine[Any, Any, None], among: "set[asyncio.Task[Any]]") -> None:
        task = asyncio.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)
