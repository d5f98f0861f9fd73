"""The table of shells: those that outlive a call."""

from sqlalchemy import Column, Index, Integer, Text

from forge_tools.records import ShellStatus
from forge_tools.storage.columns import Choice, LargeCount, Moment, table

shells = table(
    "shells",
    Column("id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("cwd", Text, nullable=False),
    Column("status", Choice(ShellStatus), nullable=False),
    Column("kernel", Text, nullable=False),
    Column("pid", LargeCount, nullable=False),
    Column("start_ticks", LargeCount, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("description", Text),
    Column("session_id", Text),
    Column("agent_id", Text),
    Column("execution_id", Text),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("size", LargeCount, nullable=False),
    Column("ended_at", Moment),
    Column("updated_at", Moment, nullable=False),
    Index("shells_of_session", "session_id", postgresql_using="hash"),
)
"""Shells that outlive a call, as their hosts last saw them. Callers choose a session's id: a hash has room for any.

It holds no NULL, so those of no session, which may be most, have an index of their own.
"""

Index(
    "shells_of_nobody",
    shells.c.started_at,
    postgresql_where=shells.c.session_id.is_(None),
    sqlite_where=shells.c.session_id.is_(None),
)

Index(
    "shells_running",
    shells.c.hostname,
    postgresql_where=shells.c.status == "running",
    sqlite_where=shells.c.status == "running",
)
