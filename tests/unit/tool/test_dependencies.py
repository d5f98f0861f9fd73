"""Dependencies of a tool are created when needed, passed to its body, and torn down."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from forge_tools.testing import InlineExecutor
from forge_tools.tool import Depends, tool
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult

seen: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def make_url() -> str:
    seen.append("url made")
    return "https://index"


async def make_index(url: Annotated[str, Depends(make_url)]) -> AsyncIterator[dict[str, str]]:
    seen.append("index opened")
    yield {"url": url}
    seen.append("index closed")


def begin(index: Annotated[dict[str, str], Depends(make_index)], context: ExecutionContext) -> Iterator[str]:
    seen.append("begun")
    try:
        yield f"{index['url']} for {context.agent_id}"
    except ValueError:
        seen.append("rolled back")
        raise
    else:
        seen.append("committed")


@tool
def find(query: str, work: Annotated[str, Depends(begin, per="call")]) -> str:
    """Find it."""
    if query == "bad":
        raise ValueError(query)
    return f"{work}/{query}"


@tool
def first(work: Annotated[str, Depends(begin, per="call")], /, query: str) -> str:
    """Find it by a dependency that has no name."""
    return f"{work}/{query}"


@tool
async def wrong(work: Annotated[str, Depends(begin)]) -> str:
    """Say that what is kept for a worker has no call."""
    return work


class Find(BaseTool):
    """Find it."""

    name = "Find"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="query", type="string", description="What."),)

    async def _execute(
        self, context: ExecutionContext, query: str, index: Annotated[dict[str, str], Depends(make_index)]
    ) -> ToolResult:
        return ToolResult.ok(f"{index['url']}/{query}")


def test_for_a_worker_once_for_a_call_each_time_and_all_is_taken_down() -> None:
    with InlineExecutor(find, Find, context={"agent_id": "me"}) as tools:
        assert [tools.run("find", query=query).output for query in "ab"] == [
            "https://index for me/a",
            "https://index for me/b",
        ]
        assert tools.run("Find", query="c").output == "https://index/c"

    assert seen == ["url made", "index opened", "begun", "committed", "begun", "committed", "index closed"]


def test_what_is_made_for_a_call_sees_it_fail() -> None:
    with InlineExecutor(find) as tools:
        assert not tools.run("find", query="bad").success

    assert seen[-3:] == ["begun", "rolled back", "index closed"]


@pytest.mark.parametrize("find", [find, first])
def test_callers_do_not_see_it_and_a_dry_run_makes_nothing(find: BaseTool) -> None:
    assert [parameter.name for parameter in find.parameters] == ["query"]
    with InlineExecutor(find, context={"dry_run": True}) as tools:
        assert tools.run(find.name, query="x").success
    assert seen == []


@pytest.mark.parametrize("called", ["find", "Find"])
def test_a_test_puts_others_in_its_place(called: str) -> None:
    overrides: Any = {make_index: lambda: {"url": "fake"}}
    with InlineExecutor(find, Find, overrides=overrides) as tools:
        assert tools.run(called, query="x").output.startswith("fake")
    assert "index opened" not in seen


def test_what_cannot_be_made_is_a_failed_result_and_the_next_call_tries_again() -> None:
    tries = iter([RuntimeError("no licence"), None])

    def fails() -> dict[str, str]:
        if error := next(tries):
            raise error
        return {"url": "late"}

    with InlineExecutor(Find, wrong, overrides={make_index: fails}) as tools:
        assert "no licence" in (tools.run("Find", query="x").error or "")
        assert tools.run("Find", query="x").output == "late/x"
        assert 'begin takes the context of a call: use Depends(begin, per="call").' in (tools.run("wrong").error or "")
