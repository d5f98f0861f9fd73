"""How Alembic reaches the database: over the connection it is handed, else the one that the settings name."""

import asyncio

from alembic import context
from sqlalchemy import Connection

from forge_tools.config import Settings
from forge_tools.storage.address import Address
from forge_tools.storage.columns import metadata
from forge_tools.storage.engine import create_engine
from forge_tools.storage.migrate import hold


def run_on(connection: Connection) -> None:
    """Run the migrations in the transaction of `connection`."""
    context.configure(connection=connection, target_metadata=metadata)
    context.run_migrations()


async def run_on_configured_database() -> None:
    """Connect as the `alembic` command does: without a connection of its own."""
    settings = Settings.load()
    address = Address.parse(settings.migration_database)
    engine = create_engine(address, connect_timeout=settings.connect_timeout, create=True)
    async with engine.execution_options(forge_write=True).begin() as connection:
        await connection.run_sync(hold)
        await connection.run_sync(run_on)
    await engine.dispose()


if context.is_offline_mode():
    raise SystemExit("Migrations need a database to look at; run `forge-tools db upgrade` against one.")
handed = context.config.attributes.get("connection")
if handed is not None:
    run_on(handed)
else:
    asyncio.run(run_on_configured_database())
