"""Indexes by which history finds what is rare, and what was done, the newest first; those of attempts hold every one."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ATTEMPTS = "execution_attempts"
FAILURES, CODES = "status != 'succeeded'", "error_code IS NOT NULL"

ADDED = (
    ("executions_by_category", "executions", ["category", "id"], None),
    ("executions_by_queue", "executions", ["queue", "id"], "queue != 'default'"),
    ("execution_attempts_failures", ATTEMPTS, ["execution_id"], FAILURES),
    ("execution_events_by_time", "execution_events", ["at", "id"], None),
    ("execution_events_by_kind", "execution_events", ["kind", "at", "id"], None),
)
WIDENED = (
    ("execution_attempts_notable", ["status", "execution_id"], FAILURES),
    ("execution_attempts_by_code", ["error_code", "execution_id"], CODES),
)
"""They held final attempts alone."""


def upgrade() -> None:
    for name, columns, rows in WIDENED:
        op.drop_index(name, ATTEMPTS)
        _create(name, ATTEMPTS, columns, rows)
    for index in ADDED:
        _create(*index)


def downgrade() -> None:
    for name, table, *_ in ADDED:
        op.drop_index(name, table)
    for name, columns, rows in WIDENED:
        op.drop_index(name, ATTEMPTS)
        _create(name, ATTEMPTS, columns, f"final AND {rows}")


def _create(name: str, table: str, columns: list[str], rows: str | None) -> None:
    where = None if rows is None else sa.text(rows)
    op.create_index(name, table, columns, postgresql_where=where, sqlite_where=where)
