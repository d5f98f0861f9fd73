"""The databases under fire: each can be taken away, cut off, frozen or killed, and read behind the system's back."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.chaos.schedule import Fault
from tests.clocks import postgres_clock
from tests.contract.proxy import Proxy
from tests.services import PostgresServer

T = TypeVar("T")
OnStarter = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function on the one thread that servers may be started from, since they end with it."""


class UnderFire(Protocol):
    """One database and what can be done to it. `url` is what client and workers get."""

    name: str
    faults: frozenset[Fault]

    @property
    def url(self) -> str: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Read, past every fault but a dead server."""
        ...

    async def go_away(self, seconds: float) -> None: ...

    async def pause(self, seconds: float) -> None: ...

    async def cut(self) -> None: ...

    async def kill(self, seconds: float) -> None: ...

    async def swallow(self, seconds: float) -> None: ...

    async def shadow_clock(self) -> None:
        """Let `set_clock` set its clock, from now on."""
        ...

    async def set_clock(self, ahead: float) -> None: ...


class SqliteUnderFire:
    """A file that somebody else keeps locked."""

    name = "sqlite"
    faults = frozenset(Fault) - {
        Fault.KILL_DATABASE,
        Fault.CUT_DATABASE,
        Fault.SWALLOW_DATABASE,
        Fault.SET_CLOCK,
    }

    def __init__(self, folder: Path) -> None:
        self._path = folder / "forge.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(self._rows, query)

    async def go_away(self, seconds: float) -> None:
        """Lock it against every writer; readers of a write-ahead log never wait."""
        connection = await asyncio.to_thread(self._lock)
        try:
            await asyncio.sleep(seconds)
        finally:
            connection.close()

    async def pause(self, seconds: float) -> None:
        await self.go_away(seconds)

    async def cut(self) -> None:
        raise NotImplementedError("a file has no connections")

    async def kill(self, seconds: float) -> None:
        raise NotImplementedError("a file has no server")

    async def swallow(self, seconds: float) -> None:
        raise NotImplementedError("a file has no connections")

    async def shadow_clock(self) -> None:
        raise NotImplementedError("a file has no clock")

    async def set_clock(self, ahead: float) -> None:
        raise NotImplementedError("a file has no clock")

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self._path, timeout=10)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def _lock(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        return connection


class Gate(Proxy):
    """A proxy that hangs up when the server behind it is dead."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._serve(reader, writer)
        except OSError:
            writer.transport.abort()


class PostgresUnderFire:
    """A server behind a gate."""

    name = "postgres"
    faults = frozenset(Fault)

    def __init__(self, folder: Path, on_starter: OnStarter) -> None:
        self._server = PostgresServer(folder)
        self._on_starter = on_starter
        self._path = ""

    @property
    def url(self) -> str:
        return self._gate.url

    async def open(self) -> None:
        await self._on_starter(self._server.start)
        direct = await self._on_starter(self._server.create_database)
        self._path = urlsplit(direct).path
        self._gate = Gate(direct)
        await self._gate.__aenter__()

    async def close(self) -> None:
        await self._gate.__aexit__()
        await self._on_starter(self._server.stop)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self._direct, timeout=30)
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    async def go_away(self, seconds: float) -> None:
        await self._gate.go_away()
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._gate.come_back()

    async def pause(self, seconds: float) -> None:
        self._gate.freeze()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._gate.thaw()

    async def cut(self) -> None:
        await self.go_away(0.0)

    async def kill(self, seconds: float) -> None:
        await self._on_starter(self._server.kill)
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._on_starter(self._server.start)

    async def swallow(self, seconds: float) -> None:
        self._gate.swallow()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._gate.stop_swallowing()

    async def shadow_clock(self) -> None:
        self._set_clock = await asyncio.to_thread(postgres_clock, self._direct)

    async def set_clock(self, ahead: float) -> None:
        await asyncio.to_thread(self._set_clock, ahead)

    @property
    def _direct(self) -> str:
        return urlunsplit(urlsplit(self._server.url)._replace(path=self._path))


async def read_if_up(database: UnderFire, query: str) -> list[tuple[Any, ...]] | None:
    """Rows, or None while the server is dead."""
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
        return await database.rows(query)
    return None
