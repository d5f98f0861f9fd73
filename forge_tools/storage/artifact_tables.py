"""The tables of artifacts: what is kept, its bytes in parts, and whose it is."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text

from forge_tools.storage.models import Moment, metadata

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("is_whole", Boolean, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("artifacts_expiry", "expires_at"),
)
"""One row for the same bytes, whoever kept them; nobody sees it before it `is_whole`."""

artifact_parts = Table(
    "artifact_parts",
    metadata,
    Column("artifact_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""Bytes from `start` on, each part compressed by itself, so that a page needs only the parts that it lies in."""

artifact_owners = Table(
    "artifact_owners",
    metadata,
    Column("artifact_id", Text, primary_key=True),
    Column("session_key", Text, primary_key=True),
    Column("session_id", Text),
    Column("execution_id", Text),
    Column("size", BigInteger, nullable=False),
    Column("kept_at", Moment, nullable=False),
    Index("artifact_owners_session", "session_key", "kept_at"),
    Index("artifact_owners_execution", "execution_id"),
)
"""The sessions that kept it, which alone may read it. The key is a digest: a session's id may be of any length."""
