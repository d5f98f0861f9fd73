"""The connections for hot statements on PostgreSQL, with pinned plans, pooled or direct; and the number of them all."""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from getpass import getuser
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4
from weakref import WeakKeyDictionary

from forge_tools.deadlines import alarm
from forge_tools.errors import ForgeError
from forge_tools.storage.connection.drivers import (
    CLIENT_SECONDS,
    SENT,
    STATEMENT_SECONDS,
    Address,
    closed,
    connect_postgres,
)
from forge_tools.storage.connection.faults import UnreachableError, is_of_read_only, translated

HOT = 10
"""Connections for hot statements: there are few kinds of batches, and at most one of each is under way."""

HELD, MORE = 1, 4
"""Connections for everything neither hot nor long: one that stays, and how many more there may be for a while."""

LONG_READS = 2
"""How many statements that read years of calls may run at once, each on its own connection."""

IDLE_SECONDS = 30.0
"""How long an unused connection is kept: heartbeats keep theirs open, those of a burst are closed."""

PINNED = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "work_mem": "32MB",
}
"""The planner guesses wrongly about arrays and about tables that were empty when last analyzed (twice the cost).

Planning again for each set of arrays would take half the time of a small statement, and could choose nothing better.
But a plan made while the live table was empty must still do when it is full: if a statement writes an equality as
`id = ANY (ARRAY[...])`, the planner has no use for the order of the index, and so cannot read all of it for each
row it looks up.
"""

TRANSACTION_SECONDS = 10
"""When the server ends an idle transaction: a frozen client must not keep its locks."""

IDLE_WORKER = 2
"""The connections of an idle worker: for heartbeats and services. A client has none, or one after reading history."""

MOST_OF_ONE = HOT + HELD + MORE + LONG_READS
"""The most that a worker or a client opens, if everything happens at once."""

_NUMBERS = count()


class HotConnections:
    """A connection for each statement under way, at most `HOT`; the most recently used one is taken first."""

    def __init__(self, address: Address, connect_timeout: float) -> None:
        self._address = address
        self._timeout = connect_timeout
        self._idle: deque[tuple[Any, float]] = deque()
        self._busy: set[Any] = set()
        self._free = asyncio.Semaphore(HOT)
        self._sweep: asyncio.TimerHandle | None = None
        self._partings: set[asyncio.Future[Any]] = set()
        self._is_cut_off = self._is_closed = False
        self._pooled = Transactions() if address.is_pooled else None

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        """Run one statement. If the server stays silent, drop the connection: asking it to cancel could hang too."""
        async with self._free:
            return await self._fetch(self._idle_one() or await self._connect(), statement, arguments)

    async def read(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        """Run a read-only statement; retry once if the server has dropped a connection that was idle."""
        async with self._free:
            idle = self._idle_one()
            if idle is not None:
                try:
                    return await self._fetch(idle, statement, arguments)
                except Exception:
                    if not idle.is_closed():
                        raise
            return await self._fetch(await self._connect(), statement, arguments)

    async def _fetch(self, connection: Any, statement: str, arguments: Sequence[object]) -> list[Any]:
        self._busy.add(connection)
        try:
            with alarm(CLIENT_SECONDS, connection.terminate):
                rows: list[Any] = await (
                    self._pooled.fetch(connection, statement, arguments)
                    if self._pooled
                    else connection.fetch(statement, *arguments)
                )
        except asyncio.CancelledError as cancellation:
            connection.terminate()
            cancellation.args = (SENT,)
            raise
        except Exception as error:
            if is_of_read_only(error):
                connection.terminate()
            raise
        finally:
            self._busy.discard(connection)
            self._put_back(connection)
        return rows

    def cut_off(self) -> None:
        self._is_cut_off = True
        for connection in (*(one for one, _ in self._idle), *self._busy):
            connection.terminate()

    async def close(self) -> None:
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self._let_go(before=math.inf)
        await asyncio.gather(*self._partings)

    def _idle_one(self) -> Any:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _connect(self) -> Any:
        if self._is_closed:
            raise closed()
        if self._is_cut_off:
            raise UnreachableError("The client was closed before the database answered.", is_final=True)
        # Without a time limit for commands: `_fetch` has its own.
        return await connect_postgres(self._address, timeout=self._timeout, settings=PINNED, command_timeout=None)

    async def _part_from(self, connection: Any) -> None:
        """Close the connection, but do not wait long for a server that does not answer."""
        with suppress(ForgeError), translated(self._address.shown):
            await connection.close(timeout=1.0)

    def _put_back(self, connection: Any) -> None:
        if connection.is_closed():
            return
        if self._is_closed:
            connection.terminate()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_SECONDS, self._sweep_idle)

    def _sweep_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._let_go(before=loop.time() - IDLE_SECONDS)
        self._sweep = loop.call_at(self._idle[0][1] + IDLE_SECONDS, self._sweep_idle) if self._idle else None

    def _let_go(self, *, before: float) -> None:
        """Close those that were put back before that moment; they are in this order."""
        while self._idle and self._idle[0][1] <= before:
            parting = asyncio.ensure_future(self._part_from(self._idle.popleft()[0]))
            self._partings.add(parting)
            parting.add_done_callback(self._partings.discard)


