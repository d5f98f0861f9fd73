"""What a person sees while a call takes its time."""

import asyncio

from forge_tools.cli.face import Face
from forge_tools.cli.live import view_of, watch
from forge_tools.client import Handle
from forge_tools.errors import ForgeError
from forge_tools.records import ToolResult

PATIENCE = 1.0
"""Seconds of silence; most calls are over by then."""

_LAST_WORDS = 1.0
_CANCEL_SECONDS = 5.0


async def awaited(face: Face, handle: Handle, *, is_detached: bool = False, is_live: bool | None = None) -> ToolResult:
    """Wait for the result. When it takes over a second a terminal shows what is waited for, and what the tool reports.

    `is_live` shows that from the start, terminal or not, or not at all. An interrupt cancels the call, unless it is detached.
    """
    waiting = asyncio.ensure_future(handle.result())
    try:
        patience = 0.0 if is_live else PATIENCE
        await asyncio.wait([waiting], timeout=patience)
        if not waiting.done() and (face.err.is_terminal if is_live is None else is_live):
            await _watch(face, handle, waiting, patience)
        return await waiting
    except asyncio.CancelledError:
        waiting.cancel()
        if is_detached:
            face.note(f"It goes on; wait for it with: forge-tools show {handle.id} --wait", style="yellow")
        else:
            await _cancel(face, handle)
        raise


async def _watch(face: Face, handle: Handle, waiting: "asyncio.Future[ToolResult]", waited: float) -> None:
    """Show what there is to see until the result is there, and what was told before it."""
    keeps_output = face.is_json or not face.out.is_terminal  # where it would not come again as the result
    with view_of(face, keeps_output=keeps_output, waited=waited) as view:
        watching = asyncio.ensure_future(watch(view, handle.events(), handle.record))
        try:
            await asyncio.wait([waiting])
            await asyncio.wait([watching], timeout=_LAST_WORDS)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)  # the wait for the result says what is wrong


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
