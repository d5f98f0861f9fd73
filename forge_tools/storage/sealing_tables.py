"""The table of the public halves of sealing keys."""

from sqlalchemy import Column, Table, Text

from forge_tools.storage.models import Moment, metadata

sealing_keys = Table(
    "sealing_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("public", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("retired_at", Moment),
)
"""The public halves, in base64, of the keys that clients seal with: the newest that is not retired."""
