"""What text tools say of an ExecutorClient whose database is there, and whose database is not."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forge_tools.adapters.compat import TextTools
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model import Capabilities, ToolCategory, ToolParameter, ToolSpec, new_id
from forge_tools.storage import open_store
from tests.migrated import migrated

SEND = ToolSpec(
    name="Send",
    description="Send a letter.",
    category=ToolCategory.WEB,
    capabilities=Capabilities(accesses_network=True),
    parameters=(
        ToolParameter(name="to", type="string", description="To whom."),
        ToolParameter(name="text", type="string", description="What.", required=False),
    ),
)


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    """Nobody listens at the broker; the catalogue knows one tool."""
    url = f"sqlite:///{tmp_path / 'forge.db'}"
    settings = Settings.load(home=tmp_path, broker_url="redis+socket:///nowhere/valkey.sock", database_url=url)
    migrated(settings.database)
    async with await open_store(settings.database) as store:
        await store.catalogue.publish([SEND], new_id())
    return settings


async def test_a_database_that_is_locked_is_a_service_that_is_unavailable(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "forge_tools.storage.connection.database.BUSY_SECONDS", 0.1
    )  # before the client opens its connections
    async with ExecutorClient(settings) as client:
        with closing(sqlite3.connect(tmp_path / "forge.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            text = await TextTools(client).execute_tool("Send", {"to": "ann"})

    assert text.startswith("Error: Service unavailable: ")
    assert "is locked by another process" in text


async def test_every_problem_of_arguments_is_told_with_what_the_tool_requires(settings: Settings) -> None:
    async with ExecutorClient(settings) as client:
        text = await TextTools(client).execute_tool("Send", {"too": "ann", "text": 3})

    assert text.splitlines() == [
        "Error: Unknown parameter 'too' (did you mean 'to'?)",
        "Missing required parameter: to",
        "Invalid type for text: expected string",
        "Send requires to (string: To whom). Optional: text.",
    ]


async def test_what_is_not_confirmed_leaves_no_row(settings: Settings) -> None:
    async with ExecutorClient(settings) as client:
        text = await TextTools(client).execute_tool("Send", {"to": "ann"}, lambda question: False)

        assert text == "Error: Send was not run: the call was not confirmed."
        assert await client.history.list() == []


async def test_a_client_that_is_not_connected_is_the_author_s_to_mend(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="not connected"):
        await TextTools(ExecutorClient(settings)).execute_tool("Send", {"to": "ann"})
