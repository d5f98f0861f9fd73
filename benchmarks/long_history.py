"""A history of millions of calls by bulk load, on PostgreSQL and on SQLite, in a folder that may be kept for later runs."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from benchmarks.counters import in_database
from benchmarks.processes import ROOT
from forge_tools.config import Settings
from forge_tools.embedded.stack import settings_environment
from forge_tools.model.execution import id_floor
from forge_tools.storage import migrate, open_store
from forge_tools.storage.columns import MOMENT_FORMAT
from forge_tools.storage.history.rollups import hour_at
from tests import services
from tests.services import GivenPostgres, PostgresServer

DATABASE = "forge_history"
STEP_MS = 260
"""Between two calls of the history: ten million of them are a month."""

WAITING = 200
"""The newest have not run: they wait in a queue that no worker of a measure serves."""

CHUNK = 500_000
LOAD_SECONDS = 3600

# What agents ask for in bursts: eight tools of which one is rare, 200 agents, 50 calls a session, one failure in 150.
ID = """(lpad(to_hex($1::bigint + n * $2::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
  || substr(md5(n::text), 4, 15))::uuid"""
QUEUED = "to_timestamp(($1::bigint + n * $2::bigint) / 1000.0)"
ASKED = f"""
INSERT INTO executions (id, tool, tool_key, tool_version, tool_digest, category, parameters, context, options,
  agent_id, session_id, queue, lane, timeout, timeout_source, soft_time_limit, time_limit, max_attempts, idempotent,
  delay, expires_in, submitted_by, queued_at)
SELECT {ID}, tool, tool || '@1', '1.0.0', md5(tool),
  CASE tool WHEN 'Rare' THEN 'mcp' WHEN 'Fetch' THEN 'web' WHEN 'Bash' THEN 'execution' ELSE 'file' END,
  json_build_object('pattern', 'TODO ' || n, 'path', 'src/' || n % 1000), '{{"working_dir":"."}}', '{{}}',
  'agent-' || (hashint4(n + 1) & 65535) % 200, 'session-' || n / 50,
  CASE WHEN n % 100000 = 3 THEN 'host.build-7' WHEN n % 5 = 0 OR n > $5 THEN 'background' ELSE 'default' END,
  'async', 120, 'default', 125, 127, 3, true, 0, 600, 'forge@laptop', {QUEUED}
FROM generate_series($3::int, $4::int) n, LATERAL (SELECT CASE WHEN n % 10000 = 0 THEN 'Rare' ELSE
  (ARRAY['Grep', 'Read', 'Bash', 'Edit', 'Glob', 'Fetch', 'Write'])[1 + (hashint4(n) & 1023) % 7] END AS tool) t
ON CONFLICT DO NOTHING
"""
CAME_OF_IT = f"""
INSERT INTO execution_attempts (execution_id, attempt, final, status, token, worker_id, hostname, pid, started_at,
  completed_at, duration_ms, output, error, error_code, metadata)
SELECT {ID}, CASE WHEN status = 'rejected' THEN 0 ELSE 1 END, true, status,
  CASE WHEN started THEN md5('token' || n)::uuid END, CASE WHEN started THEN '0190a3c4-worker-of-some-host-1234567' END,
  CASE WHEN started THEN 'host-' || n % 4 END, CASE WHEN started THEN 4321 END,
  CASE WHEN started THEN {QUEUED} + make_interval(secs => 0.005 + (hashint4(n + 5) & 1023) / 5000.0) END,
  {QUEUED} + interval '7 s', CASE WHEN started THEN (hashint4(n + 3) & 65535) / 10.0 END,
  CASE WHEN status = 'succeeded' THEN to_json('what the tool put out, a line or two: ' || repeat('x', 100)) END,
  CASE status WHEN 'failed' THEN 'Disk full on /dev/sd' || n % 7 || ' while writing block ' || n
    WHEN 'timed_out' THEN 'Tool timed out after 5s' WHEN 'rejected' THEN 'There is no tool of that name'
    WHEN 'lost' THEN 'Its worker went away' END,
  CASE status WHEN 'failed' THEN 'EXECUTION_ERROR' WHEN 'timed_out' THEN 'TIMEOUT' WHEN 'rejected' THEN 'NOT_FOUND'
    WHEN 'lost' THEN 'LOST' END, '{{}}'
FROM generate_series($3::int, least($4::int, $5::int)) n,
  LATERAL (SELECT CASE WHEN n % 200 = 0 THEN 'failed' WHEN n % 1000 = 1 THEN 'timed_out' WHEN n % 3000 = 5 THEN 'rejected'
    WHEN n % 50000 = 7 THEN 'lost' ELSE 'succeeded' END AS status) s,
  LATERAL (SELECT status NOT IN ('rejected', 'lost') AS started) r
ON CONFLICT DO NOTHING
"""
WAITS = f"""
INSERT INTO execution_queue (id, tool_key, queue, lane, max_attempts, idempotent, status, attempt, not_before,
  expires_at, expires_in)
SELECT {ID}, 'Waits@1', 'background', 'async', 3, true, 'queued', 0, {QUEUED}, {QUEUED} + interval '400 days', 600
FROM generate_series(greatest($3::int, $5::int + 1), $4::int) n
ON CONFLICT DO NOTHING
"""
HAPPENED = f"""
INSERT INTO execution_events (execution_id, at, kind, actor, detail)
SELECT {ID}, {QUEUED} + interval '3 s', CASE WHEN n % 200 = 2 THEN 'requeued' WHEN n % 100000 = 7 THEN 'lost' ELSE 'cancel' END,
  'forge@laptop', json_build_object('reason', 'of ' || n)
FROM generate_series($3::int, least($4::int, $5::int)) n WHERE (n % 200 = 2 OR n % 100000 = 7 OR n % 1500 = 4)
  AND NOT EXISTS (SELECT FROM execution_events v WHERE v.execution_id = {ID})
"""
COLUMNS = """
SELECT table_name::text, column_name::text FROM information_schema.columns
WHERE table_schema = 'public' ORDER BY table_name, ordinal_position
"""
INDEXES = "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = 'public'"
TABLES = {
    "executions": "SELECT * FROM executions WHERE id >= $1::uuid ORDER BY id",
    "execution_attempts": "SELECT * FROM execution_attempts WHERE execution_id >= $1::uuid ORDER BY execution_id",
    "execution_queue": "SELECT * FROM execution_queue WHERE id >= $1::uuid ORDER BY id",
    "execution_events": "SELECT * FROM execution_events WHERE execution_id >= $1::uuid ORDER BY id",
}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LongHistory:
    """How long it is, and when it ends. Of `rows` on PostgreSQL the newest `small` are on SQLite as well, sealed.

    `old` more, older ones are on PostgreSQL for a prune to take away.
    """

    rows: int
    small: int
    old: int
    newest_ms: int

    @property
    def total(self) -> int:
        return self.rows + self.old

    @property
    def newest(self) -> datetime:
        return datetime.fromtimestamp(self.newest_ms / 1000).astimezone()

    def moment(self, number: int) -> datetime:
        """When the call of that number was queued; the oldest has 1, the newest `total`."""
        return datetime.fromtimestamp((self._first_ms + number * STEP_MS) / 1000).astimezone()

    @property
    def _first_ms(self) -> int:
        return self.newest_ms - self.total * STEP_MS

    def chunk(self, start: int, end: int) -> tuple[int, ...]:
        """What the statements of the load take for the calls of these numbers."""
        return (self._first_ms, STEP_MS, start, end, self.total - WAITING)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """What was loaded there.

        Raises:
            FileNotFoundError: nothing was, or not to the end.
        """
        return cls(**json.loads((folder / "history.json").read_text()))

    def note(self, folder: Path) -> None:
        (folder / "history.json").write_text(json.dumps(asdict(self)) + "\n")


class KeptPostgres(PostgresServer):
    """A PostgreSQL whose folder another process may have made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, fsync=True)
        known = folder / "password"
        if known.exists():
            self._password = known.read_text()


def load(folder: Path, administration: str, history: LongHistory, tell: Tell) -> None:
    """Fill a database of its own on that server, and a file in `folder`."""
    url = history_url(administration)
    services.admin(administration, f'CREATE DATABASE "{DATABASE}" TEMPLATE template0')
    migrate.upgrade(url)
    began = time.monotonic()
    for start in range(1, history.total + 1, CHUNK):
        end = min(start + CHUNK - 1, history.total)
        _fill(url, history, start, end)
        tell(f"PostgreSQL: {end:,} of {history.total:,} calls, {time.monotonic() - began:.0f} s")
    _settle(url)
    tell(f"SQLite: the newest {history.small:,} of them")
    _copy(url, folder / "history.db", history)
    tell("SQLite: sealing")
    _seal(folder)
    _roll_up(url, folder / "history.db", tell)
    history.note(folder)
    tell(f"loaded in {time.monotonic() - began:.0f} s")


def renew(administration: str, history: LongHistory) -> None:
    """Put those back that a prune took away."""
    url = history_url(administration)
    _fill(url, history, 1, history.old)
    in_database(url, partial(_unroll, history.moment(0), history.moment(history.old)))
    _settle(url)


def fit(folder: Path, administration: str, tell: Tell) -> None:
    """Bring a kept history to the tables of this code, with the indexes that it makes; refuse it where columns differ still."""
    url, file = history_url(administration), folder / "history.db"
    postgres = GivenPostgres(administration)
    new_url, new_file = postgres.create_database(), folder / "new.db"
    try:
        for one in (url, new_url, f"sqlite:///{file}", f"sqlite:///{new_file}"):
            migrate.upgrade(one)
        there, made = _shape(url), _shape(new_url)
        changes = list(index_changes(_indexes(file), _indexes(new_file)))
    finally:
        postgres.stop()
        new_file.unlink(missing_ok=True)
    if different := made.columns ^ there.columns:
        raise RuntimeError(
            f"The kept history has not the columns of this code: load it again, with --keep. {different}"
        )
    with closing(sqlite3.connect(file)) as connection:
        for change in changes:
            tell(f"SQLite: {change}")
            connection.execute(change)
    for change in index_changes(there.indexes, made.indexes):
        tell(f"PostgreSQL: {change}")
        _run(url, change)
    if in_database(url, partial(_clear, LongHistory.of_folder(folder))):
        tell("PostgreSQL: clearing what earlier measures left")
        _settle(url)
    _roll_up(url, file, tell)


def history_url(administration: str) -> str:
    return urlunsplit(urlsplit(administration)._replace(path=f"/{DATABASE}"))


async def _clear(history: LongHistory, connection: Any) -> bool:
    """Take away what is newer than the history; whether there was anything."""
    beyond = id_floor(history.newest_ms / 1000 + 1)
    await _unroll(history.newest, history.newest + timedelta(days=400), connection)
    for table in ("executions", "execution_attempts", "execution_queue", "execution_events"):
        key = "id" if table in ("executions", "execution_queue") else "execution_id"
        done = await connection.execute(f"DELETE FROM {table} WHERE {key} >= $1::uuid", beyond, timeout=LOAD_SECONDS)
        if table == "executions" and done == "DELETE 0":
            return False
    return True


async def _unroll(start: datetime, end: datetime, connection: Any) -> None:
    """Have hours counted again whose calls came or went by other ways than those of the product."""
    bounds = hour_at(start), hour_at(end)
    await connection.execute("DELETE FROM rollup_hours WHERE hour BETWEEN $1 AND $2", *bounds)


@dataclass(frozen=True, slots=True)
class _Shape:
    columns: frozenset[tuple[str, str]]
    indexes: Mapping[str, str]


def _shape(url: str) -> _Shape:
    async def read(connection: Any) -> _Shape:
        columns, indexes = await connection.fetch(COLUMNS), await connection.fetch(INDEXES)
        return _Shape(frozenset((table, column) for table, column in columns), dict(indexes))

    return in_database(url, read)


def _indexes(file: Path) -> Mapping[str, str]:
    with closing(sqlite3.connect(file)) as connection:
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"))


def index_changes(there: Mapping[str, str], made: Mapping[str, str]) -> Iterator[str]:
    """The statements that make the indexes that are there those of this code; each has its statement by its name."""
    for name in there:
        if made.get(name) != there[name]:
            yield f"DROP INDEX {name}"
    for name in made:
        if made[name] != there.get(name):
            yield made[name]


def _run(url: str, *statements: str) -> None:
    async def work(connection: Any) -> None:
        for statement in statements:
            await connection.execute(statement, timeout=LOAD_SECONDS)

    in_database(url, work)


def _fill(url: str, history: LongHistory, start: int, end: int) -> None:
    async def work(connection: Any) -> None:
        for statement in (ASKED, CAME_OF_IT, WAITS, HAPPENED):
            await connection.execute(statement, *history.chunk(start, end), timeout=LOAD_SECONDS)

    in_database(url, work)


def _settle(url: str) -> None:
    """Do what the server would do by itself within minutes, so that it does not do it during a measurement."""
    _run(url, "VACUUM (ANALYZE)", "CHECKPOINT")


def _copy(url: str, path: Path, history: LongHistory) -> None:
    migrate.upgrade(f"sqlite:///{path}")
    oldest_ms = int(history.moment(history.total - history.small + 1).timestamp() * 1000)
    floor = f"{oldest_ms:012x}".ljust(32, "0")
    with closing(sqlite3.connect(path, check_same_thread=False)) as file:
        file.execute("PRAGMA synchronous = OFF")
        for table, query in TABLES.items():
            in_database(url, _copying(file, table, query, floor))
            file.commit()
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _copying(file: sqlite3.Connection, table: str, query: str, floor: str) -> Callable[[Any], Awaitable[None]]:
    async def work(connection: Any) -> None:
        async with connection.transaction():
            rows: list[Sequence[Any]] = []
            async for row in connection.cursor(query, floor, prefetch=5_000):
                rows.append([_as_sqlite_keeps_it(value) for value in row])
                if len(rows) == 5_000:
                    _insert(file, table, list(row.keys()), rows)
                    rows = []
            if rows:
                _insert(file, table, list(row.keys()), rows)

    return work


def _insert(file: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    marks = ", ".join("?" * len(columns))
    file.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)


def _as_sqlite_keeps_it(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    return value.strftime(MOMENT_FORMAT) if isinstance(value, datetime) else str(value)


def _roll_up(url: str, file: Path, tell: Tell) -> None:
    """As workers have done it in the months of a history."""

    async def roll_up(database: str) -> int:
        async with await open_store(database) as store:
            return len([one async for one in store.rollups.sweep()])

    for name, database in (("PostgreSQL", url), ("SQLite", f"sqlite:///{file}")):
        if hours := asyncio.run(roll_up(database)):
            tell(f"{name}: {hours:,} hours rolled up")


def _seal(folder: Path) -> None:
    settings = Settings.load(home=folder / "home", database_url=f"sqlite:///{folder / 'history.db'}")
    command(settings, "audit", "seal")


def command(settings: Settings, *arguments: str) -> None:
    """Run `forge-tools` to its end."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "forge_tools.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **settings_environment(settings)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"forge-tools {' '.join(arguments)} failed:\n{done.stdout[-500:]}{done.stderr[-1500:]}")
