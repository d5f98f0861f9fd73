"""Every row keeps the CHECK of its tenant: a revision later, since this reads the whole table."""

from forge_tools.storage.migrate import validated
from tests.contract.migrations_example import INDEXED, VALIDATED

revision = VALIDATED
down_revision = INDEXED
branch_labels = depends_on = None


def upgrade() -> None:
    validated("executions", "tenant")


def downgrade() -> None:
    """The CHECK goes with the column."""
