"""A migrated SQLite database whose catalogue holds one tool, and no worker: what clients do on their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec, new_id
from forge_tools.secrets.encryption import KeyFolder, key_id
from forge_tools.storage import open_store
from tests.migrated import migrated

NOWHERE = "redis+socket:///nowhere/valkey.sock"

ECHO = ToolSpec(
    name="Echo",
    description="Say it again.",
    category=ToolCategory.OTHER,
    parameters=(ToolParameter(name="message", type="string", description="What."),),
    lane="async",
)

LOGIN = ToolSpec(
    name="Login",
    description="Take a secret.",
    category=ToolCategory.OTHER,
    parameters=(
        ToolParameter(name="user", type="string", description="Who.", aliases=("who",)),
        ToolParameter(name="pin", type="string", description="The secret.", sensitive=True),
        ToolParameter(name="times", type="integer", description="How often.", required=False, default=1),
    ),
    lane="async",
)


async def publish(settings: Settings, *specs: ToolSpec) -> None:
    """Write tools into the catalogue as a worker does at its start."""
    async with await open_store(settings.database) as store:
        await store.catalogue.publish(list(specs), new_id())


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    """Nobody listens at the broker; the database is there."""
    settings = Settings.load(home=tmp_path, broker_url=NOWHERE, database_url=f"sqlite:///{tmp_path / 'forge.db'}")
    migrated(settings.database)
    await publish(settings, ECHO)
    return settings


@pytest.fixture
async def encrypting_client(settings: Settings, tmp_path: Path) -> AsyncIterator[ExecutorClient]:
    """It knows a tool with a secret, too, and a key to encrypt that with."""
    await publish(settings, ECHO, LOGIN)
    public = KeyFolder(tmp_path / "keys").new()
    async with await open_store(settings.database) as store:
        await store.encryption_keys.publish(key_id(public), public)
    async with ExecutorClient.connect(settings) as client:
        yield client
