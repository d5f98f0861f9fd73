"""The catalogue in the client: names, aliases, schemas and validators, without I/O."""

import pytest

from forge_tools.client.snapshot import Snapshot
from forge_tools.records import ToolCategory, ToolSpec

READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE, aliases=("cat", "Grep"))
GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE)
FETCH = ToolSpec(name="Fetch", description="Fetch.", category=ToolCategory.WEB)
SNAPSHOT = Snapshot([READ, GREP, FETCH])


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


def test_a_validator_is_prepared_once_per_tool() -> None:
    assert SNAPSHOT.validator(READ) is SNAPSHOT.validator(READ)
