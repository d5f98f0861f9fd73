"""The process lane, parent's half: one execution per child, over a socket pair; what does not stop is killed."""

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from forge_tools.errors import ErrorCode
from forge_tools.model.execution import Claim, ExecutionStatus, Outcome
from forge_tools.model.scope import Told
from forge_tools.sandbox.processes.endings import ProcessHandle, end
from forge_tools.sandbox.processes.environment import attempt_mark
from forge_tools.sandbox.processes.output import scrubbed_text
from forge_tools.sandbox.walls.cgroups import Cgroup
from forge_tools.secrets.scrubber import Scrubber
from forge_tools.time_limits import TimeLimits
from workers.capture import ChildOutput
from workers.lanes import frames
from workers.lanes.base import Body, Guard, Host, Verdict, context_of, scope_of, swept
from workers.lanes.frames import EngineEnd, fields_of, most_from_child
from workers.lanes.process import Assignment, Limit, PoolProcess, heavy, until_silent
from workers.lanes.walls import Walls
from workers.outcomes import cancelled, handed_back, lost, out_of_memory, timed_out, unwalled

STOPPED = (ExecutionStatus.TIMED_OUT, ExecutionStatus.CANCELLED)
IDLE_SHARE = 2
"""An idle child that still holds more than this part of a call's memory limit is replaced."""

POLL_SECONDS = 1.0
LATE_SECONDS = 1.0
"""A check later than this shows that this process itself was kept from running: no child is blamed for that time."""

STILL_SECONDS = 2.0
"""How long a fork waits for the engine's step under way, and then the engine for the fork."""

logger = logging.getLogger(__name__)

MOST_ASKED = 32
"""Requests of one child under way: more would delay the engine's own statements."""


