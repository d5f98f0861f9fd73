"""Where the database is, and how statements that are not hot reach it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakSet

from sqlalchemy import URL, Connection, ExceptionContext, Executable, Row, Select, Table, TextClause, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import NullPool

from forge_tools.deadlines import alarm, answered_within
from forge_tools.errors import DatabaseUnavailableError
from forge_tools.storage.connection.drivers import (
    ANSWER_SECONDS,
    BUSY_SECONDS,
    CLIENT_SECONDS,
    READ_TEXT,
    SQLITE_SETUP,
    STATEMENT_SECONDS,
    Address,
    Owner,
    connect_postgres,
    forge_now,
    load_asyncpg,
)
from forge_tools.storage.connection.faults import (
    ConflictError,
    explain,
    is_from_asyncpg,
    is_of_read_only,
    translated,
    unreachable,
)
from forge_tools.storage.connection.forkable import ForkableConnection
from forge_tools.storage.connection.pool import HELD, LONG_READS, MORE
from forge_tools.storage.sqlalchemy_engine import AsyncConnection, AsyncEngine, create_async_engine
from forge_tools.storage.statements import settings

T = TypeVar("T")

LONG_SECONDS = 300.0
"""The server's limit for a statement that reads years of calls; the client waits a little longer."""

MIGRATION = {"statement_timeout": "0", "lock_timeout": "2s"}
"""Building the index of a long history takes long. A statement that waits for a lock makes calls wait behind it, so a
migration retries instead; after one second PostgreSQL cancels an autovacuum that blocks it.
"""

PARTING_SECONDS = 3.0
"""How long `close` waits for statements under way; their connections are closed when they end."""

FAREWELL_SECONDS = 1.0
"""How long `close` waits for the server to close a connection."""

UNNAMED_ADAPTER = {"prepared_statement_name_func": str}
"""The same as `UNNAMED` for SQLAlchemy's adapter: the name of a statement is empty."""

CONFLICT_TRIES = 5


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Do the same as `translated` for drivers' errors as wrapped by SQLAlchemy."""
    with translated(shown):
        try:
            yield
        except PendingRollbackError as error:  # Alembic went on using a connection that was lost
            raise explain(_origin(error.__context__ or error), shown) from error
        except (DBAPIError, PoolTimeoutError) as error:
            raise explain(_origin(error), shown) from error


def _origin(error: BaseException) -> BaseException:
    if isinstance(error, DBAPIError) and error.orig is not None:
        inner = error.orig
        return inner.__cause__ if inner.__cause__ is not None and is_from_asyncpg(inner.__cause__) else inner
    return error


async def prepare(connection: AsyncConnection, name: str) -> None:
    """Begin a transaction with the statements of a block, if this database has one of that name."""
    for said in settings(connection.dialect.name, name):
        await connection.exec_driver_sql(said)


