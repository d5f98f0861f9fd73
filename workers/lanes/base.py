"""What the engine needs from a lane, what a lane needs from the engine, and the only way in which it runs a body."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from forge_tools.errors import ForeignRowError
from forge_tools.model.calls import ExecutionContext
from forge_tools.model.execution import Claim, Outcome
from forge_tools.model.scope import SCOPE, CallScope, Reporter
from forge_tools.sandbox.reports import ReportBuffer
from forge_tools.schema import Unreadable, decode_json
from forge_tools.tool.executor import ToolExecutor
from workers.lanes.process_state import shortage
from workers.log_redaction import concealed
from workers.outcomes import cancelled, crashed, interrupted, not_run, out_of_memory, outcome_of

STALL_SECONDS = 0.5
SWEEP_AGAIN = 0.5
SWEEP_PATIENCE = 20.0
"""Seconds; a worker that stays short of descriptors is about to end, and with it whatever its tools left."""

logger = logging.getLogger(__name__)

Verdict = Callable[[Claim, float], Outcome]
"""How a body that did not stop by itself is recorded, given the milliseconds it took."""


class Host(Protocol):
    """The worker as its lane sees it. Every method is called on the engine's loop."""

    def finished(self, outcome: Outcome) -> None:
        """Take an outcome that the lane produced."""

    def begin_reports(self, claim: Claim) -> ReportBuffer:
        """Create the buffer that receives a body's reports."""

    def slot_opened(self) -> None:
        """Wake those who wait for a slot: one is free before an outcome is stored, or without a body's end."""

    async def answer(self, request: dict[str, Any], context: ExecutionContext) -> dict[str, Any]:
        """Answer what the tools of children ask about artifacts."""

    def demote(self, tool: str, why: str) -> None:
        """Move that tool out of the async lane."""

    def replace_process(self, why: str) -> None:
        """End this process, since nothing else helps."""


class BodyLane(Protocol):
    """Runs claimed executions. Every method is called on the engine's loop, and none of them blocks it."""

    async def start(self, host: Host) -> None:
        """Run bodies for that worker from now on."""

    def free_slots(self) -> int:
        """Return how many more bodies could start now."""

    def answering(self) -> int:
        """Return how many bodies it could run at once now: places whose process answers, or whose loop is not held."""

    def run(self, claims: Sequence[Claim]) -> None:
        """Start bodies; the host learns of the end of each exactly once, unless the lane is stopped before."""

    def cancel(self, execution_id: str, attempt: int) -> None:
        """Stop that attempt's body, if it still runs here."""

    def ban(self, tools: Iterable[str]) -> None:
        """Start no more bodies of tools that block, if that harms others."""

    def running(self) -> list[Claim]: ...

    async def stop(self) -> list[Claim]:
        """End what is left and release threads and sockets; returns the claims whose outcome will not be reported."""


async def swept(claim: Claim, sweep: Callable[[], Awaitable[None]]) -> None:
    """Sweep, and repeat while this process lacks what it needs to see others: nothing is found then."""
    deadline = time.monotonic() + SWEEP_PATIENCE
    while True:
        try:
            await sweep()
            why = shortage()
        except OSError as error:
            why = str(error)
        if why is None:
            return
        if time.monotonic() > deadline:
            logger.error("Processes that a tool left running cannot be ended", extra={"error": why, **claim.facts()})
            return
        logger.warning("Processes that a tool left running are looked for again", extra={"error": why, **claim.facts()})
        await asyncio.sleep(SWEEP_AGAIN)


class TimeLimit(Protocol):
    """What ends a body that does not stop, unless it is itself stopped."""

    def stop(self) -> None: ...


