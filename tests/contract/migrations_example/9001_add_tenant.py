"""Executions name the tenant they are for: a new column, which may be NULL since older code does not fill it."""

import sqlalchemy as sa
from alembic import op

from forge_tools.storage.migrate import checked_later, unchecked
from forge_tools.storage.tables import SCHEMA_REVISION
from tests.contract.migrations_example import ADDED

revision = ADDED
down_revision = SCHEMA_REVISION
branch_labels = depends_on = None


def upgrade() -> None:
    op.add_column("executions", sa.Column("tenant", sa.Text))
    checked_later("executions", "tenant", "tenant IS NULL OR length(tenant) BETWEEN 1 AND 64")


def downgrade() -> None:
    unchecked("executions", "tenant")
    op.drop_column("executions", "tenant")
