"""One submitted execution, from any process: its result, status, events, and how to cancel it."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Literal, Protocol

from forge_tools.errors import ExecutionNotFoundError, ForgeError, InvalidCallError, ResultTimeoutError
from forge_tools.model.calls import ToolResult
from forge_tools.model.diagnosis import Diagnosis
from forge_tools.model.execution import TERMINAL, ExecutionStatus
from forge_tools.model.history import CallEvent, Ended, EventBatch, ExecutionRecord, Note, Position, StateChange
from forge_tools.model.scope import Output, Progress, Report
from forge_tools.schema import shown

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 0.5
"""Seconds between two reads: while there is news, and when there has been none for a while."""

AWAY_SECONDS = 1.0
"""Seconds until an unreachable database is tried again."""

logger = logging.getLogger(__name__)


class Executions(Protocol):
    """What a handle needs from its client."""

    async def wait(self, execution_id: str, *, is_known: bool = False) -> ToolResult: ...
    async def poll(self, position: Position) -> EventBatch: ...
    async def record(self, execution_id: str) -> ExecutionRecord: ...
    async def cancel(self, execution_id: str, reason: str = "") -> Literal["cancelled", "requested", "over"]: ...


class Handle:
    """A claim check for one execution. Losing it loses nothing: `client.calls.attach(id)` makes another.

    `is_repeat` says that its idempotency key already stood for this execution.
    """

    def __init__(
        self,
        execution_id: str,
        executions: Executions,
        result: ToolResult | None = None,
        *,
        is_known: bool = False,
        is_repeat: bool = False,
    ) -> None:
        self.id = execution_id
        self.is_repeat = is_repeat
        self._is_known = is_known
        self._executions = executions
        self._result = result

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    def on(self, executions: Executions) -> "Handle":
        """Return a handle for the same execution through another client."""
        return (
            self
            if executions is self._executions
            else Handle(self.id, executions, self._result, is_known=self._is_known, is_repeat=self.is_repeat)
        )

    async def result(self, timeout: float | None = None) -> ToolResult:
        """Wait for the result, at most `timeout` seconds.

        Raises:
            InvalidCallError: `timeout` is not a number.
            ResultTimeoutError: it is not over yet; the execution goes on.
            ExecutionNotFoundError: SQL holds no such execution.
        """
        if timeout is not None and not (isinstance(timeout, int | float) and timeout <= math.inf):  # NaN is not
            raise InvalidCallError(f"timeout is {shown(repr(timeout))}; it must be a number of seconds, or None")
        if self._result is None:
            try:
                async with asyncio.timeout(timeout) as limit:
                    self._result = await self._executions.wait(self.id, is_known=self._is_known)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise ResultTimeoutError(
                    f"Execution {self.id} has not ended after {timeout:g}s. It keeps running; wait again, or cancel it."
                ) from error
        return self._result

    async def record(self) -> ExecutionRecord:
        """Read the whole row: parameters, timing, status, outcome."""
        return await self._executions.record(self.id)

    async def status(self) -> ExecutionStatus:
        return (await self.record()).status

    async def diagnosis(self) -> Diagnosis | None:
        """Return why its last attempt failed; None while it is not over, or if nothing was raised."""
        return Diagnosis.read((await self.record()).diagnosis)

    async def cancel(self, reason: str = "") -> Literal["cancelled", "requested", "over"]:
        """Cancel it: `cancelled` at once while queued, `requested` while running, `over` when there is nothing to do."""
        return await self._executions.cancel(self.id, reason)

    async def events(self, after: str | None = None) -> AsyncGenerator[CallEvent, None]:
        """Follow it: its state, what was done to it, what its tool reports, and finally its end with the result.

        A late follower first receives earlier events, as far as they are kept; to resume, pass the `cursor` of the last
        event received.

        Raises:
            ExecutionNotFoundError: SQL holds no such execution.
            ValueError: `after` is not a cursor.
        """
        executions, position = self._executions, Position.of(self.id, after)
        waiting = asyncio.ensure_future(executions.wait(self.id))  # its notification ends a pause between two reads
        state: StateChange | None = None
        pause = FIRST_PAUSE
        try:
            while True:
                batch = await _poll(executions, position)
                for event in _in_order(batch, state, position):
                    yield event
                is_news = bool(batch.heard) or batch.state != state
                position, state = batch.position, batch.state
                if batch.has_more:
                    continue
                if state is not None and state.status in TERMINAL:
                    break
                pause = FIRST_PAUSE if is_news else min(pause * 1.5, LONGEST_PAUSE)
                await asyncio.wait([waiting], timeout=pause)
                if waiting.done():
                    waiting.result()  # raises if the execution is missing, or the client was closed
                    if state is None:
                        raise ExecutionNotFoundError(f"Execution {self.id} no longer exists.")
            result = await (waiting if waiting.done() else executions.wait(self.id))
            yield Ended(status=state.status, result=result, attempt=state.attempt, cursor=position.cursor)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _poll(executions: Executions, position: Position) -> EventBatch:
    """Read, and wait for an unreachable database."""
    while True:
        try:
            return await executions.poll(position)
        except ForgeError as error:
            if not error.retryable:
                raise
            logger.warning("An execution cannot be followed at the moment", extra={"error": str(error)})
            await asyncio.sleep(AWAY_SECONDS)


def _in_order(batch: EventBatch, before: StateChange | None, position: Position) -> list[CallEvent]:
    """Put a change of state after the reports that came before it."""
    state = batch.state
    if state is None or state == before or state.status in TERMINAL:
        return list(batch.heard)
    has_ended = state.status != ExecutionStatus.RUNNING
    count = sum(isinstance(one, Note) or has_ended or one.attempt < state.attempt for one in batch.heard)
    cursor = batch.heard[count - 1].cursor if count else position.cursor
    return [*batch.heard[:count], replace(state, cursor=cursor), *batch.heard[count:]]


async def listen(handle: Handle, on_report: Callable[[Report], None]) -> None:
    """Pass on every report of a call until it is over. Errors that `on_report` raises are ignored.

    An execution that cannot be followed may still have a result: `Handle.result` says so.
    """
    with suppress(ForgeError):
        async with aclosing(handle.events()) as events:
            async for event in events:
                if isinstance(event, Progress | Output):
                    with suppress(Exception):
                        on_report(event)
