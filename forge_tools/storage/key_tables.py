"""The table of idempotency keys."""

from sqlalchemy import Column, Index, Text

from forge_tools.storage.columns import Identifier, JsonObject, Moment, Seconds, table

idempotency_keys = table(
    "idempotency_keys",
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("execution_id", Identifier, nullable=False),
    Column("fingerprint", JsonObject, nullable=False),
    Column("ttl", Seconds, nullable=False),
    Column("claimed_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("idempotency_keys_execution", "execution_id", unique=True),
    Index("idempotency_keys_expiry", "expires_at"),
)
"""Which execution a key stands for, inserted and deleted, never changed.

A key holds until its execution has been over for `ttl` seconds. `expires_at` is the earliest moment at which that can be so,
counted from the claim: what no later end has to change.
"""
