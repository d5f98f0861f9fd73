"""The tables of the audit chain: its batches, and for each execution and event the batch that holds its hashes."""

from sqlalchemy import Column, Index, LargeBinary, Text

from forge_tools.storage.columns import Count, Identifier, JsonObject, LargeCount, Moment, table

audit_batches = table(
    "audit_batches",
    Column("sequence", LargeCount, primary_key=True, autoincrement=False),
    Column("format", Count, nullable=False),
    Column("kind", Text, nullable=False),
    Column("executions", Count, nullable=False),
    Column("events", Count, nullable=False),
    Column("ended_from", Moment),
    Column("ended_until", Moment),
    Column("frontier", Moment),
    Column("event_frontier", LargeCount, nullable=False),
    Column("root", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("sealed_at", Moment, nullable=False),
    Column("sealer", Text, nullable=False),
    Column("detail", JsonObject, nullable=False),
    Column("key_id", Text),
    Column("hash", Text, nullable=False),
    Column("signature", Text),
)
"""One row a batch: what it covers (`kind` seal) or what was deleted (`kind` prune), never changed.

`root` is the hash over its lines, `hash` that over all its columns before it, `previous` the `hash` of the batch before.
`frontier` and `event_frontier` say how far the chain has come: the latest end and event of all batches so far.
"""

audit_executions = table(
    "audit_executions",
    Column("execution_id", Identifier, primary_key=True),
    Column("batch", LargeCount, nullable=False),
    Column("hashes", LargeBinary, nullable=False),
    Column("pruned_by", LargeCount),
    Index("audit_executions_batch", "batch"),
)
"""The hash of an execution's row, then the number and the hash of each of its attempts."""

audit_events = table(
    "audit_events",
    Column("event_id", LargeCount, primary_key=True, autoincrement=False),
    Column("batch", LargeCount, nullable=False),
    Column("hashes", LargeBinary, nullable=False),
    Column("pruned_by", LargeCount),
    Index("audit_events_batch", "batch"),
)
"""Events have entries of their own: one may be added to an execution that was sealed long ago, such as a late finish."""
