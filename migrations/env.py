"""How Alembic reaches the database: over the connection passed to it, else the one that the settings name."""

from alembic import context
from sqlalchemy import Connection

from forge_tools.config import Settings
from forge_tools.storage.migrate import alone
from forge_tools.storage.sqlalchemy_tables import metadata


def run_on(connection: Connection) -> None:
    """Run the migrations: each in its own transaction, unless `connection` is already in one."""
    context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
    context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("Migrations need a database to look at; run `forge-tools db upgrade` against one.")
handed = context.config.attributes.get("connection")
if handed is not None:
    run_on(handed)
else:
    alone(Settings.load().migration_database, run_on)
