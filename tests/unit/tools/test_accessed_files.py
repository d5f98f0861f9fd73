"""What file tools report about files they read and wrote, and about unusable paths."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult
from forge_tools.testing import InlineExecutor
from forge_tools.tools import BUILTINS
from tests.unit.tools.every_tool import WRONG, fill

Run = Callable[..., ToolResult]


@pytest.fixture
def run() -> Iterator[Run]:
    with InlineExecutor(*BUILTINS, files={"a.txt": "one\ntwo\n", "b.txt": "two\n"}) as tools:
        yield tools.run


@pytest.mark.parametrize(
    ("tool", "parameters", "facts"),
    [
        ("Read", {"file_path": "a.txt"}, {"bytes_read": 8, "files_accessed": ["a.txt"]}),
        ("Read", {"file_path": "a.txt", "encoding": "latin-1"}, {"bytes_read": 8, "files_accessed": ["a.txt"]}),
        ("Write", {"file_path": "c", "content": "é"}, {"bytes_read": 0, "bytes_written": 2, "files_accessed": ["c"]}),
        ("Write", {"file_path": "b.txt", "content": "two\n"}, {"bytes_read": 4, "bytes_written": 0}),
        ("Edit", {"file_path": "a.txt", "old_string": "one", "new_string": "1"}, {"bytes_read": 8, "bytes_written": 6}),
        ("Delete", {"file_path": "a.txt"}, {"files_accessed": ["a.txt"]}),
        ("Grep", {"pattern": "two", "path": "a.txt"}, {"bytes_read": None, "files_accessed": ["a.txt"]}),
        ("Grep", {"pattern": "two", "output_mode": "content"}, {"bytes_read": 12, "files_searched": 2}),
        ("Grep", {"pattern": "two", "output_mode": "count"}, {"bytes_read": None, "files_searched": 2}),
    ],
)
def test_results_say_what_was_read_and_written(
    run: Run, tool: str, parameters: dict[str, Any], facts: dict[str, Any]
) -> None:
    result = run(tool, **parameters)

    assert result.success, result.error
    assert {name: result.metadata.get(name) for name in facts} == facts


def test_the_nested_shape_has_the_names_that_its_callers_know(run: Run) -> None:
    told = run("Write", file_path="c", content="x").to_dict("nested")["metadata"]

    assert {name: told[name] for name in ("bytesRead", "bytesWritten", "filesAccessed")} == {
        "bytesRead": 0, "bytesWritten": 1, "filesAccessed": ["c"],
    }  # fmt: skip
    assert "bytes_read" not in told


@pytest.mark.parametrize(("tool", "parameters"), WRONG)
def test_failures_name_the_path_that_was_asked_for(tool: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    with InlineExecutor(*BUILTINS) as tools:
        fill(tools.workspace)
        result = tools.run(tool, **parameters)

    asked = next((parameters[name] for name in ("file_path", "notebook_path", "path") if name in parameters), ".")
    assert result.error_details["path"] == asked