class Database:
    """The SQLAlchemy side of a database: everything except hot statements."""

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float,
        deadline: float | None = None,
        write_lock: asyncio.Lock | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.address = address
        self.dialect = address.dialect
        self.guard = (owner or Owner()).guard
        self._engine = self._patient = create_engine(address, connect_timeout=connect_timeout)
        self._writer = self._engine.execution_options(forge_write=True)
        self._write_lock = write_lock or asyncio.Lock()
        self._long_reads = asyncio.Semaphore(LONG_READS)
        self._abandoned: set[asyncio.Future[Any]] = set()
        self._users = 0
        self._is_unused = asyncio.Event()
        self._is_closed = self._is_cut_off = False
        self._deadline: float | None = None
        self._opened: WeakSet[Any] = WeakSet()
        if address.dialect == "postgresql":
            self._deadline = deadline
            self._patient = _patient_engine(address, connect_timeout)
            for one in (self._engine, self._patient):
                event.listen(one.sync_engine, "connect", lambda made, _: self._opened.add(made.driver_connection))

    def cut_off(self) -> None:
        """Break off all statements, future ones included."""
        self._is_closed = self._is_cut_off = True
        for connection in list(self._opened):
            connection.terminate()

    def upsert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT of this dialect, which can handle conflicts."""
        return postgresql.insert(table) if self.dialect == "postgresql" else sqlite.insert(table)

    @asynccontextmanager
    async def reading(self, *, is_long: bool = False) -> AsyncIterator[AsyncConnection]:
        """Yield a connection to read with; nothing it does is kept. With `is_long`, statements may take minutes."""
        self.guard()
        with explained(self.address.shown):
            if is_long:
                async with self._long_reads, self._connection(self._patient) as connection:
                    yield connection
            else:
                async with self._connection(self._engine) as connection:
                    with self._alarm(connection):
                        yield connection

    async def rows(self, query: Select[Any], values: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        async with self.reading() as connection:
            found: Sequence[Row[Any]] = (await connection.execute(query, values)).all()
        return found

    async def scalars(self, query: Select[Any]) -> Sequence[Any]:
        async with self.reading() as connection:
            return (await connection.scalars(query)).all()

    async def scalar(self, query: Select[Any] | TextClause) -> Any:
        """Read the first value of the first row of one query; None without a row."""
        async with self.reading() as connection:
            return await connection.scalar(query)

    async def execute(self, statement: Executable, values: Sequence[Mapping[str, Any]] | None = None) -> int:
        """Run one statement in a write transaction; returns how many rows it changed."""
        return (await self.write(lambda connection: connection.execute(statement, values))).rowcount

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run `work` in one write transaction, and retry it after a conflict with another one.

        On SQLite the process's writers take turns here rather than in the file's busy handler, which sleeps.
        """
        self.guard()
        for remaining in reversed(range(CONFLICT_TRIES)):
            try:
                with explained(self.address.shown):
                    if self.dialect == "postgresql":
                        return await self._transact(work)
                    async with self._write_lock:
                        return await self._transact_to_its_end(work)
            except ConflictError as conflict:
                if not remaining:
                    raise DatabaseUnavailableError(
                        f"{self.address.shown}: other transactions kept conflicting: {conflict}"
                    ) from conflict
                await asyncio.sleep(0.02 * (CONFLICT_TRIES - remaining))
        raise AssertionError("unreachable")

    async def _transact(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._connection(self._writer) as connection:
            with self._alarm(connection):
                async with connection.begin():
                    return await work(connection)

    async def _transact_to_its_end(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Finish even if cancelled: half a transaction would block all writers until its last cursor is collected."""
        transaction = asyncio.ensure_future(self._transact(work))
        try:
            return await asyncio.shield(transaction)
        except asyncio.CancelledError:
            self._abandoned.add(transaction)
            transaction.add_done_callback(self._forget)
            await asyncio.wait([transaction])
            raise

    def _forget(self, done: "asyncio.Future[Any]") -> None:
        self._abandoned.discard(done)
        if not done.cancelled():
            done.exception()  # retrieve it, since the caller was cancelled

    @asynccontextmanager
    async def _connection(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """Yield a connection of the pool. After a close it is not given back, since nobody would close it there."""
        if self._is_cut_off:
            raise unreachable(self.address.shown, "the client was closed", maybe_committed=False)
        with self._in_use():
            connecting = asyncio.ensure_future(engine.connect().start())
            try:
                # Cancelled half way, the pool would forget the open connection that it is preparing.
                async with answered_within(self._deadline):
                    connection = await asyncio.shield(connecting)
            except (TimeoutError, asyncio.CancelledError) as error:
                self._abandoned.add(abandoning := asyncio.ensure_future(self._abandon(connecting)))
                abandoning.add_done_callback(self._abandoned.discard)
                if isinstance(error, TimeoutError):
                    said = f"no answer within {self._deadline or CLIENT_SECONDS:g} s"  # our timeout, or the driver's
                    raise unreachable(self.address.shown, said, maybe_committed=False) from error
                raise
            try:
                yield connection
            finally:
                await self._give_back(connection)

    def _alarm(self, connection: AsyncConnection) -> AbstractContextManager[None]:
        """Break the connection off at the deadline: asking a silent server to cancel could take as long again."""
        if self._deadline is None or connection.sync_connection is None:
            return nullcontext()
        driver: Any = connection.sync_connection.connection.driver_connection
        return alarm(self._deadline, driver.terminate)

    async def _abandon(self, connecting: "asyncio.Future[AsyncConnection]") -> None:
        with self._in_use(), suppress(Exception):  # nobody waits for the error
            await self._give_back(await connecting)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._users += 1
        self._is_unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._is_unused.set()

    async def _give_back(self, connection: AsyncConnection) -> None:
        if self._is_closed:
            await connection.invalidate()
        await connection.__aexit__(None, None, None)  # unlike close(), this is not cancelled half way

    async def close(self) -> None:
        """Close the connections; those in use, for which it waits a bounded time, close when they come back."""
        self._is_closed = True
        if self._users:
            with suppress(TimeoutError):
                async with asyncio.timeout(PARTING_SECONDS):
                    await self._is_unused.wait()
        try:
            async with answered_within(FAREWELL_SECONDS):
                await self._engine.dispose()
                await self._patient.dispose()
        except TimeoutError:
            self.cut_off()


def create_engine(address: Address, *, connect_timeout: float) -> AsyncEngine:
    if address.dialect == "sqlite":
        return _sqlite_engine(address, create=False)
    return _postgres_engine(
        address,
        connect_timeout,
        CLIENT_SECONDS,
        pool_size=HELD,
        max_overflow=MORE,
        pool_pre_ping=True,
        pool_timeout=connect_timeout + STATEMENT_SECONDS,
    )


def migration_engine(address: Address, *, connect_timeout: float) -> AsyncEngine:
    """Create an engine whose statements may take as long as they need, and which creates an SQLite file."""
    if address.dialect == "sqlite":
        return _sqlite_engine(address, create=True).execution_options(forge_write=True)
    return _postgres_engine(address, connect_timeout, None, MIGRATION, poolclass=NullPool)


def _patient_engine(address: Address, connect_timeout: float) -> AsyncEngine:
    """Create an engine with one connection for each long read, since the client's timeout belongs to a connection."""
    engine = _postgres_engine(address, connect_timeout, LONG_SECONDS + ANSWER_SECONDS, poolclass=NullPool)
    longer = f"SET LOCAL statement_timeout = {LONG_SECONDS * 1000:.0f}"
    event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql(longer))
    return engine


def _postgres_engine(
    address: Address,
    connect_timeout: float,
    command_timeout: float | None,
    settings: dict[str, str] | None = None,
    **pool: Any,
) -> AsyncEngine:
    async def connect() -> Any:
        return await connect_postgres(
            address, timeout=connect_timeout, settings=settings, command_timeout=command_timeout
        )

    load_asyncpg()
    arguments = {"async_creator_fn": connect, **(UNNAMED_ADAPTER if address.is_pooled else {})}
    engine = create_async_engine("postgresql+asyncpg://", connect_args=arguments, **pool)
    event.listen(engine.sync_engine, "handle_error", _let_go_of_read_only)
    return engine


def _let_go_of_read_only(context: ExceptionContext) -> None:
    if is_of_read_only(context.original_exception):
        context.is_disconnect = True


def _sqlite_engine(address: Address, *, create: bool) -> AsyncEngine:
    query = {"mode": "rwc" if create else "rw", "uri": "true"}
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=f"file:{quote(address.target)}", query=query),
        connect_args={"isolation_level": None, "timeout": BUSY_SECONDS, "factory": ForkableConnection},
        pool_size=2,
        max_overflow=3,
    )
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.create_function("forge_now", 1, forge_now)
    connection.create_function("forge_is_text", 1, _is_text)
    connection.driver_connection.text_factory = READ_TEXT
    cursor = connection.cursor()
    for statement in SQLITE_SETUP:
        cursor.execute(statement)
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at the start: on a busy file, a transaction that reads first can only fail when it writes.

    A write keeps the journal of its statements in memory, lest a full /tmp keep rows out of a database that has room. A
    read sorts in temporary files, since that may need more than fits in memory.
    """
    writes = connection.get_execution_options().get("forge_write", False)
    adapted: Any = connection.connection.dbapi_connection
    # A cursor, its statement and its end would each wait for the thread of the connection.
    store, begin = ("MEMORY", "BEGIN IMMEDIATE") if writes else ("DEFAULT", "BEGIN")
    adapted.run_async(lambda driver: driver.executescript(f"PRAGMA temp_store = {store}; {begin}"))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