class Transactions:
    """Runs each statement in a transaction that pins plans, since a pooler accepts settings at no other moment.

    A statement has a name, which keeps its plan, if the pooler knows names: PgBouncer from 1.21 on, unless its
    `max_prepared_statements` is 0.
    """

    def __init__(self) -> None:
        limits = {**PINNED, "idle_in_transaction_session_timeout": f"{TRANSACTION_SECONDS}s"}
        self._begin = "BEGIN; " + "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in limits.items())
        self._prepared: WeakKeyDictionary[Any, tuple[bool, dict[str, Any]]] = WeakKeyDictionary()

    async def fetch(self, connection: Any, statement: str, arguments: Sequence[object]) -> list[Any]:
        """Run it and commit; roll back on failure."""
        if connection not in self._prepared:
            self._prepared[connection] = await knows_names(connection), {}
        try:
            await connection.execute(self._begin)
            prepared = await self._prepare(connection, statement)
            rows: list[Any] = await prepared.fetch(*arguments)
        except Exception:
            self._prepared.pop(connection)  # a migration may have changed what it returns
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")
        return rows

    async def _prepare(self, connection: Any, statement: str) -> Any:
        is_named, known = self._prepared[connection]
        if statement not in known:
            known[statement] = await connection.prepare(statement, name=f"forge_{next(_NUMBERS)}" if is_named else "")
        return known[statement]


async def knows_names(connection: Any) -> bool:
    """Return whether the pooler tracks prepared statements, giving them its own names on each server."""
    name = f"forge_{uuid4().hex}"
    async with connection.transaction():
        statement = await connection.prepare("SELECT 1 FROM pg_prepared_statements WHERE name = $1", name=name)
        is_passed_on = await statement.fetchval(name) is not None
        if is_passed_on:
            await connection.execute(f'DEALLOCATE "{name}"')
    return not is_passed_on


class Connections(NamedTuple):
    """The server's figures: `most` for unprivileged roles, `open` to all its databases, `ours` of any forge-tools."""

    most: int
    open: int
    ours: int
    statement_ms: int
    """The time limit of a statement on this connection; 0: none."""

    @property
    def is_limited(self) -> bool:
        """Whether the server ends a statement before the client stops waiting for it."""
        return 0 < self.statement_ms <= CLIENT_SECONDS * 1000


def role_setting(url: str) -> str:
    """Return the statement that gives that URL's role the time limit that direct connections set for themselves."""
    parts = urlsplit(Address.parse(url).target)
    role = unquote(parts.username or getuser())
    database = unquote(parts.path[1:]) or role
    return (
        f"ALTER ROLE {_quoted(role)} IN DATABASE {_quoted(database)} SET statement_timeout = '{STATEMENT_SECONDS:g}s'"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
