"""`forge-tools tools` on a catalogue: what is listed, and how a tool is switched off and on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forge_tools.cli import main
from forge_tools.cli.database import with_store
from forge_tools.records import ToolCategory, ToolSpec, new_id
from tests.migrated import migrated

GREP = ToolSpec(name="Grep", description="Search.", category=ToolCategory.FILE, aliases=("grep",))
READ = ToolSpec(name="Read", description="Read.", category=ToolCategory.FILE)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a database with two tools; returns its exit code and what it printed."""
    url = f"sqlite:///{tmp_path / 'forge.db'}"
    monkeypatch.setenv("FORGE_DATABASE_URL", url)
    migrated(url)
    with_store(lambda store: store.catalogue.publish([GREP, READ], new_id()))

    def command(*words: str) -> tuple[int, str, str]:
        try:
            code = main(["tools", *words])
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


def test_a_tool_is_switched_off_and_on(run: Run) -> None:
    assert run("disable", "grep") == (
        0,
        "Grep is disabled. What runs may finish; calls that wait stay until it is enabled, or expire.\n",
        "",
    )
    assert "(disabled) Search." in run()[1]
    assert "Grep (disabled)" in run("Grep")[1]
    assert [schema["name"] for schema in json.loads(run("--format", "anthropic")[1])] == ["Read"]

    assert run("enable", "Grep") == (0, "Grep is enabled.\n", "")
    assert "(disabled)" not in run()[1]


def test_programs_are_told_which_tools_are_enabled(run: Run) -> None:
    assert json.loads(run("disable", "Grep", "-o", "json")[1]) == {"tool": "Grep", "enabled": False}

    listed = {tool["name"]: tool["enabled"] for tool in json.loads(run("-o", "json")[1])}

    assert listed == {"Grep": False, "Read": True}


@pytest.mark.parametrize("words", [(), ("list",), ("--category", "file"), ("list", "--category", "file")])
def test_without_another_command_tools_are_listed(run: Run, words: tuple[str, ...]) -> None:
    code, shown, _ = run(*words)

    assert code == 0
    assert "Grep" in shown
    assert "Read" in shown


def test_a_tool_that_nobody_published_is_named_with_the_closest(run: Run) -> None:
    code, _, said = run("disable", "Gerp")

    assert code == 1
    assert "No worker ever published it (did you mean 'Grep'?)" in said
