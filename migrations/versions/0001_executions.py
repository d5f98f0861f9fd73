"""Executions, their queue, attempts and events; the catalogue, workers, leases, shells and artifacts; the view that joins them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = depends_on = None

identifier = sa.Text(36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")
moment = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
json_text = sa.Text().with_variant(postgresql.JSON(), "postgresql")
serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

VIEW = """
CREATE VIEW tool_executions AS
SELECT e.id, e.tool, e.tool_key, e.tool_version, e.tool_digest, e.category, e.parameters, e.sealed_names, e.context, e.options, e.agent_id, e.session_id,
       e.queue, e.lane, e.timeout, e.timeout_source, e.soft_time_limit, e.time_limit, e.max_attempts, e.idempotent,
       e.delay, e.expires_in, e.idempotency_key, e.replay_of, e.submitted_by, e.queued_at,
       coalesce(a.status, q.status) AS status,
       CASE WHEN a.attempt IS NULL THEN q.attempt
            WHEN a.started_at IS NULL AND a.attempt > 0 THEN a.attempt - 1
            ELSE a.attempt END AS attempt,
       coalesce(a.started_at, q.started_at) AS started_at,
       a.completed_at, a.duration_ms,
       coalesce(a.worker_id, q.owner) AS worker_id,
       coalesce(a.hostname, q.hostname) AS hostname,
       coalesce(a.pid, q.pid) AS pid,
       q.not_before, q.expires_at, q.cancel_requested_at,
       a.output, a.error, a.error_code, a.error_details, a.metadata
