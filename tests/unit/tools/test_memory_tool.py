"""Memory in process: its commands, paths, scopes and limits."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.reach import Reach
from forge_tools.testing import InlineExecutor
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import Memory
from forge_tools.tools.task.memory import normalised

Run = Callable[..., Awaitable[ToolResult]]
AGENT = {"agent_id": "agent-1", "session_id": "session-1"}


@pytest.fixture
async def memory() -> AsyncIterator[Run]:
    async with InlineExecutor(Memory, context=AGENT) as tools:

        async def run(
            command: str, path: str = "/memories/a.md", /, *, by: dict[str, Any] | None = None, **more: Any
        ) -> Any:
            context = tools.context.model_copy(update=by or {})
            return await tools.call("Memory", {"command": command, "path": path, **more}, context)

        yield run


async def text(memory: Run, path: str = "/memories/a.md", **how: Any) -> list[str]:
    return str((await memory("view", path, **how)).output).splitlines()


async def test_a_document_is_created_viewed_and_changed(memory: Run) -> None:
    assert (await memory("create", content="one\ntwo\nthree")).output.startswith("Wrote /memories/a.md (version 1)")
    assert (await memory("str_replace", old_str="two", new_str="2")).metadata["version"] == 2
    assert (await memory("insert", insert_line=1, insert_text="between\n")).success
    assert await text(memory) == ["     1\tone", "     2\tbetween", "     3\t2", "     4\tthree"]
    assert await text(memory, view_range=[3, -1]) == ["     3\t2", "     4\tthree"]
    assert (await memory("view", view_range=[5, 9])).error_code == "VALIDATION_ERROR"


async def test_what_exists_is_replaced_only_by_who_knows_its_version(memory: Run) -> None:
    await memory("create", content="one")

    assert (refused := await memory("create", content="two")).error_code == "DOCUMENT_EXISTS"
    assert "Pass expected_version=1 to replace it" in refused.error
    assert (await memory("create", content="two", expected_version=1)).metadata["version"] == 2
    assert (stale := await memory("str_replace", old_str="two", expected_version=1)).error_code == "VERSION_CONFLICT"
    assert stale.error_details == {"version": 2, "path": "/memories/a.md"}


@pytest.mark.parametrize(("old", "code"), [("four", "EDIT_NO_MATCH"), ("o", "EDIT_NOT_UNIQUE")])
async def test_text_is_replaced_only_where_it_stands_once(memory: Run, old: str, code: str) -> None:
    await memory("create", content="one two")
    assert (await memory("str_replace", old_str=old, new_str="x")).error_code == code
    assert await text(memory) == ["     1\tone two"]


async def test_a_folder_is_renamed_and_deleted_as_a_whole(memory: Run) -> None:
    for name in ("x/1", "x/2", "xy"):
        await memory("create", f"/memories/{name}", content=name)

    assert (await memory("rename", "/memories/x", new_path="/memories/xy")).error_code == "DOCUMENT_EXISTS"
    assert (await memory("rename", "/memories/x", new_path="/memories/x/y")).error_code == "VALIDATION_ERROR"
    assert (await memory("rename", "/memories/x", new_path="/memories/z")).success
    listed = [one["path"] for one in (await memory("list", "/memories")).metadata["documents"]]
    assert listed == ["/memories/xy", "/memories/z/1", "/memories/z/2"]
    assert (await memory("delete", "/memories/z")).success
    assert (await memory("delete", "/memories/z")).error_code == "DOCUMENT_NOT_FOUND"
    assert (await memory("view", "/memories")).output.startswith("/memories/xy  version 1, ")


async def test_a_search_shows_the_lines_that_were_meant(memory: Run) -> None:
    await memory("create", content="first\nthe DEPLOY key\nlast")
    await memory("create", "/memories/b.md", content='100 % "quoted" _')

    found = await memory("search", "/memories", query="deploy first")
    assert found.output == "/memories/a.md\n     1\tfirst\n     2\tthe DEPLOY key"
    assert (await memory("search", "/memories", query='% "quoted"')).output.startswith("/memories/b.md")
    assert (await memory("search", "/memories", query="NEAR( -x *")).output == "No document has all of: NEAR( -x *"
    assert (await memory("search", "/memories", query=" ")).error_code == "VALIDATION_ERROR"


async def test_of_many_documents_those_asked_for_are_shown(memory: Run) -> None:
    for number in range(3):
        await memory("create", f"/memories/{number}", content="x")

    listed = await memory("list", "/memories", limit=2)

    assert listed.metadata["truncated"] is True
    assert listed.output.splitlines()[-1] == "[there are more than 2; pass a path or words for fewer]"


async def test_agents_sessions_and_workspaces_have_memories_of_their_own(memory: Run) -> None:
    for scope in ("agent", "session", "workspace"):
        await memory("create", content=scope, scope=scope)

    assert await text(memory, by={"session_id": "session-2"}) == ["     1\tagent"]
    assert await text(memory, by={"agent_id": "agent-2"}, scope="session") == ["     1\tsession"]
    assert await text(memory, by={"agent_id": None, "session_id": None}, scope="workspace") == ["     1\tworkspace"]
    assert (await memory("view", by={"agent_id": "agent-2"})).error_code == "DOCUMENT_NOT_FOUND"


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("create", {}, "create needs content"),
        ("rename", {}, "rename needs new_path"),
        ("create", {"content": "x" * 100_001}, "exceeds maximum length: 100000"),
        ("insert", {"content": "x" * 99_999, "insert_line": 0}, "would have 100,003 characters; the limit is 100,000"),
        ("insert", {"content": "x", "insert_line": 9}, "insert_line 9 is past the end of /memories/a.md (1 line)"),
        ("create", {"path": "/memories", "content": "x"}, "is the top folder"),
        ("rename", {"new_path": f"/memories/{'n' * 300}"}, "exceeds maximum length: 256"),
        ("create", {"path": "k" * 1_000_000, "content": "x"}, "exceeds maximum length: 256"),
        ("create", {"path": "/memories/../../etc", "content": "x"}, "leave them out"),
        ("create", {"path": "/memories/\x00", "content": "x"}, "leave them out"),
        ("forget", {}, "must be one of"),
    ],
)
async def test_a_bad_call_changes_nothing(memory: Run, command: str, options: dict[str, Any], said: str) -> None:
    await memory("create", content="one")
    path = options.pop("path", "/memories/a.md") if "path" in options else "/memories/a.md"
    refused = await memory(command, path, **options)

    assert refused.error_code == "VALIDATION_ERROR"
    assert said in refused.error
    assert await text(memory) == ["     1\tone"]


def test_a_path_is_below_the_root_whatever_it_looks_like() -> None:
    same = ("/memories/n/a", "memories/n/a", "n//a/", "/n/a")
    assert {normalised(path) for path in same} == {"/memories/n/a"}
    assert normalised("/memories/%2e%2e/x") == "/memories/%2e%2e/x"
    assert normalised("e\u0301") == "/memories/\xe9"


async def test_a_dry_run_refuses_what_a_run_would_and_writes_nothing(memory: Run) -> None:
    dry = {"dry_run": True}
    assert (await memory("create", content="one", by=dry)).output.startswith("[Dry Run] Wrote /memories/a.md")
    assert (await memory("delete", by=dry)).error_code == "DOCUMENT_NOT_FOUND"
    assert (await memory("list", "/memories")).output == "There are no documents yet"


async def test_executors_without_a_reach_share_the_memory_of_the_process_and_one_without_documents_says_so() -> None:
    registry = ScopedRegistry()
    registry.register(Memory())
    context = ExecutionContext(working_dir=".", agent_id="of test_memory_tool")
    kept = await ToolExecutor(registry).execute("Memory", context, command="create", path="a", content="one")
    seen = await ToolExecutor(registry).execute("Memory", context, command="view", path="a")
    cut_off = ToolExecutor(registry, reach=Reach(documents=None))

    assert kept.output.endswith("[kept only in the memory of this process: there is no database here]")
    assert seen.output == "     1\tone"
    refused = await cut_off.execute("Memory", context, command="list")
    assert (refused.error_code, "Run it in the async lane" in (refused.error or "")) == ("SERVICE_UNAVAILABLE", True)
