"""How Ctrl-C, SIGTERM and the clock end a call that this command waits for or runs itself."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import typer

from forge_tools.cli import exits
from forge_tools.errors import ErrorCode, ForgeError
from forge_tools.signals import heeded

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""After its timeout a body that awaits has long been cancelled; one that still runs blocks."""


class BlockedError(ForgeError):
    """A tool in this process blocked beyond its timeout; raised into its body."""

    code = ErrorCode.TIMEOUT


def cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, which knows how to be cancelled; Ctrl-C and SIGTERM do that and become an exit code."""

    async def main() -> T:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise typer.Exit(exits.INTERRUPTED) from None


def stoppable(work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run `work`, which may block the interpreter: Ctrl-C, SIGTERM and the timeout reach into it all the same."""

    async def main() -> T:
        # In place of asyncio's handler, which waits for the loop's next turn: a tool that blocks never gives it one.
        with ExitStack() as handlers:
            for number in heeded(signal.SIGINT, signal.SIGTERM):
                handlers.enter_context(_handled(number, signal.default_int_handler))
            return await work

    def overdue(_number: int, _frame: object) -> None:
        raise BlockedError(f"Tool timed out after {timeout:g}s; it blocked, and was interrupted")

    with _handled(signal.SIGALRM, overdue):
        signal.setitimer(signal.ITIMER_REAL, timeout + GRACE_SECONDS)
        try:
            return asyncio.run(main())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
