"""What a worker does every few minutes for as long as it lives."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from forge_tools.errors import ForgeError

logger = logging.getLogger(__name__)


async def repeat(step: Callable[[], Awaitable[object]], seconds: float, undone: str) -> None:
    """Take a step every so many seconds, for ever; the log says what is `undone` where one fails."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await step()
        except ForgeError as error:
            logger.warning(undone, extra={"error": str(error)})
