"""Follows one execution: where it is, what it reports and its end, each told once and in order."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Protocol

from forge_tools.errors import ExecutionNotFoundError, ForgeError
from forge_tools.records import (
    TERMINAL,
    CallEvent,
    Ended,
    ExecutionStatus,
    Note,
    Position,
    Sight,
    StateChange,
    ToolResult,
)

FIRST_LOOK = 0.1
SLOWEST_LOOK = 0.5
"""Seconds between two looks: while there is news, and when there has been none for a while."""

AWAY_SECONDS = 1.0
"""Until a database that is away is asked again."""

logger = logging.getLogger(__name__)


class Followed(Protocol):
    """What following an execution needs of a client."""

    async def wait_for(self, execution_id: str) -> ToolResult: ...
    async def look(self, position: Position) -> Sight: ...


async def follow(executions: Followed, execution_id: str, after: str | None) -> AsyncGenerator[CallEvent, None]:
    """Yield what there is behind `after` and then what comes, until the execution is over.

    SQL is looked at a few times a second; the bell that wakes for the end wakes this, too.

    Raises:
        ExecutionNotFoundError: SQL holds no such execution.
        ValueError: `after` is no cursor.
    """
    position = Position.of(execution_id, after)
    waiting = asyncio.ensure_future(executions.wait_for(execution_id))
    state: StateChange | None = None
    pause = FIRST_LOOK
    try:
        while True:
            sight = await _look(executions, position)
            for event in _in_order(sight, state, position):
                yield event
            is_news = bool(sight.heard) or sight.state != state
            position, state = sight.position, sight.state
            if sight.has_more:
                continue
            if state is not None and state.status in TERMINAL:
                break
            pause = FIRST_LOOK if is_news else min(pause * 1.5, SLOWEST_LOOK)
            await asyncio.wait([waiting], timeout=pause)
            _check(waiting, execution_id, state)
        result = await (waiting if waiting.done() else executions.wait_for(execution_id))
        yield Ended(status=state.status, result=result, attempt=state.attempt, cursor=position.cursor)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _look(executions: Followed, position: Position) -> Sight:
    """Wait for a database that is away."""
    while True:
        try:
            return await executions.look(position)
        except ForgeError as error:
            if not error.retryable:
                raise
            logger.warning("An execution cannot be followed for the moment", extra={"error": str(error)})
            await asyncio.sleep(AWAY_SECONDS)


def _check(waiting: "asyncio.Future[ToolResult]", execution_id: str, state: StateChange | None) -> None:
    """Whoever waits for what is not there, or on a client that was closed, is told so; this is where it is raised."""
    if waiting.done():
        waiting.result()
        if state is None:
            raise ExecutionNotFoundError(f"Execution {execution_id} is not there any more.")


def _in_order(sight: Sight, before: StateChange | None, position: Position) -> list[CallEvent]:
    """Put the change of state, if it is one, behind what was told before it."""
    state = sight.state
    if state is None or state == before or state.status in TERMINAL:
        return list(sight.heard)
    count = sum(isinstance(one, Note) or _was_before(one.attempt, state) for one in sight.heard)
    cursor = sight.heard[count - 1].cursor if count else position.cursor
    return [*sight.heard[:count], replace(state, cursor=cursor), *sight.heard[count:]]


def _was_before(attempt: int, state: StateChange) -> bool:
    return attempt < state.attempt or state.status != ExecutionStatus.RUNNING
