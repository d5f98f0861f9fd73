"""How executions are named on the command line, what shells complete, and rows on narrow terminals."""

from pathlib import Path

import pytest

from forge_tools.cli.services import with_store
from forge_tools.client import SyncExecutorClient
from forge_tools.config import Settings
from forge_tools.model import ExecutionContext, new_id
from forge_tools.tools.file.grep import Grep
from tests.unit.cli.conftest import Command

CONTEXT = ExecutionContext(working_dir=".")


@pytest.fixture
def ids(command: Command, tmp_path: Path) -> list[str]:
    """Three rejected calls, the oldest first: no worker is needed to have them on record."""
    with SyncExecutorClient(Settings.load(broker_url="redis://127.0.0.1:1/0")) as client:
        return [client.execute(name, CONTEXT).metadata["execution_id"] for name in ("One", "Two", "Three")]


def test_the_last_one_the_one_before_and_the_end_of_an_id_are_understood(command: Command, ids: list[str]) -> None:
    for given, meant in (("@last", ids[2]), ("@-1", ids[2]), ("@-3", ids[0]), (ids[1][-8:], ids[1]), (ids[1], ids[1])):
        code, out, err = command("show", given)
        assert (code, meant in out) == (0, True), (given, err)

    code, _, err = command("show", "@-4")
    assert (code, "There is no @-4: 3 executions are recorded." in err) == (1, True)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("forge-tools show @", "@last"),
        ("forge-tools hist", "history"),
        ("forge-tools cancel 0", None),
        ("forge-tools run Gr", "Grep"),
        ("forge-tools run Grep pa", "pattern="),
        ("forge-tools tools Gr", "Grep"),
        ("forge-tools tools en", "enable"),
        ("forge-tools tools enable Gr", "Grep"),
        ("forge-tools history --tool Gr", "Grep"),
    ],
)
def test_a_shell_is_offered_what_could_follow(
    line: str, offered: str | None, command: Command, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_store(lambda store: store.catalogue.publish([Grep().spec], new_id()))
    monkeypatch.setenv("_FORGE_TOOLS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))

    _, out, err = command()

    assert (offered or ids[0]) in out.split()
    assert err == ""


def test_without_a_database_a_shell_is_offered_nothing_and_told_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", f"sqlite:///{tmp_path / 'missing.db'}")
    monkeypatch.setenv("_FORGE_TOOLS_COMPLETE", "complete_bash")
    for line in ("forge-tools run G", "forge-tools run Grep p", "forge-tools show @"):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        _, out, err = command()
        assert (out.strip(), err) == ("", "")


@pytest.mark.parametrize("width", [40, 60, 69, 70, 80, 120])
def test_no_width_loses_what_identifies_a_row(
    width: int, command: Command, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with_store(lambda store: store.catalogue.publish([Grep().spec], new_id()))
    assert "Grep" in command("tools")[1]
    assert Grep().spec.digest in command("tools", "versions", "Grep")[1]
    _, chosen, _ = command("history", "--columns", "parameters,error,id")
    assert all(id_ in "".join(chosen.split()) for id_ in ids), "an id may go on in the next line of its block"
    for words in (("history",), ("stats",)):
        _, out, _ = command(*words)
        assert all(name in out for name in ("One", "Two", "Three")), out
    _, out, _ = command("history")
    assert all(id_[:23] in out for id_ in ids)
    assert all(len(line.rstrip()) <= width for line in out.splitlines())
    assert "Unknown tool:" in out, "what a call was about identifies it too"


def test_an_unknown_tool_is_told_with_what_is_meant(command: Command, ids: list[str]) -> None:
    code, _, err = command("run", "--local", "grp", "pattern=x")
    assert code == 1
    assert "Did you mean 'Grep'?" in err
    assert "did you mean 'Grep'?" in command("tools", "--local", "grp")[2]
    assert "What it takes: forge-tools tools Grep --local" in command("run", "--local", "Grep", "nonsense=x")[2]
    assert "What it takes" not in command("run", "--local", "Grep", "patern=x")[2], "a name was suggested"


def test_columns_are_chosen_and_a_pipe_gets_them_whole(
    command: Command, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = command("history", "--columns", "id,tool,error_code")
    assert [line.split() for line in out.splitlines()][2:] == [
        [id_, tool, "TOOL_NOT_FOUND"] for id_, tool in zip(ids[::-1], ("Three", "Two", "One"), strict=True)
    ]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "Unknown tool: Three" in command("history")[1]
    monkeypatch.setenv("COLUMNS", "50")
    assert "Unknown tool: Three" in command("history", "--wide")[1]
    assert "wait p50" in command("stats", "--wide")[1]

    monkeypatch.setenv("COLUMNS", "70")
    narrow = command("history", "--columns", "id,error,parameters,tool")[1]
    assert [line.split()[0 :: len(line.split()) - 1] for line in narrow.splitlines()[2:]] == [
        [id_, tool] for id_, tool in zip(ids[::-1], ("Three", "Two", "One"), strict=True)
    ]

    code, _, err = command("history", "--columns", "toll")
    assert (code, "'toll' is no column. There are: id, tool" in " ".join(err.split())) == (2, True)
