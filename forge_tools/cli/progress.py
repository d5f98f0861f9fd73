"""What a person sees while a call takes its time."""

import asyncio
import time

from forge_tools.cli.face import Face, one_line
from forge_tools.cli.moments import took
from forge_tools.client import Handle
from forge_tools.errors import ForgeError
from forge_tools.records import ExecutionRecord, ExecutionStatus, ToolResult

PATIENCE = 1.0
"""Seconds of silence; most calls are over by then."""

_INTERVAL = 0.25
_CANCEL_SECONDS = 5.0


async def awaited(face: Face, handle: Handle) -> ToolResult:
    """Wait for the result, saying what is waited for when it takes over a second; an interrupt cancels the call."""
    waiting = asyncio.ensure_future(handle.result())
    try:
        await asyncio.wait([waiting], timeout=PATIENCE)
        if not waiting.done() and face.err.is_terminal:
            await _watch(face, handle, waiting)
        return await waiting
    except asyncio.CancelledError:
        waiting.cancel()
        await _cancel(face, handle)
        raise


async def _watch(face: Face, handle: Handle, waiting: "asyncio.Future[ToolResult]") -> None:
    started = time.monotonic() - PATIENCE
    with face.err.status("", spinner="dots") as status:
        while not waiting.done():
            try:
                said = describe(await handle.record())
            except ForgeError as error:
                said = one_line(error.message)
            status.update(f"[dim]{took((time.monotonic() - started) * 1000):>7}[/]  {_escaped(said)}")
            await asyncio.wait([waiting], timeout=_INTERVAL)


def describe(record: ExecutionRecord) -> str:
    """What an execution waits for, in a few words."""
    if record.status is ExecutionStatus.QUEUED:
        again = f", attempt {record.attempt + 1}" if record.attempt else ""
        return f"{one_line(record.tool)} waits in queue {record.queue} ({record.lane} lane){again}"
    if record.status is ExecutionStatus.RUNNING:
        return f"{one_line(record.tool)} runs on {record.hostname or 'a worker'}"
    return f"{one_line(record.tool)} {record.status.value.replace('_', ' ')}"


async def _cancel(face: Face, handle: Handle) -> None:
    """Ask for the end of the call; the one who interrupted does not wait for ever."""
    try:
        async with asyncio.timeout(_CANCEL_SECONDS):
            outcome = await handle.cancel("interrupted at the command line")
    except (ForgeError, TimeoutError):
        face.note(f"Could not cancel {handle.id}; try: forge-tools cancel {handle.id}", style="yellow")
        return
    if outcome != "over":
        face.note(f"Cancelled {handle.id}", style="yellow")


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
