"""`notifications/progress`: tells the client of a request what its call reports, and that it lives."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

from mcp.server.context import ServerRequestContext

from forge_tools.client import Handle
from forge_tools.errors import ForgeError
from forge_tools.records import (
    REPORTER,
    ExecutionRecord,
    ExecutionStatus,
    Output,
    Progress,
    StateChange,
    Told,
    ToolResult,
)
from forge_tools.sandbox.reports import ReportBuffer

PROGRESS_DELAY = 0.25
PROGRESS_INTERVAL = 1.0
"""Seconds until a client hears of a call for the first time, and of one that is silent; most calls are over before."""

TELL_SECONDS = 0.25
"""Between two notifications of what tools of this process report."""

LAST_WORDS = 0.5
"""What the end of a call may wait for the last of its reports."""

LINE_CHARS = 200
_STEP = 1e-6

_Context = ServerRequestContext[Any, Any]

logger = logging.getLogger(__name__)


def wants_progress(ctx: _Context) -> bool:
    """Whether the client gave a token for progress with its request."""
    meta = (ctx.params or {}).get("_meta")
    return isinstance(meta, dict) and meta.get("progressToken") is not None


async def tell_progress(ctx: _Context, handle: Handle, waiting: "asyncio.Future[ToolResult]") -> None:
    """Tell what a call on a worker reports, and while it does not, where it is: for the client a sign of life."""
    await asyncio.wait([waiting], timeout=PROGRESS_DELAY)
    if waiting.done():
        return
    teller = _Teller(ctx)
    living = asyncio.ensure_future(teller.live())
    try:
        async with aclosing(handle.events()) as events:
            async for event in events:
                if isinstance(event, StateChange):
                    await teller.tell(described(await handle.record()))
                elif isinstance(event, Progress):
                    await teller.tell(event.message, event.done, event.total)
                elif isinstance(event, Output):
                    await teller.tell(_last_line(event.text))
    except ForgeError as error:
        logger.warning("Progress cannot be told", extra={"error": str(error)})
    finally:
        living.cancel()


async def told_here(ctx: _Context, call: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
    """Make a call in this process, and tell what it reports."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def hear() -> None:
        with suppress(RuntimeError):  # the loop has ended: a thread that was left goes on telling
            loop.call_soon_threadsafe(news.set)

    teller, buffer = _Teller(ctx), ReportBuffer(hear, interval=TELL_SECONDS)
    telling = asyncio.ensure_future(_tell_buffer(teller, buffer, news))
    before = REPORTER.set(buffer)
    try:
        result = await call()
    finally:
        REPORTER.reset(before)
        telling.cancel()
    for told in buffer.close():
        await teller.tell_report(told)
    return result


async def _tell_buffer(teller: "_Teller", buffer: ReportBuffer, news: asyncio.Event) -> None:
    while True:
        await news.wait()
        news.clear()
        for told in buffer.take():
            await teller.tell_report(told)
        if buffer.is_waiting:
            news.set()
        await asyncio.sleep(TELL_SECONDS)


class _Teller:
    """One request's notifications. The protocol wants each number above the one before, whatever a tool reports."""

    def __init__(self, ctx: _Context) -> None:
        self._ctx = ctx
        self._number = 0.0
        self._total: float | None = None
        self._message: str | None = None
        self._told_at = time.monotonic()

    async def tell(self, message: str | None = None, done: float | None = None, total: float | None = None) -> None:
        """What is not given is as it was."""
        self._number = done if done is not None and done > self._number else self._number + _STEP
        self._total = total if done is not None else self._total
        self._message = message or self._message
        self._told_at = time.monotonic()
        await self._ctx.session.report_progress(self._number, self._total, self._message)

    async def tell_report(self, told: Told) -> None:
        """Tell what a buffer gave."""
        if told.done is not None:
            await self.tell(told.text, told.done, told.total)
        else:
            await self.tell(_last_line(told.text or ""))

    async def live(self) -> None:
        """Repeat what was told last whenever there is silence."""
        while True:
            left = self._told_at + PROGRESS_INTERVAL - time.monotonic()
            if left <= 0:
                await self.tell()
            await asyncio.sleep(left if left > 0 else PROGRESS_INTERVAL)


def described(record: ExecutionRecord, progress: Progress | None = None) -> str:
    """Where an execution is, in a few words."""
    if record.status is ExecutionStatus.QUEUED:
        return f"{record.tool} waits in queue {record.queue}"
    if record.status is ExecutionStatus.RUNNING:
        how_far = f": {_measured(progress)}" if progress is not None and progress.attempt == record.attempt else ""
        return f"{record.tool} runs on {record.hostname or 'a worker'}{how_far}"
    return f"{record.tool}: {record.error or record.status.value.replace('_', ' ')}"


def _measured(progress: Progress) -> str:
    of = f" of {progress.total:g}" if progress.total is not None else ""
    return f"{progress.done:g}{of}" + (f", {progress.message}" if progress.message else "")


def _last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1][:LINE_CHARS] if lines else None
