"""The tables of workspaces: which host has which, and what sessions work in."""

from sqlalchemy import Boolean, Column, Table, Text

from forge_tools.storage.models import JsonText, Moment, metadata

workspaces = Table(
    "workspaces",
    metadata,
    Column("name", Text, primary_key=True),
    Column("boot", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("shared", Boolean, nullable=False),
    Column("roots", JsonText, nullable=False),
    Column("announced_at", Moment, nullable=False),
)
"""What each boot of a worker has by name; whether it lives, `workers` tells."""

session_workspaces = Table(
    "session_workspaces",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("workspace", Text, nullable=False),
    Column("bound_at", Moment, nullable=False),
)
