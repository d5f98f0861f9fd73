"""Hands on what a call reports while its caller waits for the result."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

from forge_tools.client.handle import Handle
from forge_tools.errors import ForgeError
from forge_tools.records import Output, Progress, Report


async def heard(
    submitting: Awaitable[Handle], on_report: Callable[[Report], None], abandon: Callable[[str], None]
) -> Handle:
    """Hand on every report until the call is over; `abandon` hears of its id where the caller is cancelled before.

    What the listener raises is its own affair. What cannot be followed can still have a result: that is the handle's to say.
    """
    handle = await submitting
    try:
        with suppress(ForgeError):
            async with aclosing(handle.events()) as events:
                async for event in events:
                    if isinstance(event, Progress | Output):
                        with suppress(Exception):
                            on_report(event)
        with suppress(ForgeError):
            await handle.result()
    except asyncio.CancelledError:
        abandon(handle.id)
        raise
    return handle
