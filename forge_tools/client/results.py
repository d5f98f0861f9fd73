"""Waits for executions to end: a notification wakes, SQL answers, and silence is polled with back-off."""

import asyncio
import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from forge_tools.broker.message import REPLY_MARK
from forge_tools.client.connection import Connection
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.model.calls import ToolResult
from forge_tools.secrets.encryption import decrypted_reply, is_cipher_loaded, load_cipher
from forge_tools.storage import result_of

FIRST_POLL = 0.05
SILENCE = 1.0
SLOWEST_POLL = 2.0
"""Seconds until SQL is asked first, without and with a notification to expect; and the longest pause between two polls."""

BATCH = 1000
TOGETHER = 0.05
"""The part of an interval within which new waits are polled together."""

logger = logging.getLogger(__name__)


class _Poll(NamedTuple):
    """Executions that SQL is asked for together if no notification comes; each poll waits longer than the one before."""

    due: float
    interval: float
    ids: list[str]


class Results:
    """One future for each waiter; reads gather while one read is under way.

    An id is *expected* from its submit until its notification: only then is it worth waiting for that before reading
    SQL.

    A call has as few objects here as possible: with thousands in flight, each is one more that Python's collector
    walks.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, asyncio.Future[ToolResult]] = {}
        self._others: dict[str, list[asyncio.Future[ToolResult]]] = {}
        self._polls: list[_Poll] = []
        self._newest: dict[float, _Poll] = {}
        self._expected: set[str] = set()
        self._unread: set[str] = set()
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def expect(self, ids: Iterable[str]) -> None:
        """Record that this client will be notified when those ids, about to be submitted, end."""
        self._expected.update(ids)

    def expects(self, execution_id: str) -> bool:
        return execution_id in self._expected

    def forget(self, ids: Iterable[str]) -> None:
        """Record that no notification of those ids will come."""
        self._expected.difference_update(ids)

    async def wait(self, execution_id: str) -> ToolResult:
        """Wait until the execution is over.

        Raises:
            ConfigurationError: the client was closed before.
        """
        is_expected = self.expects(execution_id)
        future = self.begin(execution_id, is_expected)
        if not is_expected:
            self._read_soon([execution_id])
        try:
            return await future
        finally:
            self.end(execution_id, future)

    def require_open(self, execution_id: str) -> None:
        """Raise ConfigurationError if the client was closed."""
        if self._is_closed:
            raise _closed(execution_id)

    def begin(self, execution_id: str, is_expected: bool) -> "asyncio.Future[ToolResult]":
        """Begin to wait, with the returned future, until `end`. SQL is polled later if a notification is expected."""
        self.require_open(execution_id)
        future: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        if execution_id in self._waiting:
            self._others.setdefault(execution_id, []).append(future)
            return future
        self._waiting[execution_id] = future
        self._poll_after(SILENCE if is_expected else FIRST_POLL, [execution_id])
        return future

    def end(self, execution_id: str, future: "asyncio.Future[ToolResult]") -> None:
        """Forget a wait, however it ended."""
        others = self._others.get(execution_id, [])
        if self._waiting.get(execution_id) is not future:
            others[:] = [other for other in others if other is not future]
        elif others:
            self._waiting[execution_id] = others.pop(0)
        else:
            del self._waiting[execution_id]
        if not others:
            self._others.pop(execution_id, None)

    def fail(self, execution_id: str, error: ForgeError) -> None:
        """Fail those who wait, with the reason that there will be no result."""
        for future in self._pending(execution_id):
            future.set_exception(error)
            future.exception()  # mark it as retrieved: its waiter may be gone

    def hear(self, notification: bytes) -> None:
        """Handle a notification: ids of executions that ended, or one with its result. Anybody may have sent it."""
        ids, mark, reply = notification.partition(REPLY_MARK)
        named = ids.decode(errors="replace").split(" ")
        if mark and named[0] in self._waiting and (result := self._decrypted(named[0], reply)) is not None:
            self._resolve(result)
        else:
            self.ended(named)

    def _decrypted(self, execution_id: str, reply: bytes) -> ToolResult | None:
        """Return the result; None if this was not encrypted for this client, or the cipher is not imported yet."""
        key = self._connection.reply_key
        if key is None:
            return None
        if not is_cipher_loaded():  # importing it takes longer than reading the result from SQL, and blocks the loop
            self._connection.begin(asyncio.to_thread(load_cipher))
            return None
        text = decrypted_reply(key, execution_id, reply)
        return None if text is None else result_of(execution_id, text)

    def ended(self, ids: Sequence[str]) -> None:
        """Handle the end of those executions: read results that somebody awaits; later waiters read at once."""
        self._expected.difference_update(ids)
        self._read_soon(ids)

    def missed(self) -> None:
        """Handle lost notifications: rely on none that may have been among them."""
        self._expected.clear()
        self._read_soon(self._waiting)

    async def close(self) -> None:
        """End every wait; the executions continue."""
        self._is_closed = True
        self._expected.clear()
        for execution_id in self._waiting:
            self.fail(execution_id, _closed(execution_id))
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])  # last: a reader cancelled here leaves nobody waiting

    def _read_soon(self, ids: Iterable[str]) -> None:
        self._unread.update(i for i in ids if i in self._waiting)
        if self._unread and self._reading is None and not self._is_closed:
            self._reading = asyncio.ensure_future(self._read_ended())

    async def _read_ended(self) -> None:
        try:
            while self._unread:
                ids = list(self._unread)[:BATCH]
                self._unread.difference_update(ids)
                for result in await self._connection.store.queue.results(ids):
                    self._resolve(result)
        except ForgeError as error:
            logger.warning("Results cannot be read; polling continues", extra={"error": str(error)})
        finally:
            self._reading = None

    def _resolve(self, result: ToolResult) -> None:
        """Give each waiter its own result, to change as it likes."""
        execution_id = result.metadata["execution_id"]
        self._expected.discard(execution_id)
        for place, future in enumerate(self._pending(execution_id)):
            future.set_result(copy.deepcopy(result) if place else result)

    def _pending(self, execution_id: str) -> "Iterator[asyncio.Future[ToolResult]]":
        """Yield the futures of waiters without an answer, first come first."""
        first = self._waiting.get(execution_id)
        if first is not None and not first.done():
            yield first
        if execution_id in self._others:
            yield from [future for future in self._others[execution_id] if not future.done()]

    def _poll_after(self, interval: float, ids: list[str]) -> None:
        loop, newest = asyncio.get_running_loop(), self._newest.get(interval)
        due = loop.time() + interval
        if newest is not None and newest.due >= due - TOGETHER * interval:
            newest.ids.extend(ids)
            return
        self._newest[interval] = poll = _Poll(due, interval, ids)
        self._polls.append(poll)
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._poll)

    def _poll(self) -> None:
        loop, polls = asyncio.get_running_loop(), self._polls
        now = loop.time()
        self._polls = [poll for poll in polls if poll.due > now]
        self._timer = loop.call_at(min(poll.due for poll in self._polls), self._poll) if self._polls else None
        for poll in polls:
            if poll.due <= now and (ids := [i for i in poll.ids if i in self._waiting]):
                self._read_soon(ids)
                self._poll_after(min(poll.interval * 1.5, SLOWEST_POLL), ids)


def _closed(execution_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"The client was closed before execution {execution_id} ended. It keeps running; attach to it with another client."
    )
