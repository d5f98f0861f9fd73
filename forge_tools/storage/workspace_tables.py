"""The tables of workspaces: which host has which, and what sessions work in."""

from sqlalchemy import Column, Text

from forge_tools.storage.columns import Flag, JsonList, Moment, table

workspaces = table(
    "workspaces",
    Column("name", Text, primary_key=True),
    Column("boot", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("shared", Flag, nullable=False),
    Column("roots", JsonList, nullable=False),
    Column("announced_at", Moment, nullable=False),
)
"""What each boot of a worker has by name; whether it lives, `workers` tells."""

session_workspaces = table(
    "session_workspaces",
    Column("session_id", Text, primary_key=True),
    Column("workspace", Text, nullable=False),
    Column("bound_at", Moment, nullable=False),
)
