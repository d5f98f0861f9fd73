"""What a process keeps in memory of its calls is bounded by their number and by what they hold."""

from typing import Any

import pytest

from forge_tools.model.calls import ExecutionContext, Newest, ToolResult
from forge_tools.model.content import Image
from forge_tools.model.tools import ToolCategory
from forge_tools.tool import tool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry


def test_the_oldest_calls_go_first() -> None:
    kept: Newest[int] = Newest(3)
    for call in range(5):
        kept.add(call, {}, "small")
    assert list(kept) == [2, 3, 4]
    kept.clear()
    assert list(kept) == []


def test_none_is_kept_where_none_is_wanted() -> None:
    kept: Newest[int] = Newest(0)
    kept.add(1, {}, "small")
    assert list(kept) == []


@pytest.mark.parametrize(
    "large",
    ["x" * 600, b"x" * 600, [["x" * 300], {"y" * 150: {"z": ("w" * 150,)}}], {"image": Image(data=b"x" * 600)}],
)
def test_large_parameters_and_outputs_push_older_calls_out(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Newest, "MOST_KEPT", 1_000)
    kept: Newest[int] = Newest(10)
    kept.add(1, {"text": large}, None)
    kept.add(2, {}, "x" * 300)
    assert list(kept) == [1, 2]
    kept.add(3, {}, large)
    assert list(kept) == [2, 3]
    kept.add(4, {"text": large}, large)
    assert list(kept) == [4], "the newest stays, however large"
    kept.clear()
    kept.add(5, {}, large)
    kept.add(6, {}, "x" * 300)
    assert list(kept) == [5, 6]


def test_what_contains_itself_or_one_thing_many_times_is_measured_once() -> None:
    deep: list[Any] = ["x"]
    for _ in range(200):
        deep = [deep, deep]
    deep.append(deep)
    kept: Newest[int] = Newest(3)
    kept.add(1, {"deep": deep}, deep)
    assert list(kept) == [1]


async def test_an_executor_forgets_large_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Newest, "MOST_KEPT", 1_000)

    @tool(category=ToolCategory.OTHER)
    async def page(size: int) -> str:
        """Return a page."""
        return "x" * size

    registry = ScopedRegistry()
    registry.register(page)
    executor = ToolExecutor(registry)
    for size in (400, 401, 402):
        result: ToolResult = await executor.execute("page", ExecutionContext(working_dir="."), size=size)
        assert result.success
    assert [call.parameters["size"] for call in executor.get_executions()] == [401, 402]
    assert executor.get_stats()["total_executions"] == 3