FROM executions e
LEFT OUTER JOIN execution_queue q ON q.id = e.id
LEFT OUTER JOIN execution_attempts a ON a.execution_id = e.id AND a.final
"""


def upgrade() -> None:
    _create_executions()
    _create_queue()
    _create_attempts()
    _create_events()
    _create_reports()
    _create_tools()
    _create_workers()
    _create_sealing_keys()
    _create_shells()
    _create_artifacts()
    _create_workspaces()
    _create_idempotency_keys()
    _create_audit()
    op.execute(VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW tool_executions")
    for table in (
        "audit_events",
        "audit_executions",
        "audit_batches",
        "idempotency_keys",
        "artifact_owners",
        "artifact_parts",
        "artifacts",
        "session_workspaces",
        "workspaces",
        "shells",
        "sealing_keys",
        "leases",
        "workers",
        "tools",
        "execution_reports",
        "execution_events",
        "execution_attempts",
        "execution_queue",
        "executions",
    ):
        op.drop_table(table)


def _create_executions() -> None:
    op.create_table(
        "executions",
        sa.Column("id", identifier, primary_key=True),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("tool_key", sa.Text, nullable=False),
        sa.Column("tool_version", sa.Text, nullable=False),
        sa.Column("tool_digest", sa.Text, nullable=False),
        sa.Column("category", sa.Text, nullable=False),
        sa.Column("parameters", json_text, nullable=False),
        sa.Column("sealed_names", json_text),
        sa.Column("context", json_text, nullable=False),
        sa.Column("options", json_text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("session_id", sa.Text),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("timeout", sa.Float, nullable=False),
        sa.Column("timeout_source", sa.Text, nullable=False),
        sa.Column("soft_time_limit", sa.Float, nullable=False),
        sa.Column("time_limit", sa.Float, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("idempotent", sa.Boolean, nullable=False),
        sa.Column("delay", sa.Float, nullable=False),
        sa.Column("expires_in", sa.Float, nullable=False),
        sa.Column("reply_to", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("replay_of", identifier),
        sa.Column("submitted_by", sa.Text),
        sa.Column("queued_at", moment, nullable=False),
    )
    op.create_index("executions_queued_at", "executions", ["queued_at"], postgresql_using="brin")
    op.create_index("executions_by_tool", "executions", ["tool", "id"])
    op.create_index("executions_by_agent", "executions", ["agent_id", "id"])
    op.create_index("executions_by_session", "executions", ["session_id", "id"])


def _create_queue() -> None:
    op.create_table(
        "execution_queue",
        sa.Column("id", identifier, primary_key=True),
        sa.Column("tool_key", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("idempotent", sa.Boolean, nullable=False),
        sa.Column("token", identifier),
        sa.Column("owner", sa.Text),
        sa.Column("hostname", sa.Text),
        sa.Column("pid", sa.Integer),
        sa.Column("not_before", moment, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.Column("expires_in", sa.Float, nullable=False),
        sa.Column("started_at", moment),
        sa.Column("cancel_requested_at", moment),
        sa.Column("sealed", sa.Text),
        postgresql_with={"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.05},
        sqlite_with_rowid=False,
    )
    asked = sa.text("cancel_requested_at IS NOT NULL")
    op.create_index("execution_queue_cancels", "execution_queue", ["id"], postgresql_where=asked, sqlite_where=asked)
    op.create_index("execution_queue_due", "execution_queue", ["lane", "tool_key", "queue", "not_before"])
    op.create_index("execution_queue_expiry", "execution_queue", ["expires_at"])
    none = sa.text("max_attempts < 1")
    op.create_index("execution_queue_hopeless", "execution_queue", ["id"], postgresql_where=none, sqlite_where=none)


def _create_attempts() -> None:
    op.create_table(
        "execution_attempts",
        sa.Column("execution_id", identifier, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("final", sa.Boolean, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("token", identifier),
        sa.Column("worker_id", sa.Text),
        sa.Column("hostname", sa.Text),
        sa.Column("pid", sa.Integer),
        sa.Column("started_at", moment),
        sa.Column("completed_at", moment, nullable=False),
        sa.Column("duration_ms", sa.Float),
        sa.Column("output", json_text),
        sa.Column("error", sa.Text),
        sa.Column("error_code", sa.Text),
        sa.Column("error_details", json_text),
        sa.Column("metadata", json_text, nullable=False),
    )
    op.create_index("execution_attempts_completed", "execution_attempts", ["completed_at"])
    for name, column, rows in (
        ("execution_attempts_notable", "status", "final AND status != 'succeeded'"),
        ("execution_attempts_by_code", "error_code", "final AND error_code IS NOT NULL"),
    ):
        op.create_index(
            name,
            "execution_attempts",
            [column, "execution_id"],
            postgresql_where=sa.text(rows),
            sqlite_where=sa.text(rows),
        )


def _create_events() -> None:
    op.create_table(
        "execution_events",
        sa.Column("id", serial, primary_key=True),
        sa.Column("execution_id", identifier, nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("detail", json_text, nullable=False),
        sa.Column("token", identifier),
        sqlite_autoincrement=True,
    )
    op.create_index("execution_events_once", "execution_events", ["execution_id", "kind", "token"], unique=True)


def _create_reports() -> None:
    op.create_table(
        "execution_reports",
        sa.Column("execution_id", identifier, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("done", sa.Float),
        sa.Column("total", sa.Float),
        sa.Column("text", sa.Text),
        sa.Column("left_out", sa.BigInteger, nullable=False),
        postgresql_with={"fillfactor": 80},
        sqlite_with_rowid=False,
    )


def _create_tools() -> None:
    op.create_table(
        "tools",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("category", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("timeout", sa.Float),
        sa.Column("spec", json_text, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("first_seen_at", moment, nullable=False),
        sa.Column("last_seen_at", moment, nullable=False),
        sa.Column("demoted_at", moment),
        sa.Column("demoted_reason", sa.Text),
        sa.Column("pinned_at", moment),
    )
    op.create_index("tools_seen", "tools", ["last_seen_at"])
    pinned = sa.text("pinned_at IS NOT NULL")
    op.create_index("tools_pinned", "tools", ["name"], unique=True, postgresql_where=pinned, sqlite_where=pinned)
    gone = sa.text("demoted_at IS NOT NULL")
    op.create_index("tools_demoted", "tools", ["name"], postgresql_where=gone, sqlite_where=gone)
    off = sa.text("enabled = false")
    op.create_index("tools_disabled", "tools", ["name"], postgresql_where=off, sqlite_where=off)


def _create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("hostname", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("queues", json_text, nullable=False),
        sa.Column("concurrency", sa.Integer, nullable=False),
        sa.Column("answering", sa.Integer),
        sa.Column("version", sa.Text, nullable=False),
        *(sa.Column(name, json_text, nullable=False) for name in ("tools", "servers")),
        sa.Column("started_at", moment, nullable=False),
        sa.Column("last_seen_at", moment, nullable=False),
        sa.Column("stopped_at", moment),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("unfit", sa.Text),
        sa.Column("dropped_messages", sa.BigInteger, nullable=False),
        postgresql_with={"fillfactor": 50},
    )
    open_ended = sa.text("stopped_at IS NULL")
    op.create_index("workers_not_stopped", "workers", ["id"], postgresql_where=open_ended, sqlite_where=open_ended)
    op.create_table(
        "leases",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
    )


def _create_shells() -> None:
    op.create_table(
        "shells",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("hostname", sa.Text, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("cwd", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("start_ticks", sa.BigInteger, nullable=False),
        sa.Column("started_at", moment, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("session_id", sa.Text),
        sa.Column("agent_id", sa.Text),
        sa.Column("execution_id", sa.Text),
        sa.Column("exit_code", sa.Integer),
        sa.Column("signal", sa.Integer),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("ended_at", moment),
        sa.Column("updated_at", moment, nullable=False),
    )
    op.create_index("shells_of_session", "shells", ["session_id"], postgresql_using="hash")
    nobodys = sa.text("session_id IS NULL")
    op.create_index("shells_of_nobody", "shells", ["started_at"], postgresql_where=nobodys, sqlite_where=nobodys)
    running = sa.text("status = 'running'")
    op.create_index("shells_running", "shells", ["hostname"], postgresql_where=running, sqlite_where=running)


def _create_workspaces() -> None:
    op.create_table(
        "workspaces",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("boot", sa.Text, primary_key=True),
        sa.Column("hostname", sa.Text, nullable=False),
        sa.Column("shared", sa.Boolean, nullable=False),
        sa.Column("roots", json_text, nullable=False),
        sa.Column("announced_at", moment, nullable=False),
    )
    op.create_table(
        "session_workspaces",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("workspace", sa.Text, nullable=False),
        sa.Column("bound_at", moment, nullable=False),
    )


def _create_sealing_keys() -> None:
    name, public = sa.Column("id", sa.Text, primary_key=True), sa.Column("public", sa.Text, nullable=False)
    made, retired = sa.Column("created_at", moment, nullable=False), sa.Column("retired_at", moment)
    op.create_table("sealing_keys", name, public, made, retired)


def _create_artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("media_type", sa.Text, nullable=False),
        sa.Column("is_whole", sa.Boolean, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
    )
    op.create_index("artifacts_expiry", "artifacts", ["expires_at"])
    op.create_table(
        "artifact_parts",
        sa.Column("artifact_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "artifact_owners",
        sa.Column("artifact_id", sa.Text, primary_key=True),
        sa.Column("session_key", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text),
        sa.Column("execution_id", sa.Text),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("kept_at", moment, nullable=False),
    )
    op.create_index("artifact_owners_session", "artifact_owners", ["session_key", "kept_at"])
    op.create_index("artifact_owners_execution", "artifact_owners", ["execution_id"])


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("execution_id", identifier, nullable=False),
        sa.Column("fingerprint", json_text, nullable=False),
        sa.Column("ttl", sa.Float, nullable=False),
        sa.Column("claimed_at", moment, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
    )
    op.create_index("idempotency_keys_execution", "idempotency_keys", ["execution_id"], unique=True)
    op.create_index("idempotency_keys_expiry", "idempotency_keys", ["expires_at"])


def _create_audit() -> None:
    op.create_table(
        "audit_batches",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("executions", sa.Integer, nullable=False),
        sa.Column("events", sa.Integer, nullable=False),
        sa.Column("ended_from", moment),
        sa.Column("ended_until", moment),
        sa.Column("frontier", moment),
        sa.Column("event_frontier", sa.BigInteger, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("sealed_at", moment, nullable=False),
        sa.Column("sealer", sa.Text, nullable=False),
        sa.Column("detail", json_text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("signature", sa.Text),
    )
    for name, kind in (("execution", identifier), ("event", sa.BigInteger())):
        op.create_table(
            f"audit_{name}s",
            sa.Column(f"{name}_id", kind, primary_key=True, autoincrement=False),
            sa.Column("batch", sa.BigInteger, nullable=False),
            sa.Column("hashes", sa.LargeBinary, nullable=False),
            sa.Column("pruned_by", sa.BigInteger),
        )
        op.create_index(f"audit_{name}s_batch", f"audit_{name}s", ["batch"])
