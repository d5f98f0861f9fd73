"""Calls are found by their tenant: an index, in its own revision since it leaves the transaction."""

from alembic import op

from forge_tools.storage.migrate import concurrent_index
from tests.contract.migrations_example import ADDED, INDEXED

revision = INDEXED
down_revision = ADDED
branch_labels = depends_on = None


def upgrade() -> None:
    concurrent_index("executions_by_tenant", "executions", ["tenant", "id"], where="tenant IS NOT NULL")


def downgrade() -> None:
    op.drop_index("executions_by_tenant", "executions")