class ChildrenLane:
    """Hands claims to pool processes and watches them. Children hold no database URL: they see one call at a time.

    However a body is stopped, what it started is ended before its outcome is reported.
    """

    def __init__(
        self, *, hostname: str, time_limits: TimeLimits, max_output_bytes: int, walls: Walls, memory_limit: int = 0
    ) -> None:
        self._hostname = hostname
        self._time_limits, self._grace = time_limits, time_limits.grace
        self._memory_limit = memory_limit
        self._most_bytes = most_from_child(max_output_bytes)
        self._children: dict[int, PoolProcess] = {}
        self._steps, self._endings = set[asyncio.Task[Any]](), set[asyncio.Task[Any]]()
        self._checking: asyncio.Task[None] | None = None
        self._walls = walls
        self._assignment = Assignment(walls.profile)
        self._places = 0
        """How many children there are when all of them answer."""
        self._is_stopping = self._is_stopped = False

    async def start(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._checking = asyncio.create_task(self._check_for_ever())

    def adopt(self, process: Any, end: socket.socket, limit: Limit, output: ChildOutput, group: Cgroup) -> None:
        """Take a process that the pool has just forked, and our end of its socket pair; called on the pool's thread.

        `limit` sets Celery's time limits on its bodies; `output` has its last words; `group` has all that it started.
        """
        handle = ProcessHandle(process.pid)  # here, where nobody can have reaped it yet
        line = EngineEnd(lambda frame: self._hear(child, frame), lambda: self._lose(child), self._most_bytes)
        child = PoolProcess(line, handle, process, limit, output, group)
        with suppress(RuntimeError):  # the engine has ended; the child ends when it sees that its line has
            self._loop.call_soon_threadsafe(self._adopt, child, end)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Keep the engine's loop between two of its steps, unless one takes too long; used on the pool's thread."""
        stands, goes_on = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            goes_on.wait(STILL_SECONDS)

        with suppress(RuntimeError):  # the engine has ended
            self._loop.call_soon_threadsafe(stand)
            stands.wait(STILL_SECONDS)
        try:
            yield
        finally:
            goes_on.set()

    def answering(self) -> int:
        """How many children answer."""
        return sum(child.is_answering for child in self._children.values())

    def free_slots(self) -> int:
        return len(self._idle()) - self._assignment.unserved(self._busy())

    def _idle(self) -> list[PoolProcess]:
        # A copy, since the thread that receives messages asks for slots while children come and go.
        return [] if self._is_stopping else [child for child in list(self._children.values()) if child.is_idle]

    def _busy(self) -> list[PoolProcess]:
        return [child for child in list(self._children.values()) if child.body is not None and not child.is_doomed]

    def _hand_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._host.finished(handed_back(claim))

    def run(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            idle = self._idle()
            if self._is_stopping or not (idle or self._coming()):
                self._host.finished(handed_back(claim))
            elif (child := self._assignment.child_for(claim, idle)) is not None:
                self._start_body(child, claim)
        self._make_room()

    def _coming(self) -> int:
        return self._places - self.answering()

    def _make_room(self) -> None:
        for child in self._assignment.to_replace(self._idle(), self._busy(), coming=self._coming()):
            self._retire(child, "An idle process makes room for one of other walls", logging.DEBUG)

    def cancel(self, execution_id: str, attempt: int) -> None:
        asked = execution_id, attempt
        for claim in self._assignment.withdraw(lambda one: (one.claim.id, one.claim.attempt) == asked):
            self._host.finished(cancelled(claim, 0.0))
        for child in self._children.values():
            body = child.body
            if body is not None and body.key == asked:
                if not body.is_cancelled:
                    body.is_cancelled = True
                    child.line.send({"cancel": execution_id})
                    # Nobody stops this one: `_force` leaves a body alone that is no longer there.
                    Guard(self._grace, partial(self._force, child, body, cancelled), patience=self._grace)
                return

    def ban(self, tools: Iterable[str]) -> None:
        """Do nothing: a body that blocks harms nobody here."""

    def running(self) -> list[Claim]:
        bodies = [child.body.claim for child in self._children.values() if child.body is not None]
        return bodies + self._assignment.waiting

    async def stop(self) -> list[Claim]:
        self._is_stopping = True
        if self._checking is not None:
            self._checking.cancel()
        self._hand_back(self._assignment.withdraw(lambda _: True))
        await asyncio.gather(*(self._stop_body(child) for child in list(self._children.values())))
        if self._endings:
            await asyncio.wait(self._endings, timeout=self._grace)
        self._is_stopped = True
        left = self.running()
        for child in self._children.values():
            child.line.close()
        if self._steps:
            await asyncio.wait(self._steps, timeout=self._grace)
        await until_silent(self._children.values(), self._grace)
        for child in self._children.values():
            child.output.close()
        await asyncio.to_thread(self._walls.close)
        return left

    # Frames from the children.

    def _adopt(self, child: PoolProcess, end: socket.socket) -> None:
        self._children[child.pid] = child
        self._do(self._connect(child, end), self._steps)

    async def _connect(self, child: PoolProcess, end: socket.socket) -> None:
        try:
            await self._loop.create_connection(lambda: child.line, sock=end)
        except OSError as error:  # out of handles, for example
            logger.error("A child cannot be reached", extra={"pid": child.pid, "error": str(error)})
            end.close()
            self._lose(child)
        if self._is_stopped:
            child.line.close()

    def _lose(self, child: PoolProcess) -> None:
        child.is_doomed = True
        child.is_silent.set()
        body = child.body
        if body is None and not self._is_stopping:
            child.handle.send(signal.SIGKILL)  # it serves nobody any more, should it still live
        elif body is not None and not (body.is_ending or self._is_stopping):
            body.is_ending = True
            self._do(self._settle_death(child, body), self._endings)
        self._forget(child)
        self._serve()

    def _hear(self, child: PoolProcess, frame: frames.FromChild) -> None:
        match frame:
            case frames.Answering():
                child.awaited = None
                if not child.is_ready:
                    child.is_ready = True
                    self._places = max(self._places, self.answering())
                    self._serve()
            case frames.OfBody() if child.body is not None and (frame.id, frame.attempt) == child.body.key:
                self._hear_of_body(child, child.body, frame)  # any other was given up

    def _hear_of_body(self, child: PoolProcess, body: Body, frame: frames.OfBody) -> None:
        match frame:
            case frames.Started():
                child.has_started = True
            case frames.Asked():
                body.requests.add(task := self._do(self._answer_child(child, body, frame), self._steps))
                task.add_done_callback(body.requests.discard)
            case frames.Reported():
                body.reports = body.reports or self._host.begin_reports(body.claim)
                for told in frame.told:
                    body.reports.pass_on(Told(*told))
            # A body that is being ended while the lane stops returned just before it was killed.
            case frames.Ended() if not body.is_ending or self._is_stopping:
                facts = frame.model_dump(exclude={"kind", "is_tainted", "unfit"})
                outcome = Outcome(token=body.claim.token, **facts)
                if self._is_stopping or not (frame.is_tainted or outcome.status in STOPPED):
                    if frame.unfit:
                        self._retire(child, "A process is unfit; it is replaced", why=frame.unfit)
                    self._end(child, body, outcome)
                else:
                    is_doomed = bool(frame.is_tainted or frame.unfit)
                    self._end_with_leftovers(child, body, outcome, is_doomed=is_doomed)

    async def _answer_child(self, child: PoolProcess, body: Body, asked: frames.Asked) -> None:
        """Answer a body's request: its claim, not the child, says whose call it is."""
        answer: dict[str, Any] = {"error": "The call has ended.", "code": ErrorCode.TOOL_ERROR}
        child.asked += 1
        try:
            if child.asked > MOST_ASKED:
                answer["error"] = f"More than {MOST_ASKED} requests at once. Wait for the answers to some."
            elif not body.is_over:
                answer = await self._host.answer(asked.artifact, context_of(body.claim, scope_of(body.claim)))
        finally:
            child.asked -= 1
            child.line.send({"answer": asked.number, "artifact": answer})

    def _serve(self) -> None:
        """Give idle children to the calls that wait for one, and then to those that are still to be claimed."""
        if self._is_stopping:
            return
        while (found := self._assignment.next(self._idle())) is not None:
            self._start_body(*found)
        self._make_room()
        if self.free_slots() > 0:
            self._host.slot_opened()

    def _start_body(self, child: PoolProcess, claim: Claim) -> None:
        # The child's code is not trusted, and needs none of these.
        frame: dict[str, Any] = {"run": fields_of(claim, "token", "reply_to", "encrypted", "reply_key")}
        frame["tier"] = self._walls.worth_telling(claim, child.profile)
        if child.profile is not None and not child.is_walled:
            try:
                frame["walls"], child.is_walled = self._walls.around(child.pid, child.profile), True
            except OSError as error:
                self._host.finished(unwalled(claim, error))
                return
        body = Body(claim)
        child.body, child.has_started = body, False
        child.line.files.clear()  # no request of this body is to get what an earlier one sent
        force = partial(self._force, child, body, timed_out)
        body.guard = Guard(self._time_limits.force(claim.timeout), force, patience=self._grace)
        body.limit = child.limit(self._time_limits.limits(claim.timeout))
        child.line.send(frame)

    # Ending bodies.

    def _force(self, child: PoolProcess, body: Body, verdict: Verdict) -> None:
        if body.is_ending or child.body is not body or self._is_stopping:
            return
        logger.warning("Tool did not stop; its processes are killed", extra={"pid": child.pid, **body.claim.facts()})
        self._end_with_leftovers(child, body, verdict(body.claim, body.elapsed_ms), is_doomed=True)

    def _end_with_leftovers(self, child: PoolProcess, body: Body, outcome: Outcome, *, is_doomed: bool) -> None:
        body.is_ending = True
        child.is_doomed |= is_doomed  # it takes no more claims while it dies
        self._do(self._sweep_and_end(child, body, outcome), self._endings)

    async def _sweep_and_end(self, child: PoolProcess, body: Body, outcome: Outcome) -> None:
        await self._sweep(child, body)
        if child.is_doomed:  # what it reported before it was ended counts
            await until_silent([child], self._grace)
            self._hear_last_words(child, body)
        self._end(child, body, outcome)

    def _hear_last_words(self, child: PoolProcess, body: Body) -> None:
        """Report its last output, which may say why it ended and which it had no time to send."""
        for stream, data in child.output.last_words():
            if data:
                body.reports = body.reports or self._host.begin_reports(body.claim)
                text = data.decode(errors="backslashreplace")
                body.reports.emit(scrubbed_text(Scrubber(body.claim.secrets), text), stream)

    async def _sweep(self, child: PoolProcess, body: Body) -> None:
        """End what the body started; with a doomed child, the child and its whole tree."""
        mark = attempt_mark(body.claim.id, body.claim.attempt)

        async def sweep() -> None:
            with closing(child.handle.again()) as hold:
                root, spare = (hold, ()) if child.is_doomed else (None, (child.pid,))
                await asyncio.to_thread(end, mark, root=root, within=hold, spare=spare)

        await swept(body.claim, sweep)
        if child.is_doomed:  # also what cleared its environment and lost its parents
            await asyncio.to_thread(child.group.end)

    def _end(self, child: PoolProcess, body: Body, outcome: Outcome) -> None:
        if body.is_over or self._is_stopped:
            return
        body.is_over = body.is_ending = True
        for limit in (body.guard, body.limit):
            if limit is not None:
                limit.stop()
        for task in body.requests:  # what it has not kept by now, it has not kept
            task.cancel()
        child.output.follow()  # not only at its death: pipes that nobody receives would fill the socket
        child.body, child.idle_since = None, time.monotonic()
        self._host.finished(outcome)
        self._forget(child)
        self._serve()

    async def _settle_death(self, child: PoolProcess, body: Body) -> None:
        """Settle a body whose child died; a body that the child never reported as started has not run."""
        what = f"Process {child.pid} on {self._hostname} {await child.end_in_words()}"
        outcome = lost(body.claim, what, body.elapsed_ms) if child.has_started else handed_back(body.claim)
        if child.has_started and child.group.ran_out_of_memory():
            outcome = self._too_big(body.claim, body.elapsed_ms)
        await self._sweep_and_end(child, body, outcome)

    async def _stop_body(self, child: PoolProcess) -> None:
        """End a body for good. What its child reported before counts; a body never reported as started has not run."""
        body = child.body
        if body is None or body.is_ending:
            return
        body.is_ending = child.is_doomed = True
        await self._sweep(child, body)
        await until_silent([child], self._grace)
        if child.is_silent.is_set() and not child.has_started:
            self._end(child, body, handed_back(body.claim))

    # Looking after idle children.

    async def _check_for_ever(self) -> None:
        checked_at = time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            elapsed, checked_at = time.monotonic() - checked_at, time.monotonic()
            for child in list(self._children.values()):
                if child.is_mute(elapsed if elapsed < POLL_SECONDS + LATE_SECONDS else 0.0):
                    self._retire(child, "A child does not answer; it is replaced")
            self._hand_back(self._assignment.given_up(is_full=not self._idle()))
            self._serve()
            if self._memory_limit:
                with suppress(OSError):  # a process ended during the check; the next one follows
                    await self._end_heavy()

    async def _end_heavy(self) -> None:
        watched = {pid: (child, child.body) for pid, child in self._children.items() if child.body or child.is_idle}
        limits = {pid: self._memory_limit // (1 if body else IDLE_SHARE) for pid, (_, body) in watched.items()}
        for pid in await asyncio.to_thread(heavy, limits):
            child, body = watched[pid]
            if body:
                self._force(child, body, self._too_big)
            elif child.is_idle:
                self._retire(child, "An idle process uses too much memory; it is replaced")

    def _too_big(self, claim: Claim, after_ms: float) -> Outcome:
        return out_of_memory(claim, self._memory_limit, after_ms)

    def _retire(self, child: PoolProcess, message: str, level: int = logging.WARNING, **why: str) -> None:
        """End an idle child; what a body left on purpose lives on."""
        logger.log(level, message, extra={"pid": child.pid, **why})
        child.is_doomed = True
        child.handle.send(signal.SIGKILL)

    def _forget(self, child: PoolProcess) -> None:
        """Release a child that is gone and has nothing left to report."""
        if child.is_silent.is_set() and child.body is None:
            child.handle.close()
            self._do(asyncio.to_thread(child.group.end, kills=False), self._steps)
            if child.profile is not None:
                self._do(asyncio.to_thread(self._walls.remove, child.pid), self._steps)
            child.output.close()
            if self._children.get(child.pid) is child:  # a successor may have got its pid
                del self._children[child.pid]

    def _do(self, work: Coroutine[Any, Any, None], among: "set[asyncio.Task[Any]]") -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)
        return task
