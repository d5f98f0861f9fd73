"""`forge-tools history` a page at a time: each page but the last says how to continue, and pruning does no harm."""

import json
import shlex
from functools import partial

import pytest

from forge_tools.cli.services import with_store
from forge_tools.model import ExecutionRecord
from forge_tools.storage import Store
from forge_tools.storage.history.history import History
from forge_tools.storage.history.pages import Page
from tests.contract.calls import finished, submitted
from tests.contract.test_retention import everything, pruned
from tests.unit.cli.conftest import Command


@pytest.fixture
def run(command: Command) -> Command:
    """Run `history` on a database with three calls that wait."""
    with_store(three)
    return partial(command, "history")


async def three(store: Store) -> list[str]:
    return [await submitted(store) for _ in range(3)]


def test_the_last_line_of_a_page_brings_the_next_until_there_is_none(run: Command) -> None:
    _, page, said = run("--limit", "2", "--tool", "Grep", "--since", "2h", "--status", "queued")
    words = shlex.split(said.rpartition("forge-tools history ")[2])
    _, rest, end = run(*words)

    assert (page.count("Grep"), rest.count("Grep"), end) == (2, 1, "")
    assert words[::2] == ["--tool", "--status", "--since", "--limit", "--before"], "with all that was asked"


@pytest.mark.parametrize("rows", [0, 1])
def test_a_short_page_behind_which_more_is_says_so(run: Command, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    whole = History.list

    async def hurried(history: History, *, patience: float, **filters: object) -> Page[ExecutionRecord]:
        assert patience > 0
        page = Page((await whole(history, limit=3))[:rows])
        page.older = "01a20085-ebef-714c-9e2e-1760aec55ed5"
        return page

    monkeypatch.setattr(History, "list", hurried)

    said = " ".join(run()[2].split())

    assert "Older ones: forge-tools history --before 01a20085-ebef-714c-9e2e-1760aec55ed5" in said


def test_a_page_goes_on_behind_an_execution_that_was_pruned(run: Command) -> None:
    async def prune(store: Store) -> str:
        newest = (await store.history.list(limit=1))[0].id
        await finished(store, [newest])
        assert await pruned(store, everything()) == 1
        return newest

    gone = with_store(prune)
    code, page, _ = run("--before", gone)

    assert (code, page.count("Grep")) == (0, 2)
    assert run("--before", "01a2")[0] == 1


def test_programs_get_a_line_a_call_without_what_may_be_large(run: Command) -> None:
    lines = [json.loads(line) for line in run("--output", "json")[1].splitlines()]

    assert [line["status"] for line in lines] == ["queued"] * 3
    assert lines[0].keys().isdisjoint({"output", "context", "metadata", "error_details"})


def test_behind_the_oldest_there_is_nothing_older(run: Command) -> None:
    oldest = with_store(oldest_id)
    assert run("--before", oldest) == (0, "No older execution matches.\n", "")
    assert run("--before", oldest, "--tool", "Grep") == (0, "No older execution matches.\n", "")
    assert run("--of", "attempts")[1] == "No attempt has ended yet.\n"


async def oldest_id(store: Store) -> str:
    return (await store.history.list())[-1].id


def test_columns_have_the_names_of_the_table_too(run: Command) -> None:
    code, shown, _ = run("--columns", "queued,ago,took,what,error_code")

    assert code == 0
    assert shown.splitlines()[0].split() == ["queued", "ago", "took", "what", "error_code"]
