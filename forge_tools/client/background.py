"""What a client does besides, and nobody waits for."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from forge_tools.errors import ExecutionNotFoundError, ForgeError

logger = logging.getLogger(__name__)


class Background:
    """Steps under way. One that fails is logged, and stops no other."""

    def __init__(self) -> None:
        self._steps: set[asyncio.Task[None]] = set()

    def begin(self, step: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(_logged(step))
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)

    async def until_done(self) -> None:
        """Wait for all of them, and for those that they begin."""
        while self._steps:
            await asyncio.wait(self._steps)  # unlike `gather`, this cuts off nothing if it is cancelled


async def _logged(step: Coroutine[Any, Any, Any]) -> None:
    try:
        await step
    except ExecutionNotFoundError:
        pass
    except ForgeError as error:
        logger.warning("Background step failed", extra={"error": str(error)})
