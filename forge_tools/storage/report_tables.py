"""The table of reports: what the tools of executions told while they ran."""

from sqlalchemy import BigInteger, Column, Float, Integer, Table, Text

from forge_tools.storage.models import Identifier, Moment, metadata

execution_reports = Table(
    "execution_reports",
    metadata,
    Column("execution_id", Identifier, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, nullable=False),
    Column("at", Moment, nullable=False),
    Column("done", Float),
    Column("total", Float),
    Column("text", Text),
    Column("left_out", BigInteger, nullable=False),
    postgresql_with={"fillfactor": 80},
    sqlite_with_rowid=False,
)
"""Slot 0 of an attempt is its newest progress, written over each time; the others are its output, each in the slot of its
number. `number` is the order in which the attempt told them. A call that tells nothing has no row.
"""
