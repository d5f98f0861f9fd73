"""TodoRead and TodoWrite in process: ids, merging, versions, and what is refused."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.model.documents import DocumentScope, DocumentWriter
from forge_tools.model.scope import SCOPE, CallScope
from forge_tools.sandbox.reach import ProcessDocuments
from forge_tools.testing import InlineExecutor
from forge_tools.tools import TodoRead, TodoWrite


class Session:
    def __init__(self, tools: InlineExecutor) -> None:
        self.tools = tools

    async def write(self, *todos: Any, **options: Any) -> ToolResult:
        items = [{"content": one} if isinstance(one, str) else one for one in todos]
        return await self.tools.call("TodoWrite", {"todos": items, **options})

    async def read(self, **options: Any) -> ToolResult:
        return await self.tools.call("TodoRead", options)

    async def other(self, **context: Any) -> ToolResult:
        return await self.tools.call("TodoRead", {}, self.tools.context.model_copy(update=context))


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with InlineExecutor(TodoRead, TodoWrite, context={"session_id": "session-1"}) as tools:
        yield Session(tools)


def ids(result: ToolResult) -> dict[str, str]:
    return {todo["content"]: todo["id"] for todo in result.metadata["todos"]}


async def test_new_items_get_ids_that_say_which_is_meant_from_then_on(session: Session) -> None:
    first = await session.write("Write", {"id": " ", "content": "Test"}, "Ship")
    known = ids(first)
    merged = await session.write({"id": known["Test"], "status": "in_progress", "priority": "high"}, merge=True)

    assert len(set(known.values())) == 3
    assert merged.output.splitlines()[:3] == [
        f"[ ] {known['Write']}  Write", f"[>] {known['Test']}  Test (high)", f"[ ] {known['Ship']}  Ship",
    ]  # fmt: skip
    assert (merged.metadata["changed"], merged.metadata["version"]) == ([known["Test"]], 2)
    assert ids(await session.read()) == known


async def test_a_list_that_is_replaced_keeps_the_ids_of_what_stays(session: Session) -> None:
    first = await session.write("Write", "Test", "Test")
    [_, test, again] = [todo["id"] for todo in first.metadata["todos"]]
    replaced = await session.write("Test", "New", "Test")

    assert [todo["id"] for todo in replaced.metadata["todos"]][::2] == [test, again]
    assert (len(replaced.metadata["added"]), replaced.metadata["removed"]) == (1, [ids(first)["Write"]])


async def test_what_is_written_again_is_no_new_version(session: Session) -> None:
    await session.write("Write")
    assert (await session.write("Write")).metadata["version"] == 1
    assert (await session.write()).output.startswith("The list default is empty")
    assert (await session.read()).metadata["version"] == 2


async def test_the_status_chooses_and_the_counts_are_of_all(session: Session) -> None:
    await session.write("Write", {"content": "Test", "status": "completed"})
    read = await session.read(status="completed")

    assert [todo["content"] for todo in read.metadata["todos"]] == ["Test"]
    assert read.metadata["counts"] == {"pending": 1, "in_progress": 0, "completed": 1, "cancelled": 0}
    assert "2 todos in list" in (await session.read(status="cancelled")).output


async def test_lists_and_sessions_see_nothing_of_each_other(session: Session) -> None:
    await session.write("Write")

    assert (await session.read(list="other")).output == "Nothing to show: 0 todos in list other"
    assert (await session.other(session_id="session-2")).metadata["version"] == 0
    assert (await session.other(session_id=None)).metadata["version"] == 0
    assert (await session.other(agent_id="agent-2")).metadata["version"] == 1


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"todos": [{"content": "a"}], "expected_version": 7}, "VERSION_CONFLICT", "at version 1, not 7. Read it"),
        ({"todos": [{"content": "a"}], "expected_version": 0}, "VERSION_CONFLICT", "at version 1, not 0. Read it"),
        ({"todos": [{"id": "x", "content": "a"}] * 2}, "VALIDATION_ERROR", "have the same id: x"),
        ({"todos": [{"id": "nix", "status": "completed"}], "merge": True}, "VALIDATION_ERROR", "no todo 'nix'"),
        ({"todos": [{"content": "a"}] * 10_000}, "VALIDATION_ERROR", "more items than maximum: 200"),
        ({"todos": [{"content": "a"}] * 200, "merge": True}, "VALIDATION_ERROR", "201 todos; the limit is 200"),
        ({"todos": [{"content": "a" * 1_000_000}]}, "VALIDATION_ERROR", "exceeds maximum length: 1000"),
        ({"todos": [{"content": "a", "state": "done"}]}, "VALIDATION_ERROR", "state"),
        ({"todos": [{"content": "a"}], "list": "a/b"}, "VALIDATION_ERROR", "list"),
    ],
)
async def test_a_bad_write_changes_nothing(session: Session, options: dict[str, Any], code: str, said: str) -> None:
    await session.write("Write")
    refused = await session.tools.call("TodoWrite", options)

    assert refused.error_code == code
    assert said in (refused.error or "")
    assert [*ids(read := await session.read())] == ["Write"]
    assert read.metadata["version"] == 1
    if code == "VERSION_CONFLICT":
        assert refused.error_details == {"version": 1, "todos": read.metadata["todos"]}


async def test_what_is_probably_not_meant_is_said(session: Session) -> None:
    known = ids(await session.write({"content": "Write tests", "status": "in_progress"}))["Write tests"]
    written = await session.write(
        {"id": known, "content": "Buy milk"}, {"content": "b", "status": "in_progress"}, merge=True
    )

    assert len(written.metadata["warnings"]) == 2
    assert "[warning: 2 todos are in_progress at once" in written.output
    assert f"[warning: {known} was 'Write tests', and now means something else]" in written.output


async def test_nothing_in_a_todo_reaches_the_terminal(session: Session) -> None:
    written = await session.write("one\ntwo \x1b[31mred\x00")

    assert "\x1b" not in written.output
    assert "one two" in written.output.splitlines()[0]


async def test_a_dry_run_tells_the_list_and_writes_nothing(session: Session) -> None:
    dry = session.tools.context.model_copy(update={"dry_run": True})
    told = await session.tools.call("TodoWrite", {"todos": [{"content": "Write"}]}, dry)

    assert told.output.startswith("[Dry Run] The list would be:\n[ ] ")
    assert (await session.read()).metadata["version"] == 0
    assert "[kept only in the memory of this process" in (await session.write("Write")).output


async def test_of_a_call_that_is_started_again_the_store_is_told(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[DocumentWriter] = []
    change = ProcessDocuments.change

    async def noted(self: ProcessDocuments, scope: DocumentScope, *rest: Any) -> Any:
        writers.append(rest[-1])
        return await change(self, scope, *rest)

    monkeypatch.setattr(ProcessDocuments, "change", noted)
    for attempt, content in ((1, "a"), (2, "a"), (2, "b")):
        token = SCOPE.set(CallScope(execution_id="execution-1", attempt=attempt, max_attempts=3))
        await session.write(content)
        SCOPE.reset(token)

    first, again, other = writers
    assert (first.is_repeated, again.is_repeated) == (False, True)
    assert first.call == again.call != other.call
    assert (await session.write("c")).success
    assert writers[-1] == DocumentWriter()
