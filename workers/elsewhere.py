"""What lives on the engine's loop, for code on other loops."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from forge_tools.errors import DatabaseUnavailableError

T = TypeVar("T")
Answer = TypeVar("Answer")


class Elsewhere(Generic[T]):
    """Made before the engine, which opens it once it has what is asked for."""

    def __init__(self) -> None:
        self._there: tuple[asyncio.AbstractEventLoop, T] | None = None

    def open(self, it: T) -> None:
        """It lives on the loop that runs."""
        self._there = asyncio.get_running_loop(), it

    @property
    def it(self) -> T:
        """For code on its own loop.

        Raises:
            DatabaseUnavailableError: it has not been opened yet.
        """
        return self._opened()[1]

    async def ask(self, question: Callable[[T], Coroutine[Any, Any, Answer]]) -> Answer:
        """Have its loop answer, from any loop.

        Raises:
            DatabaseUnavailableError: it has not been opened yet, or its loop has ended.
        """
        loop, it = self._opened()
        work = question(it)
        try:
            answering = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:  # the loop has ended
            work.close()
            raise DatabaseUnavailableError("This worker stops and has closed its database. Try again.") from error
        return await asyncio.wrap_future(answering)

    def _opened(self) -> tuple[asyncio.AbstractEventLoop, T]:
        if self._there is None:
            raise DatabaseUnavailableError("This worker has not opened its database yet. Try again.")
        return self._there
