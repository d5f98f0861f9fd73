"""Every table, index and view, as the models declare them.

Nothing is released yet, so this revision changes with the models. The first release fixes its statements here: later
revisions start from those, not from what the models have become.
"""

from alembic import op

from forge_tools.storage.history.view import tool_executions_view
from forge_tools.storage.sqlalchemy_tables import metadata

revision = "0001"
down_revision = None
branch_labels = depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.execute(tool_executions_view)


def downgrade() -> None:
    op.execute("DROP VIEW tool_executions")
    metadata.drop_all(op.get_bind(), checkfirst=False)
