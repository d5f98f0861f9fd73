"""`reply_to` goes, a release after the one whose code no longer names it: that of 9003 is the oldest that goes on."""

import sqlalchemy as sa
from alembic import op

from tests.contract.migrations_example import REMOVED, VALIDATED

revision = REMOVED
down_revision = VALIDATED
branch_labels = depends_on = None


def upgrade() -> None:
    op.drop_column("executions", "reply_to")


def downgrade() -> None:
    op.add_column("executions", sa.Column("reply_to", sa.Text))
