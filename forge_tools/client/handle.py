"""One submitted execution, from anywhere: its result, status, events, and the way to cancel it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Literal, Protocol

from forge_tools.client.following import follow
from forge_tools.errors import ForgeError, ResultTimeoutError
from forge_tools.records import CallEvent, ExecutionRecord, ExecutionStatus, Position, Sight, ToolResult


class Executions(Protocol):
    """What a handle needs of its client."""

    async def wait_for(self, execution_id: str) -> ToolResult: ...
    async def get(self, execution_id: str) -> ExecutionRecord: ...
    async def look(self, position: Position) -> Sight: ...
    async def cancel(self, execution_id: str, reason: str = "") -> Literal["cancelled", "requested", "over"]: ...


class Handle:
    """A claim check for one execution. Losing it loses nothing: `client.attach(id)` makes another.

    `is_repeat` says that its idempotency key had this execution before.
    """

    def __init__(
        self,
        execution_id: str,
        executions: Executions,
        result: ToolResult | None = None,
        *,
        is_repeat: bool = False,
    ) -> None:
        self.id = execution_id
        self.is_repeat = is_repeat
        self._executions = executions
        self._result = result

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    def on(self, executions: Executions) -> "Handle":
        """The same execution seen through another client."""
        return (
            self
            if executions is self._executions
            else Handle(self.id, executions, self._result, is_repeat=self.is_repeat)
        )

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

    def events(self, after: str | None = None) -> AsyncGenerator[CallEvent, None]:
        """Follow it: where it is, what was done to it, what its tool reports, and last its end with the result.

        Who begins late hears first what was told before, as far as it is kept; who was interrupted goes on behind the
        `cursor` of the last event he had.

        Raises:
            ExecutionNotFoundError: SQL holds no such execution.
            ValueError: `after` is no cursor.
        """
        return follow(self._executions, self.id, after)


async def handle_or_error(submitting: Awaitable[Handle]) -> Handle | ForgeError:
    """What one call of many came to: its error harms no other."""
    try:
        return await submitting
    except ForgeError as error:
        return error
