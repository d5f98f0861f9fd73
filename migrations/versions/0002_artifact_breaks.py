"""The lines that end in each part of an artifact, so that a page of lines is found without reading all before it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("artifact_parts", sa.Column("breaks", sa.Integer))


def downgrade() -> None:
    op.drop_column("artifact_parts", "breaks")
