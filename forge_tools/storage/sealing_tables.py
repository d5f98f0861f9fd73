"""The table of the public halves of sealing keys."""

from sqlalchemy import Column, Text

from forge_tools.storage.columns import Moment, PublicKey, table

sealing_keys = table(
    "sealing_keys",
    Column("id", Text, primary_key=True),
    Column("public", PublicKey, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("retired_at", Moment),
)
"""The public halves, in base64, of the keys that clients seal with: the newest that is not retired."""
