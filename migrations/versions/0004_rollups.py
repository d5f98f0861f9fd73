"""Figures that are kept by the hour, so that those of a day, or a month, are not counted anew each time."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

identifier = sa.Text(36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")
moment = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
numbers = sa.Text().with_variant(postgresql.ARRAY(sa.Float(53)), "postgresql")


def upgrade() -> None:
    op.create_table(
        "rollup_hours",
        sa.Column("hour", moment, primary_key=True),
        sa.Column("token", identifier),
        sa.Column("rolled_at", moment),
        sa.Column("calls", sa.BigInteger),
    )
    op.create_table(
        "rollup_figures",
        sa.Column("grouped_by", sa.Text, primary_key=True),
        sa.Column("hour", moment, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Text) for name in ("tool", "category", "queue", "agent_id", "session_id")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("calls", "succeeded", "failed", "rejected")),
        *(sa.Column(name, numbers, nullable=False) for name in ("durations", "waits")),
    )


def downgrade() -> None:
    op.drop_table("rollup_figures")
    op.drop_table("rollup_hours")
