"""The tables of artifacts: what is kept, its bytes in parts, and whose it is."""

from hashlib import blake2b

from sqlalchemy import Column, Index, LargeBinary, Text

from forge_tools.storage.columns import Count, Flag, LargeCount, Moment, table

artifacts = table(
    "artifacts",
    Column("id", Text, primary_key=True),
    Column("size", LargeCount, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("is_whole", Flag, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("artifacts_expiry", "expires_at"),
)
"""One row for the same bytes, whoever kept them; nobody sees it before it `is_whole`."""

artifact_parts = table(
    "artifact_parts",
    Column("artifact_id", Text, primary_key=True),
    Column("number", Count, primary_key=True, autoincrement=False),
    Column("start", LargeCount, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("breaks", Count),
)
"""Bytes from `start` on, each part compressed by itself, so that a page needs only the parts that it lies in.

`breaks` counts the lines that end in it. Where artifacts are kept in a folder `data` is empty: the bytes are in a file.
"""

artifact_owners = table(
    "artifact_owners",
    Column("artifact_id", Text, primary_key=True),
    Column("session_key", Text, primary_key=True),
    Column("session_id", Text),
    Column("execution_id", Text),
    Column("size", LargeCount, nullable=False),
    Column("kept_at", Moment, nullable=False),
    Index("artifact_owners_session", "session_key", "kept_at"),
    Index("artifact_owners_execution", "execution_id"),
)
"""The sessions that kept it, which alone may read it. The key is a digest: a session's id may be of any length."""


def session_key(session_id: str | None) -> str:
    """A session as the key of a row; calls of no session share one."""
    if session_id is None:
        return ""
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
