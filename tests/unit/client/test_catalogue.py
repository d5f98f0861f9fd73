"""What a client knows about tools without I/O, and how it learns of those that are switched off or on meanwhile."""

import pytest

from forge_tools.client import Call, ExecutorClient
from forge_tools.client.catalogue import Snapshot
from forge_tools.client.intake import Intake, Rejected
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, DatabaseUnavailableError, ErrorCode
from forge_tools.model import ExecutionContext, ToolCategory, ToolParameter, ToolSpec
from forge_tools.storage import open_store
from forge_tools.storage.connection.database import Database
from forge_tools.storage.directory import Directory
from tests.unit.client.conftest import ECHO, publish

LOGIN = ToolSpec(
    name="Login",
    description="Log in.",
    category=ToolCategory.OTHER,
    parameters=(ToolParameter(name="token", type="string", description="Secret.", sensitive=True),),
    aliases=("sign_in",),
)


async def switch(settings: Settings, name: str, *, is_enabled: bool) -> None:
    """Do what an operator does elsewhere."""
    async with await open_store(settings.database) as store:
        await store.catalogue.switch(name, is_enabled=is_enabled)


def age(client: ExecutorClient) -> None:
    """Let everything the client read be too old to be relied on."""
    client.catalogue.read_at = 0.0


@pytest.mark.parametrize("name", ["Login", "sign_in"])
def test_a_disabled_tool_is_refused_by_any_name_and_its_secrets_are_not_kept(name: str) -> None:
    prepared = Intake(Settings.load(), "me").prepare(
        Call(name, {"token": "s3cret"}), Snapshot(Directory([ECHO], disabled=[LOGIN]))
    )

    assert isinstance(prepared, Rejected)
    assert prepared.result.error_code == ErrorCode.TOOL_DISABLED
    assert str(prepared.result.error).startswith("Tool disabled: Login. It was switched off")
    assert "s3cret" not in prepared.new.parameters


async def test_a_switch_elsewhere_is_heard_by_the_next_call(settings: Settings) -> None:
    async with ExecutorClient(settings) as client:
        await switch(settings, "Echo", is_enabled=False)
        age(client)
        refused = await client.execute("Echo", ExecutionContext(working_dir="."), message="x")
        offered = client.specs(), client.get_all_schemas(), client.get_schemas_by_category(ToolCategory.OTHER)

        await switch(settings, "Echo", is_enabled=True)
        handle = await client.submit("Echo", parameters={"message": "x"})

        assert (refused.error_code, offered) == (ErrorCode.TOOL_DISABLED, ([], [], []))
        assert (await handle.status()).value == "queued", "what was refused is looked up again at once"


async def test_a_call_after_a_pause_asks_the_database_for_nothing_but_to_be_stored(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Database) -> None:
        raise DatabaseUnavailableError("away")

    async with ExecutorClient(settings) as client:
        age(client)
        with monkeypatch.context() as patched:
            patched.setattr(Database, "reading", away)
            handle = await client.submit("Echo", parameters={"message": "x"})

        assert (await handle.status()).value == "queued"


async def test_a_client_switches_tools_and_knows_it_at_once(settings: Settings) -> None:
    await publish(settings, LOGIN)
    async with ExecutorClient(settings) as client:
        await client.catalogue.disable("sign_in")
        assert [spec.name for spec in client.specs()] == ["Echo"]

        await client.catalogue.enable("sign_in")
        assert [spec.name for spec in client.specs()] == ["Echo", "Login"]


async def test_a_new_definition_is_the_default_of_a_connected_client_at_its_next_call(settings: Settings) -> None:
    newer = ECHO.model_copy(update={"version": "1.1.0"})
    async with ExecutorClient(settings) as client:
        await publish(settings, newer)
        age(client)
        handle = await client.submit("Echo", parameters={"message": "x"})

        record = await handle.record()
        assert (record.tool_version, record.tool_digest) == ("1.1.0", newer.digest)
        assert [one.spec.version for one in await client.catalogue.versions("Echo")] == ["1.1.0", "1.0.0"]


async def test_a_pin_elsewhere_is_heard_by_the_next_call_and_undone_as_fast(settings: Settings) -> None:
    await publish(settings, ECHO.model_copy(update={"version": "1.1.0"}))
    async with ExecutorClient(settings) as client, ExecutorClient(settings) as other:
        versions = []
        for change in (other.catalogue.pin("Echo", ECHO.digest), other.catalogue.unpin("Echo")):
            await change
            age(client)
            versions.append((await (await client.submit("Echo", parameters={"message": "x"})).record()).tool_version)

        assert versions == ["1.0.0", "1.1.0"]
        assert other.specs() == client.specs()


@pytest.mark.parametrize("ask", ["specs", "get_all_schemas"])
async def test_a_client_that_never_read_the_catalogue_does_not_say_that_it_is_empty(
    settings: Settings, ask: str
) -> None:
    client = ExecutorClient(settings)
    with pytest.raises(ConfigurationError, match="not connected"):
        getattr(client, ask)()

    async with client:
        assert len(getattr(client, ask)()) == 1
    assert len(getattr(client, ask)()) == 1


READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE, aliases=("cat", "Grep"))
GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE)
FETCH = ToolSpec(name="Fetch", description="Fetch.", category=ToolCategory.WEB)
SNAPSHOT = Snapshot(Directory([READ, GREP, FETCH]))


def test_a_tool_is_found_by_name_and_alias() -> None:
    assert [SNAPSHOT.find("Read"), SNAPSHOT.find("cat"), SNAPSHOT.find("nope")] == [READ, READ, None]


def test_a_name_goes_before_the_alias_of_another_tool() -> None:
    assert SNAPSHOT.find("Grep") is GREP


def test_schemas_come_sorted_by_name_and_by_category() -> None:
    names = [schema["name"] for schema in SNAPSHOT.schemas("anthropic")]

    assert names == ["Fetch", "Grep", "Read"]
    assert [schema["name"] for schema in SNAPSHOT.schemas("anthropic", ToolCategory.FILE)] == ["Grep", "Read"]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="yaml"):
        SNAPSHOT.schemas("yaml")
