"""A model without Read can continue reading a long output, but reaches no file that way."""

from pathlib import Path
from typing import Any

import pytest

from forge_tools.adapters.langchain import langchain_tools
from forge_tools.adapters.toolset import Answer, ToolCall, Toolset
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.base import ExecutionContext
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools.file.read import Read
from tests.spec.sample_tools import Echo

LINES = [f"{number:06} {'-' * 40}" for number in range(3000)]


@pytest.fixture
def executor(tmp_path: Path) -> ToolExecutor:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/secret.txt").write_text("a file")
    registry = ScopedRegistry()
    registry.register_many([Read(), Echo()])
    return ToolExecutor(registry, reach=Reach(root=tmp_path / "work", artifacts=FolderArtifacts(tmp_path / "kept")))


@pytest.fixture
def toolset(executor: ToolExecutor) -> Toolset:
    context = ExecutionContext(working_dir=".", session_id="s", max_output_size=5000)
    return Toolset(executor, names=["Echo"], context=context, artifacts=True)


async def ask(toolset: Toolset, name: str, **arguments: Any) -> Answer:
    [answer] = await toolset.answer([ToolCall("1", name, arguments)])
    return answer


def test_it_is_offered_where_it_is_wanted_and_nothing_else_would_do(executor: ToolExecutor) -> None:
    def offered(**choice: Any) -> list[str]:
        return sorted(spec.name for spec in Toolset(executor, **choice).specs())

    assert offered(names=["Echo"], artifacts=True) == ["Echo", "ReadArtifact"]
    assert offered(names=["Echo"]) == ["Echo"]
    assert offered(artifacts=True) == ["Echo", "Read"]
    assert offered(names=["Echo", "read_file"], artifacts=True) == ["Echo", "Read"]


def test_its_schema_says_what_it_takes(toolset: Toolset) -> None:
    spec = next(spec for spec in toolset.specs() if spec.name == "ReadArtifact")
    assert [one.name for one in spec.parameters] == ["artifact", "offset", "limit", "tail", "column"]


async def test_a_model_reads_on_from_where_its_output_was_cut(toolset: Toolset) -> None:
    long = await ask(toolset, "Echo", message="\n".join(LINES))
    handle, following = long.result.metadata["artifact"], long.result.metadata["next"]
    assert f"{handle}, Read it with offset={following['offset']}" in long.text
    page = await ask(toolset, "ReadArtifact", artifact=handle, offset=following["offset"], limit=3)
    shown = [line.partition("\t")[2] for line in page.text.splitlines()[:3]]
    assert shown == LINES[following["offset"] - 1 : following["offset"] + 2]
    assert "continue with offset=" in page.text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"artifact": "secret.txt"}, "must be a handle, artifact:// and 32 or 64 hexadecimal digits"),
        ({"artifact": "artifact://../secret.txt"}, "must be a handle"),
        ({"artifact": 7}, "must be a handle"),
        ({}, "must be a handle"),
        ({"artifact": "artifact://" + "0" * 32, "file_path": "secret.txt"}, "Unknown parameter of ReadArtifact"),
        ({"artifact": "artifact://" + "0" * 32, "path": "secret.txt"}, "Unknown parameter of ReadArtifact"),
        ({"artifact": "artifact://" + "0" * 32}, "This session has no artifact"),
    ],
)
async def test_it_reads_artifacts_of_its_session_and_no_files(
    toolset: Toolset, arguments: dict[str, Any], problem: str
) -> None:
    answer = await ask(toolset, "ReadArtifact", **arguments)
    assert answer.is_error
    assert problem in answer.text
    assert "a file" not in answer.text
    assert (await ask(toolset, "Read", file_path="secret.txt")).result.error_code == "TOOL_NOT_FOUND"


async def test_where_it_is_not_wanted_it_is_not_run(executor: ToolExecutor) -> None:
    answer = await ask(Toolset(executor, names=["Echo"]), "ReadArtifact", artifact="artifact://" + "0" * 32)
    assert answer.result.error_code == "TOOL_NOT_FOUND"


async def test_langchain_has_it_too(executor: ToolExecutor) -> None:
    context = ExecutionContext(working_dir=".", session_id="s", max_output_size=5000)
    tools = {tool.name: tool for tool in langchain_tools(executor, names=["Echo"], context=context, artifacts=True)}
    said = {"name": "Echo", "args": {"message": "\n".join(LINES)}, "id": "1", "type": "tool_call"}
    handle = (await tools["Echo"].ainvoke(said)).artifact["metadata"]["artifact"]
    wanted = {"name": "ReadArtifact", "args": {"artifact": handle, "offset": 2000, "limit": 1}, "id": "2"}
    page = await tools["ReadArtifact"].ainvoke({**wanted, "type": "tool_call"})
    assert LINES[1999] in page.content
