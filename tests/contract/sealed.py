"""A history that is sealed, and the SQL of somebody who would rather have another one."""

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Float, Integer, Table, text

from forge_tools.model import ExecutionStatus
from forge_tools.model.audit import AuditReport
from forge_tools.storage import Store
from forge_tools.storage.audit import Signer, Trust
from forge_tools.storage.sqlalchemy_tables import Identifier, Json, MomentText
from tests.contract.calls import UNKNOWN, claimed, ended, finish_one, finished, running, submitted
from tests.services import admin
from tests.waiting import within


async def past(store: Store, count: int = 3) -> list[str]:
    """Calls that are over: the first was tried twice, was cancelled in vain, and one that was fenced off reported late."""
    claim = await running(store, agent_id="agent-7", session_id="s-1", max_attempts=3, idempotent=True)
    failed = ended(claim, ExecutionStatus.FAILED, error="x", error_code="TOOL_ERROR", duration_ms=5.0, retry_in=0.0)
    await finish_one(store, failed)
    again = await claimed(store, claim.id, 1)
    await store.transitions.cancel(claim.id, actor="root", reason="no more")
    done = ended(again, output='["a"]', duration_ms=3.25, metadata='{"n":1.0}', error_details='["d"]')
    await finish_one(store, done)
    await finish_one(store, ended(claim, output='"late"'))
    others = [await submitted(store) for _ in range(count - 1)]
    await finished(store, others)
    return [claim.id, *others]


async def sealed_past(store: Store, signer: Signer | None = None, count: int = 3) -> list[str]:
    ids = await past(store, count)
    await seal_all(store, signer)
    return ids


async def seal_all(store: Store, signer: Signer | None = None, most: int = 500) -> int:
    count, behind = 0, None
    for _ in within(60, "there is always more to seal"):
        sealed = await store.audit.seal(signer, sealer="tester", most=most, behind=behind)
        if sealed is None:
            break
        count, behind = count + sealed.executions, sealed.ended_until or behind
    return count


def lift_the_checks(url: str) -> None:
    """Take from every table what it refuses, as its owner can who would rather have another history."""
    if url.startswith("postgresql"):
        admin(url, _WITHOUT_CHECKS)
        return
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall():
            lax = re.sub(
                r",?\s+STRICT\s*$", "", re.sub(r", \n\tCONSTRAINT \w+_check CHECK [^\n]*?(?=, \n|\n)", "", sql)
            )
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (lax, name))


@pytest.fixture
def migrated_sqlite(migrated_sqlite: str) -> str:
    lift_the_checks(migrated_sqlite)
    return migrated_sqlite


@pytest.fixture
def migrated_postgres(migrated_postgres: str) -> str:
    lift_the_checks(migrated_postgres)
    return migrated_postgres


_WITHOUT_CHECKS = """
DO $$ DECLARE it record; BEGIN
  FOR it IN SELECT conname, CASE WHEN contypid = 0 THEN 'TABLE ' || conrelid::regclass ELSE 'DOMAIN ' || contypid::regtype END AS of
    FROM pg_constraint WHERE contype = 'c' AND conname LIKE '%_check' AND connamespace = 'public'::regnamespace LOOP
    EXECUTE format('ALTER %s DROP CONSTRAINT %I', it.of, it.conname);
  END LOOP;
END $$
"""


async def forge(store: Store, *statements: str) -> None:
    """Run SQL as whoever owns the database can."""

    async def work(connection: object) -> None:
        for statement in statements:
            await connection.exec_driver_sql(statement)

    await store.database.write(work)


@asynccontextmanager
async def put_back(store: Store, *tables: Any) -> AsyncIterator[None]:
    """Have these tables be as they were after whatever is done to them meanwhile."""
    await forge(store, *(f"CREATE TABLE kept_{table.name} AS SELECT * FROM {table.name}" for table in tables))
    yield
    again = "OVERRIDING SYSTEM VALUE " if store.dialect == "postgresql" else ""
    for table in tables:
        rows = f"INSERT INTO {table.name} {again}SELECT * FROM kept_{table.name}"
        await forge(store, f"DELETE FROM {table.name}", rows, f"DROP TABLE kept_{table.name}")


async def verified(store: Store, signer: Signer | None = None, **options: object) -> AuditReport:
    trust = Trust([signer.public]) if signer else Trust()
    return await store.audit.verify(trust, **options)


def said(report: AuditReport) -> set[tuple[str, str]]:
    """What is wrong with which table."""
    return {(finding.fault.value, finding.table) for finding in report.findings}


def another_value(column: Column[object], dialect: str) -> str:
    """SQL for a value of that type that is not the one there."""
    name = f'"{column.name}"'
    on_postgres = dialect == "postgresql"
    match column.type:
        case MomentText():
            changed = f"{name} + interval '1 microsecond'" if on_postgres else f"substr({name}, 1, 25) || 'x'"
            return f"coalesce({changed}, {'now()' if on_postgres else repr('2026-01-01 00:00:00.000000')})"
        case Json():
            return "'{\"forged\":1}'"
        case Boolean():
            return f"NOT {name}"
        case Float():
            return f"coalesce({name} + 0.001, 1.5)"
        case Integer():
            return f"coalesce({name} + 1, 1)"
        case _:
            return f"'{UNKNOWN}'" if column.type is Identifier else "'forged'"


def changing(table: Table, column: Column[object], dialect: str, where: str) -> str:
    return str(text(f'UPDATE {table.name} SET "{column.name}" = {another_value(column, dialect)} WHERE {where}'))
