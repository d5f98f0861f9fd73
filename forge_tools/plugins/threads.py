"""Blocking functions beside an event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Ending(NamedTuple, Generic[T]):
    value: T | None
    error: BaseException | None


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` on a daemon thread of its own, in a copy of this context; a cancelled one goes on unheard.

    The loop's own threads are few: calls that never return would use them up, and the end of the loop waits for them.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Ending[T]] = loop.create_future()
    context = copy_context()

    def run() -> None:
        ending = _ending(lambda: context.run(call))
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(_settle, done, ending)

    threading.Thread(target=run, name="forge-function", daemon=True).start()
    value, error = await done
    if error is not None:
        try:
            raise error
        finally:
            del error, done  # or its traceback would keep this frame, which keeps it
    return value  # type: ignore[return-value]  # None only where T is


def _ending(call: Callable[[], T]) -> _Ending[T]:
    # As a value, since no future takes a StopIteration.
    try:
        return _Ending(call(), None)
    except BaseException as error:  # noqa: BLE001 raised again where it is awaited
        return _Ending(None, error)


def _settle(done: "asyncio.Future[_Ending[T]]", ending: _Ending[T]) -> None:
    if not done.done():
        done.set_result(ending)
