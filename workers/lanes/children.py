"""The process lane, parent's half: one execution a child, over a private socket; what will not stop is killed."""

import asyncio
import logging
import os
import signal
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from forge_tools.errors import ForgeError
from forge_tools.records import Claim, ExecutionStatus, Outcome, Ring
from workers.lanes.base import Body, Finished, Verdict
from workers.lanes.frames import read_frame, write_frame
from workers.lanes.guard import Guard
from workers.outcomes import cancelled, handed_back, lost, timed_out

MOST_DEFERRED = 1000
"""Rings kept for when a child is free; what does not fit is pulled from SQL in its turn."""

logger = logging.getLogger(__name__)

ClaimRings = Callable[[Sequence[Ring]], Awaitable[list[Claim]]]


@dataclass(slots=True)
class _Child:
    """One pool process. `is_reserved` while a claim for it is under way; `is_ringing` while its Celery task waits here."""

    pid: int
    writer: asyncio.StreamWriter
    body: Body | None = None
    is_reserved: bool = False
    is_ringing: bool = False
    has_started: bool = False

    @property
    def is_idle(self) -> bool:
        return self.body is None and not self.is_reserved


class ChildrenLane:
    """Hands claims to pool processes and watches them. Children hold no database URL: they see one call at a time."""

    def __init__(self, claim: ClaimRings, finished: Finished, *, hostname: str, kill_grace: float) -> None:
        self._claim = claim
        self._finished = finished
        self._hostname = hostname
        self._kill_grace = kill_grace
        self._children: dict[int, _Child] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="forge-")
        self.address = Path(self._folder.name) / "engine.sock"
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._steps: set[asyncio.Task[None]] = set()
        self._deferred: deque[Ring] = deque(maxlen=MOST_DEFERRED)
        self._is_stopped = False

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.address, limit=2**20)

    def free_slots(self) -> int:
        return sum(child.is_idle for child in self._children.values())

    def run(self, claims: Sequence[Claim]) -> None:
        idle = [child for child in self._children.values() if child.is_idle]
        for claim, child in zip(claims, idle, strict=False):
            self._start_body(child, claim)
        for claim in claims[len(idle) :]:
            self._finished(handed_back(claim))

    def cancel(self, execution_id: str, attempt: int) -> None:
        for child in self._children.values():
            body = child.body
            if body is not None and (body.claim.id, body.claim.attempt) == (execution_id, attempt):
                if not body.is_cancelled:
                    body.is_cancelled = True
                    write_frame(child.writer, {"cancel": execution_id})
                    Guard(self._kill_grace, partial(self._kill, child, body, cancelled), patience=self._kill_grace)
                return

    def running(self) -> list[Claim]:
        return [child.body.claim for child in self._children.values() if child.body is not None]

    async def stop(self) -> list[Claim]:
        self._is_stopped = True
        left = self.running()
        for child in self._children.values():
            if child.body is not None:
                _kill_group(child.pid)
        for writer in self._connections:
            writer.close()
        if self._server is not None:
            self._server.close()
        if self._steps:
            await asyncio.wait(self._steps, timeout=self._kill_grace)
        self._folder.cleanup()
        return left

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._track(asyncio.current_task())
        self._connections.add(writer)
        try:
            if (hello := await read_frame(reader)) is not None:
                await self._serve_child(_Child(int(hello["hello"]), writer), reader)
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _serve_child(self, child: _Child, reader: asyncio.StreamReader) -> None:
        self._children[child.pid] = child
        try:
            while (frame := await read_frame(reader)) is not None:
                self._hear(child, frame)
        finally:
            if self._children.get(child.pid) is child:
                del self._children[child.pid]
            self._bury(child)

    def _hear(self, child: _Child, frame: dict[str, Any]) -> None:
        if "ring" in frame:
            child.is_ringing = True
            self._track(asyncio.create_task(self._answer_ring(child, [Ring(*ring) for ring in frame["ring"]])))
        elif child.body is None or frame.get("id") != child.body.claim.id:
            return  # of a body that was given up
        elif "started" in frame:
            child.has_started = True
        else:
            status = ExecutionStatus(frame.pop("status"))
            self._end(child, child.body, Outcome(status=status, token=child.body.claim.token, **frame))

    async def _answer_ring(self, child: _Child, rings: Sequence[Ring]) -> None:
        if not child.is_idle:  # it runs a call that was pulled; Celery's limits for this ring must not meet that body
            self._release(child)
            self._deferred.extend(rings)
            return
        claims: list[Claim] = []
        child.is_reserved = True
        try:
            claims = await self._claim(rings[:1])
        except ForgeError as error:
            logger.warning("A rung call cannot be claimed; it will be pulled", extra={"error": str(error)})
        finally:
            child.is_reserved = False
            self._assign(child, claims)

    def _assign(self, child: _Child, claims: Sequence[Claim]) -> None:
        if claims and self._children.get(child.pid) is child and not self._is_stopped:
            self._start_body(child, claims[0])
            return
        self._release(child)
        for claim in claims:
            self._finished(handed_back(claim))

    def _start_body(self, child: _Child, claim: Claim) -> None:
        body = Body(claim)
        child.body, child.has_started = body, False
        patience = claim.timeout + self._kill_grace
        body.guard = Guard(patience, partial(self._kill, child, body, timed_out), patience=self._kill_grace)
        write_frame(child.writer, {"run": asdict(replace(claim, token="", reply_to=None))})

    def _kill(self, child: _Child, body: Body, verdict: Verdict) -> None:
        if body.is_over or child.body is not body or self._is_stopped:
            return
        logger.warning("Tool did not stop; its process is killed", extra={"pid": child.pid, "tool": body.claim.tool})
        _kill_group(child.pid)
        self._children.pop(child.pid, None)  # it takes no more claims while it dies
        self._end(child, body, verdict(body.claim, body.elapsed_ms))

    def _end(self, child: _Child, body: Body, outcome: Outcome) -> None:
        if body.is_over or self._is_stopped:
            return
        body.is_over = True
        if body.guard is not None:
            body.guard.stop()
        child.body = None
        self._finished(outcome)
        self._release(child)
        if self._deferred and self._children.get(child.pid) is child:
            self._track(asyncio.create_task(self._answer_ring(child, [self._deferred.popleft()])))

    def _bury(self, child: _Child) -> None:
        """Settle what a dead child had: a body that it never said it started has not run."""
        body = child.body
        if body is None:
            return
        what = f"Process {child.pid} on {self._hostname} ended"
        outcome = lost(body.claim, what, body.elapsed_ms) if child.has_started else handed_back(body.claim)
        self._end(child, body, outcome)

    def _release(self, child: _Child) -> None:
        """Let the Celery task that rang return."""
        if child.is_ringing and not child.writer.is_closing():
            child.is_ringing = False
            write_frame(child.writer, {"rest": True})

    def _track(self, step: "asyncio.Task[None] | None") -> None:
        if step is not None:
            self._steps.add(step)
            step.add_done_callback(self._steps.discard)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