class Guard:
    """Calls `fire` once after `seconds`, unless stopped.

    If the loop itself was late (a suspended process, a stalled engine), the body may have returned in time and its
    outcome may be waiting behind this timer: the guard then waits the same `patience` once more before it judges.
    """

    def __init__(self, seconds: float, fire: Callable[[], None], *, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fire = fire
        self._patience = patience
        self._arm(seconds)

    def stop(self) -> None:
        """Do not fire any more, and release the callback: it refers to the body, which refers to this."""
        self._timer.cancel()
        self._fire = lambda: None

    def _arm(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        self._timer = self._loop.call_later(seconds, self._come_due)

    def _come_due(self) -> None:
        if time.monotonic() - self._due > STALL_SECONDS:
            self._arm(self._patience)
        else:
            self._fire()


@dataclass(slots=True)
class Body:
    """One running body as the engine sees it.

    In the async lane, `processes` are those that it started, with their `start_ticks`; the threads in `starts` are
    starting one now, which no other does once it `is_ending`.
    """

    claim: Claim
    started: float = field(default_factory=time.monotonic)
    guard: TimeLimit | None = None
    limit: TimeLimit | None = None
    reports: ReportBuffer | None = None
    requests: set[asyncio.Task[None]] = field(default_factory=set)
    processes: dict[int, int] = field(default_factory=dict)
    starts: set[int] = field(default_factory=set)
    is_cancelled: bool = False
    is_ending: bool = False
    is_over: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Includes the attempt: a worker that was declared dead and lives may run two attempts of one execution."""
        return self.claim.id, self.claim.attempt

    @property
    def elapsed_ms(self) -> float:
        return (time.monotonic() - self.started) * 1000


async def execute(
    executor: ToolExecutor,
    claim: Claim,
    max_output_bytes: int,
    *,
    scope: CallScope,
    memory_limit: int = 0,
    walls: str | None = None,
) -> Outcome:
    """Run a claimed execution through the same executor that a notebook uses; whatever the row holds, there is an outcome.

    `scope` receives its reports; the result names its `walls`, if given. `memory_limit` is what this process may
    allocate (0: no limit): a MemoryError then says whose limit was reached.

    Raises:
        asyncio.CancelledError: the body was cancelled from outside.
    """
    started = time.monotonic()
    try:
        SCOPE.set(scope)  # in this task and in what it starts
        context = context_of(claim, scope)
        with concealed(claim.secrets) if claim.secrets else nullcontext():
            result = await executor.call(claim.tool, _decoded(claim, "parameters"), context)
        if memory_limit and result.error_details == {"type": MemoryError.__name__}:
            after_ms = (time.monotonic() - started) * 1000
            return out_of_memory(claim, memory_limit, after_ms, result.diagnosis)
        if walls is not None:
            result.metadata["walls"] = walls
        return outcome_of(claim, result, max_output_bytes)
    except ForeignRowError as error:
        return not_run(claim, error.message, error.code)
    except MemoryError as error:
        after_ms = (time.monotonic() - started) * 1000
        return out_of_memory(claim, memory_limit, after_ms) if memory_limit else crashed(claim, error, after_ms)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 a claim without an outcome would never end
        return crashed(claim, error, (time.monotonic() - started) * 1000)


def scope_of(claim: Claim, reporter: Reporter | None = None, catch_up: Callable[[], None] | None = None) -> CallScope:
    """Return what the body of a claim may know of its call."""
    return CallScope(
        reporter,
        execution_id=claim.id,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        queue=claim.queue,
        catch_up=catch_up,
    )


def context_of(claim: Claim, scope: CallScope) -> ExecutionContext:
    """Return what the caller sent, with the timeout that counts, bound to its call."""
    context = ExecutionContext.model_validate({**_decoded(claim, "context"), "timeout": claim.timeout})
    context.enter(scope)
    return context


def _decoded(claim: Claim, column: str) -> Any:
    """Return the value of a JSON column of the row.

    Raises:
        ForeignRowError: the column does not hold JSON.
    """
    value = decode_json(getattr(claim, column))
    if isinstance(value, Unreadable):
        raise ForeignRowError(
            f"Row {claim.id} of table executions cannot be read: its {column} is not JSON. "
            "forge-tools did not write this: correct or delete the row, or restore a backup."
        )
    return value


def outcome_of_task(body: asyncio.Task[Outcome], claim: Claim, after_ms: float, *, is_asked: bool) -> Outcome:
    """Return the outcome of the task that ran `execute`, however it ended. `is_asked`: a cancel was requested."""
    if body.cancelled():
        return cancelled(claim, after_ms) if is_asked else interrupted(claim, after_ms)
    error = body.exception()
    return body.result() if error is None else crashed(claim, error, after_ms)
