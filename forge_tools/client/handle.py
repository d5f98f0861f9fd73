"""One submitted execution, from anywhere: its result, status, events, and the way to cancel it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal, Protocol

from forge_tools.errors import ResultTimeoutError
from forge_tools.records import Event, ExecutionRecord, ExecutionStatus, ToolResult

EVENT_POLL = 0.25


class Executions(Protocol):
    """What a handle needs of its client."""

    async def wait_for(self, execution_id: str) -> ToolResult: ...
    async def get(self, execution_id: str) -> ExecutionRecord: ...
    async def events_of(self, execution_id: str) -> list[Event]: ...
    async def cancel(self, execution_id: str, reason: str = "") -> Literal["cancelled", "requested", "over"]: ...


class Handle:
    """A claim check for one execution. Losing it loses nothing: `client.attach(id)` makes another."""

    def __init__(self, execution_id: str, executions: Executions, result: ToolResult | None = None) -> None:
        self.id = execution_id
        self._executions = executions
        self._result = result

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    def on(self, executions: Executions) -> "Handle":
        """The same execution seen through another client."""
        return self if executions is self._executions else Handle(self.id, executions, self._result)

    async def result(self, timeout: float | None = None) -> ToolResult:
        """Wait for the result, at most `timeout` seconds.

        Raises:
            ResultTimeoutError: it is not over yet; the execution goes on.
            ExecutionNotFoundError: SQL holds no such execution.
        """
        if self._result is None:
            try:
                async with asyncio.timeout(timeout) as limit:
                    self._result = await self._executions.wait_for(self.id)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise ResultTimeoutError(
                    f"Execution {self.id} is not over after {timeout:g}s. It goes on; wait again, or cancel it."
                ) from error
        return self._result

    async def record(self) -> ExecutionRecord:
        """Read the whole row: parameters, timing, status, outcome."""
        return await self._executions.get(self.id)

    async def status(self) -> ExecutionStatus:
        return (await self.record()).status

    async def cancel(self, reason: str = "") -> Literal["cancelled", "requested", "over"]:
        """Cancel it: `cancelled` at once while queued, `requested` while running, `over` when there is nothing to do."""
        return await self._executions.cancel(self.id, reason)

    async def events(self) -> AsyncIterator[Event | ExecutionStatus]:
        """Yield each event and each change of status as they happen, until the execution is over."""
        seen, last = 0, None
        while True:
            record = await self._executions.get(self.id)
            for event in (await self._executions.events_of(self.id))[seen:]:
                seen += 1
                yield event
            if record.status != last:
                last = record.status
                yield last
            if record.is_over:
                return
            await asyncio.sleep(EVENT_POLL)
