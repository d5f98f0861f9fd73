"""The table of reports: what the tools of executions told while they ran."""

from sqlalchemy import Column, Text

from forge_tools.storage.columns import Count, Identifier, LargeCount, Moment, Real, table

execution_reports = table(
    "execution_reports",
    Column("execution_id", Identifier, primary_key=True),
    Column("attempt", Count, primary_key=True, autoincrement=False),
    Column("slot", Count, primary_key=True, autoincrement=False),
    Column("number", Count, nullable=False),
    Column("at", Moment, nullable=False),
    Column("done", Real),
    Column("total", Real),
    Column("text", Text),
    Column("left_out", LargeCount, nullable=False),
    postgresql_with={"fillfactor": 80},
    sqlite_with_rowid=False,
)
"""Slot 0 of an attempt is its newest progress, written over each time; the others are its output, each in the slot of its
number. `number` is the order in which the attempt told them. A call that tells nothing has no row.
"""
