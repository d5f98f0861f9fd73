"""The tables of figures that are kept by the hour."""

from sqlalchemy import Column, Text

from forge_tools.storage.columns import Count, Identifier, LargeCount, Moment, Numbers, table

rollup_hours = table(
    "rollup_hours",
    Column("hour", Moment, primary_key=True),
    Column("token", Identifier),
    Column("rolled_at", Moment),
    Column("calls", LargeCount),
)
"""One row an hour that was counted, or is to be again: then `rolled_at` is NULL. `token` is of who counts it at the moment."""

rollup_figures = table(
    "rollup_figures",
    Column("grouped_by", Text, primary_key=True),
    Column("hour", Moment, primary_key=True),
    Column("number", Count, primary_key=True, autoincrement=False),
    Column("tool", Text),
    Column("category", Text),
    Column("queue", Text),
    Column("agent_id", Text),
    Column("session_id", Text),
    Column("calls", LargeCount, nullable=False),
    Column("succeeded", LargeCount, nullable=False),
    Column("failed", LargeCount, nullable=False),
    Column("rejected", LargeCount, nullable=False),
    Column("durations", Numbers, nullable=False),
    Column("waits", Numbers, nullable=False),
)
"""The calls that were queued in an hour, once told apart by `tool` (and category and queue), once by `agent`, once by `session`.

`durations` and `waits` are milliseconds, in ascending order. A row counts only while its hour is rolled up.
"""
