"""The tables: history is insert-only, what changes is narrow.

Whatever else names columns (lists to insert or read, casts, checks, grants) is made from these definitions.
"""

from typing import get_args

from forge_tools.model.documents import DocumentScopeKind
from forge_tools.model.execution import TERMINAL, ExecutionStatus
from forge_tools.model.places import ShellStatus
from forge_tools.model.scope import Stream
from forge_tools.model.tools import Lane
from forge_tools.storage.columns import (
    Bytes,
    Column,
    Count,
    Flag,
    Identifier,
    Index,
    Integer,
    JsonList,
    JsonObject,
    JsonText,
    LargeCount,
    Moment,
    Numbers,
    PositiveCount,
    PublicKey,
    Real,
    Relation,
    Seconds,
    Text,
    choice,
)

SCHEMA_REVISION = "0001"
"""The newest migration: a number and, if older code can work on its tables, the oldest that can: `0003_from_0002`."""

DEFAULT_QUEUE = "default"
"""Most calls are in this queue, so an index that leaves them out is small."""

LANE = choice(get_args(Lane))

executions = Relation(
    "executions",
    Column("id", Identifier, primary_key=True),
    Column("tool", Text, nullable=False),
    Column("tool_key", Text, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("tool_digest", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("parameters", JsonObject, nullable=False),
    Column("encrypted_names", JsonList),
    Column("context", JsonObject, nullable=False),
    Column("options", JsonObject, nullable=False),
    Column("agent_id", Text),
    Column("session_id", Text),
    Column("queue", Text, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("timeout", Seconds, nullable=False),
    Column("timeout_source", Text, nullable=False),
    Column("soft_time_limit", Seconds, nullable=False),
    Column("time_limit", Seconds, nullable=False),
    Column("max_attempts", PositiveCount, nullable=False),
    Column("idempotent", Flag, nullable=False),
    Column("delay", Seconds, nullable=False),
    Column("expires_in", Seconds, nullable=False),
    Column("reply_to", Text),
    Column("idempotency_key", Text),
    Column("replay_of", Identifier),
    Column("submitted_by", Text),
    Column("queued_at", Moment, nullable=False),
    Index("executions_queued_at", ("queued_at",), method="brin"),
    Index("executions_by_tool", ("tool", "id")),
    Index("executions_by_agent", ("agent_id", "id")),
    Index("executions_by_session", ("session_id", "id")),
    Index("executions_by_category", ("category", "id")),
    Index("executions_by_queue", ("queue", "id"), where=f"queue != '{DEFAULT_QUEUE}'"),
)
"""What was asked, inserted once. `parameters` is what people may see; the values of `encrypted_names` are encrypted in
the queue, and deleted with the row there. Ids are in the order of time, so each index ends with them.
"""

execution_queue = Relation(
    "execution_queue",
    Column("id", Identifier, primary_key=True),
    Column("tool_key", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("status", choice(status for status in ExecutionStatus if status not in TERMINAL), nullable=False),
    Column("attempt", Count, nullable=False),
    Column("max_attempts", PositiveCount, nullable=False),
    Column("idempotent", Flag, nullable=False),
    Column("token", Identifier),
    Column("owner", Text),
    Column("hostname", Text),
    Column("pid", Count),
    Column("not_before", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("expires_in", Seconds, nullable=False),
    Column("started_at", Moment),
    Column("cancel_requested_at", Moment),
    Column("encrypted", Text),
    Column("reply_key", Text),
    Index("execution_queue_due", ("lane", "tool_key", "queue", "not_before")),
    Index("execution_queue_expiry", ("expires_at",)),
    Index("execution_queue_cancels", ("id",), where="cancel_requested_at IS NOT NULL"),
    postgresql_with={"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.05},  # room for a claim on the row's page
    sqlite_with_rowid=False,  # the row lies in its key's own tree: one to write, not two
)
"""Executions that are not over. No index uses a column that a claim changes: that would end heap-only updates."""

NOBODY: dict[str, None] = dict.fromkeys(("token", "owner", "hostname", "pid", "started_at"))
"""The columns of the queue that say who runs an execution, with their values while nobody does."""

execution_attempts = Relation(
    "execution_attempts",
    Column("execution_id", Identifier, primary_key=True),
    Column("attempt", Count, primary_key=True),
    Column("final", Flag, nullable=False),
    Column("status", choice(sorted(TERMINAL)), nullable=False),
    Column("token", Identifier),
    Column("worker_id", Text),
    Column("hostname", Text),
    Column("pid", Count),
    Column("started_at", Moment),
    Column("completed_at", Moment, nullable=False),
    Column("duration_ms", Real),
    Column("output", JsonText),
    Column("error", Text),
    Column("error_code", Text),
    Column("error_details", JsonText),
    Column("diagnosis", JsonText),
    Column("metadata", JsonObject, nullable=False),
    Index("execution_attempts_completed", ("completed_at",)),
    Index("execution_attempts_notable", ("status", "execution_id"), where="status != 'succeeded'"),
    Index("execution_attempts_failures", ("execution_id",), where="status != 'succeeded'"),  # for texts of errors
    Index("execution_attempts_by_code", ("error_code", "execution_id"), where="error_code IS NOT NULL"),
)
"""One row per start of a body, inserted when it ends; or the end of one that never started (`started_at` NULL).
`token` is the finisher's; a row written by recovery has none, so that a late finish never mistakes it for its own.
"""

execution_events = Relation(
    "execution_events",
    Column("id", LargeCount, primary_key=True, autoincrement=True),
    Column("execution_id", Identifier, nullable=False),
    Column("at", Moment, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("detail", JsonObject, nullable=False),
    Column("token", Identifier),
    Index("execution_events_once", ("execution_id", "kind", "token"), unique=True),
    Index("execution_events_by_time", ("at", "id")),
    Index("execution_events_by_kind", ("kind", "at", "id")),
    sqlite_autoincrement=True,  # the number of a pruned event is never reused
)
"""What was done to an execution, by whom and why. A token makes a repeated write of one event harmless."""

tools = Relation(
    "tools",
    Column("name", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("category", Text, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("timeout", Seconds),
    Column("spec", JsonObject, nullable=False),
    Column("enabled", Flag, nullable=False),
    Column("is_default", Flag, nullable=False),
    Column("first_seen_at", Moment, nullable=False),
    Column("last_seen_at", Moment, nullable=False),
    Column("walls", Text, nullable=False),
    Column("moved", Flag, nullable=False),
    Column("demoted_at", Moment),
    Column("demoted_reason", Text),
    Column("pinned_at", Moment),
    Index("tools_default", ("name",), unique=True, where="is_default"),
    Index("tools_demoted", ("name",), where="demoted_at IS NOT NULL"),
    Index("tools_disabled", ("name",), where="enabled = false"),
    Index("tools_pinned", ("name",), unique=True, where="pinned_at IS NOT NULL"),
)
"""The catalogue: every definition of a tool ever published. A demoted one runs in the process lane, whatever it declares,
and so does one that its operator `moved` there for its walls; `walls` is the tier that it has in that lane.

The default of a tool is the pinned definition, else the one seen last; only by the default are calls accepted. If a
definition is pinned, no other runs.
"""

workers = Relation(
    "workers",
    Column("id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("pid", Count, nullable=False),
    Column("lane", LANE, nullable=False),
    Column("queues", JsonList, nullable=False),
    Column("concurrency", Count, nullable=False),
    Column("answering", Count),
    Column("version", Text, nullable=False),
    Column("tools", JsonObject, nullable=False),
    Column("servers", JsonList, nullable=False),
    Column("walls", JsonObject, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("last_seen_at", Moment, nullable=False),
    Column("stopped_at", Moment),
    Column("beat", LargeCount, nullable=False),
    Column("unfit", Text),
    Column("dropped_messages", LargeCount, nullable=False),
    Index("workers_not_stopped", ("id",), where="stopped_at IS NULL"),
    postgresql_with={"fillfactor": 50},
)
"""One row per worker instance (one start of a worker process). `tools` maps each hosted name to `version digest`.
`servers` is the state of its MCP servers, `walls` what it can give and which tools it leaves to others, `unfit` says why
it claims nothing, and `dropped_messages` counts messages from the broker that were not ours.
"""

leases = Relation(
    "leases",
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", Moment, nullable=False),
)

idempotency_keys = Relation(
    "idempotency_keys",
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("execution_id", Identifier, nullable=False),
    Column("fingerprint", JsonObject, nullable=False),
    Column("ttl", Seconds, nullable=False),
    Column("claimed_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("idempotency_keys_execution", ("execution_id",), unique=True),
    Index("idempotency_keys_expiry", ("expires_at",)),
)
"""Which execution a key stands for; rows are inserted and deleted, never changed.
A key holds until its execution has been over for `ttl` seconds. `expires_at` is the earliest moment at which that is
possible, counted from the claim, so that the end of the execution need not change it.
"""

execution_reports = Relation(
    "execution_reports",
    Column("execution_id", Identifier, primary_key=True),
    Column("attempt", Count, primary_key=True),
    Column("slot", Count, primary_key=True),
    Column("number", Count, nullable=False),
    Column("at", Moment, nullable=False),
    Column("done", Real),
    Column("total", Real),
    Column("text", Text),
    Column("left_out", LargeCount, nullable=False),
    Column("stream", choice(get_args(Stream)), nullable=False),
    Column("level", Count),
    postgresql_with={"fillfactor": 80},
    sqlite_with_rowid=False,
)
"""Slot 0 of an attempt is its newest progress, overwritten each time; the others are its output, each in its number's
slot. `number` is the order in which the attempt reported them. A call that reports nothing has no row.
"""

rollup_hours = Relation(
    "rollup_hours",
    Column("hour", Moment, primary_key=True),
    Column("token", Identifier),
    Column("rolled_at", Moment),
    Column("calls", LargeCount),
)
"""One row per hour counted, or to be counted again: then `rolled_at` is NULL. `token` is the current counter's."""

rollup_figures = Relation(
    "rollup_figures",
    Column("grouped_by", Text, primary_key=True),
    Column("hour", Moment, primary_key=True),
    Column("number", Count, primary_key=True),
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
"""The calls queued in an hour, grouped once by `tool` (and category and queue), once by `agent`, once by `session`.
`durations` and `waits` are milliseconds, in ascending order. A row counts only while its hour is rolled up.
"""

artifacts = Relation(
    "artifacts",
    Column("id", Text, primary_key=True),
    Column("size", LargeCount, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("is_whole", Flag, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("uploaded_by", Text),
    Index("artifacts_expiry", ("expires_at",)),
)
"""One row for equal bytes, whoever kept them; nobody sees it before it `is_whole`.
A client with a restricted role has a row of its own, whose id is twice as long, and `uploaded_by` is the client's
login, by the default of that column.
"""

artifact_parts = Relation(
    "artifact_parts",
    Column("artifact_id", Text, primary_key=True),
    Column("number", Count, primary_key=True),
    Column("start", LargeCount, nullable=False),
    Column("data", Bytes, nullable=False),
    Column("breaks", Count),
)
"""Bytes from `start` on; each part is compressed separately, so that a page needs only the parts that contain it.
`breaks` counts the lines that end in it. If artifacts are kept in a folder, `data` is empty: the bytes are in a file.
"""

artifact_owners = Relation(
    "artifact_owners",
    Column("artifact_id", Text, primary_key=True),
    Column("session_key", Text, primary_key=True),
    Column("session_id", Text),
    Column("execution_id", Text),
    Column("size", LargeCount, nullable=False),
    Column("kept_at", Moment, nullable=False),
    Index("artifact_owners_session", ("session_key", "kept_at")),
    Index("artifact_owners_execution", ("execution_id",)),
)
"""The sessions that kept it; only they may read it. The key is a digest: a session's id may have any length."""

encryption_keys = Relation(
    "encryption_keys",
    Column("id", Text, primary_key=True),
    Column("public", PublicKey, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("retired_at", Moment),
)
"""The public halves, in base64, of the keys that clients encrypt with: they use the newest that is not retired."""

workspaces = Relation(
    "workspaces",
    Column("name", Text, primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("shared", Flag, nullable=False),
    Column("roots", JsonList, nullable=False),
    Column("announced_at", Moment, nullable=False),
)
"""The workspaces of each worker instance (`instance`), by name; `workers` says whether it is live."""

session_workspaces = Relation(
    "session_workspaces",
    Column("session_id", Text, primary_key=True),
    Column("workspace", Text, nullable=False),
    Column("bound_at", Moment, nullable=False),
)

shells = Relation(
    "shells",
    Column("id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("cwd", Text, nullable=False),
    Column("status", choice(ShellStatus), nullable=False),
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
    Index("shells_of_session", ("session_id",), method="hash"),
    Index("shells_of_nobody", ("started_at",), where="session_id IS NULL"),
    Index("shells_running", ("hostname",), where="status = 'running'"),
)
"""Shells that outlive a call, as last reported by their hosts. Callers choose session ids: a hash takes any length.
It does not index NULL, so shells without a session, which may be most, have their own index.
"""

documents = Relation(
    "documents",
    Column("scope", choice(get_args(DocumentScopeKind)), primary_key=True),
    Column("owner_key", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("version", Count, primary_key=True),
    Column("owner", Text),
    Column("content", Text),
    Column("author", Text),
    Column("call", Text),
    Column("updated_at", Moment, nullable=False),
    Index("documents_by_owner", ("owner_key",)),
)
"""One row per version of a document, inserted and deleted, never changed: the key rejects a version's second writer.
The newest version is the document; one without content means that it was deleted. `call` is a digest of the execution
and the parameters that wrote it, by which a body that is started again sees that it is done. `owner_key` is a digest of
`owner`: a session's id may have any length.
"""

audit_batches = Relation(
    "audit_batches",
    Column("sequence", LargeCount, primary_key=True),
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
"""One row per batch: what it covers (`kind` seal) or what was deleted (`kind` prune), never changed.
`root` is the hash over its lines, `hash` the one over all its columns before it, `previous` the `hash` of the batch
before. `frontier` and `event_frontier` say how far the chain has come: the latest end and event of all batches so far.
"""

audit_executions = Relation(
    "audit_executions",
    Column("execution_id", Identifier, primary_key=True),
    Column("batch", LargeCount, nullable=False),
    Column("hashes", Bytes, nullable=False),
    Column("pruned_by", LargeCount),
    Index("audit_executions_batch", ("batch",)),
)
"""The hash of an execution's row, then the number and the hash of each of its attempts."""

audit_events = Relation(
    "audit_events",
    Column("event_id", LargeCount, primary_key=True),
    Column("batch", LargeCount, nullable=False),
    Column("hashes", Bytes, nullable=False),
    Column("pruned_by", LargeCount),
    Index("audit_events_batch", ("batch",)),
)
"""Events have their own entries: one may be added to an execution sealed long ago, such as a late finish."""
