"""`forge-tools tools` on a catalogue: what is listed, and how a tool is switched off and on."""

import json
from functools import partial

import pytest

from forge_tools.cli.services import with_store
from forge_tools.model import ToolCategory, ToolSpec, new_id
from forge_tools.model.tools import ToolWalls
from forge_tools.storage import Store
from tests.contract.calls import instance
from tests.unit.cli.conftest import Command

GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE, aliases=("grep",))
READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE)


@pytest.fixture
def run(command: Command) -> Command:
    """Run `tools` on a catalogue with two tools."""
    with_store(lambda store: store.catalogue.publish([GREP, READ], new_id()))
    return partial(command, "tools")


def test_a_tool_is_switched_off_and_on(run: Command) -> None:
    assert run("disable", "grep") == (
        0,
        "Grep is disabled. Running calls may finish; waiting ones stay until it is enabled, or expire.\n",
        "",
    )
    assert "(disabled) Search." in run()[1]
    assert "Grep (disabled)" in run("Grep")[1]
    assert [schema["name"] for schema in json.loads(run("--format", "anthropic")[1])] == ["Read"]

    assert run("enable", "Grep") == (0, "Grep is enabled.\n", "")
    assert "(disabled)" not in run()[1]


def test_programs_are_told_which_tools_are_enabled(run: Command) -> None:
    assert json.loads(run("disable", "Grep", "-o", "json")[1]) == {"tool": "Grep", "enabled": False}

    listed = {tool["name"]: tool["enabled"] for tool in json.loads(run("-o", "json")[1])}

    assert listed == {"Grep": False, "Read": True}


@pytest.mark.parametrize(
    "words", [("tools", "--category", "foo"), ("history", "--status", "foo"), ("-o", "foo", "tools")]
)
def test_a_value_that_is_none_of_the_choices_is_refused_without_the_words_of_a_library(
    command: Command, words: tuple[str, ...]
) -> None:
    code, _, said = command(*words)

    assert code == 2
    assert ": 'foo' is not one of 'file', 'execution'," in said or words[0] != "tools"
    assert "Value error" not in said


def test_a_tool_that_no_live_worker_hosts_is_marked(run: Command) -> None:
    async def begin(store: Store) -> None:
        await store.workers.register(instance())
        await store.catalogue.publish([READ], "instance-1")

    with_store(begin)

    assert "(not hosted) Search." in run()[1]
    assert "(not hosted) Read." not in run()[1]
    assert "Grep (not hosted)\n" in run("Grep")[1]
    listed = {tool["name"]: tool["hosted"] for tool in json.loads(run("-o", "json")[1])}
    assert listed == {"Grep": False, "Read": True}
    assert [one["hosted"] for one in json.loads(run("Grep", "--version", "1.0.0", "-o", "json")[1])] == [False]

    run("disable", "Grep")
    assert "(disabled) Search." in run()[1]


def test_the_walls_of_each_tool_are_told(run: Command) -> None:
    code = ToolSpec(name="Code", description="x", category=ToolCategory.OTHER, walls="landlock")
    tools = {"Code": ToolWalls("landlock"), "Read": ToolWalls("landlock", is_moved=True)}
    aside, bash = (READ.model_copy(update={"lane": "async", "name": name}) for name in ("Read", "Bash"))
    with_store(lambda store: store.catalogue.publish([code, aside, bash], new_id(), places=tools))

    listed = {tool["name"]: (tool["lane"], tool["tier"]) for tool in json.loads(run("-o", "json")[1])}

    assert listed == {
        "Grep": ("process", "plain"),
        "Code": ("process", "landlock"),
        "Read": ("process", "landlock"),
        "Bash": ("async", "none"),
    }
    assert "landlock" in run("Code")[1]
    assert [one["tier"] for one in json.loads(run("Code", "--version", "1.0.0", "-o", "json")[1])] == ["landlock"]


@pytest.mark.parametrize("words", [(), ("list",), ("--category", "file"), ("list", "--category", "file")])
def test_without_another_command_tools_are_listed(run: Command, words: tuple[str, ...]) -> None:
    code, shown, _ = run(*words)

    assert code == 0
    assert "Grep" in shown
    assert "Read" in shown


def test_a_tool_that_nobody_published_is_named_with_the_closest(run: Command) -> None:
    code, _, said = run("disable", "Gerp")

    assert code == 1
    assert "No worker ever published it (did you mean 'Grep'?)" in said
