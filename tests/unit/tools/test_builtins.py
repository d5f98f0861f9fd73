"""What all built-in tools have in common."""

import inspect

import pytest

from forge_tools.base import BaseTool
from forge_tools.records import ExecutionContext, ToolCategory
from forge_tools.registry import ScopedRegistry
from forge_tools.tools import BUILTINS, Delete, Edit, Glob, Grep, ListDirectory, Write
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.deleting import Deleting
from forge_tools.tools.file.editing import Editing
from forge_tools.tools.file.finding import Wanted
from forge_tools.tools.file.listing import Wish
from forge_tools.tools.file.ripgrep import Search
from forge_tools.tools.file.writing import Writing

BODIES = {Glob: Wanted, Grep: Search, Write: Writing, Edit: Editing, Delete: Deleting, ListDirectory: Wish}
"""What takes the options of a tool, where it is not `_execute` itself."""

NAMES = {
    "read_file": "Read",
    "write_file": "Write",
    "edit_file": "Edit",
    "delete_file": "Delete",
    "list_directory": "ListDirectory",
    "glob": "Glob",
    "grep": "Grep",
    "run_command": "Bash",
    "bash_output": "BashOutput",
    "kill_shell": "KillShell",
    "list_shells": "ListShells",
}


@pytest.mark.parametrize("tool", BUILTINS)
def test_a_built_in_is_complete(tool: type[BaseTool]) -> None:
    spec = tool().spec
    assert spec.lane == "async"
    assert not spec.extra
    assert all(parameter.description.endswith(".") or ":" in parameter.description for parameter in spec.parameters)


@pytest.mark.parametrize("tool", BUILTINS)
def test_the_schema_and_the_body_have_the_same_defaults(tool: type[BaseTool]) -> None:
    body = inspect.signature(BODIES.get(tool, tool._execute)).parameters
    for parameter in tool().spec.parameters:
        if not parameter.required:
            assert (body[parameter.name].default or None) == (parameter.default or None)


def test_both_kinds_of_names_find_them() -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    assert {alias: registry.get(alias).name for alias in NAMES} == NAMES
    assert set(NAMES.values()) <= set(registry.list_names())
    by_category = {
        category: {tool.name for tool in registry.list_by_category(category)}
        for category in (ToolCategory.FILE, ToolCategory.EXECUTION)
    }
    assert by_category[ToolCategory.EXECUTION] == {"Bash", "BashOutput", "KillShell", "ListShells"}
    assert by_category[ToolCategory.FILE] == set(NAMES.values()) - by_category[ToolCategory.EXECUTION]


def test_what_writes_says_so() -> None:
    writers = {tool.name for tool in BUILTINS if tool().spec.capabilities.writes_files}
    assert writers == {"Write", "Edit", "Delete", "Bash"}
    assert [tool.name for tool in BUILTINS if not tool().spec.capabilities.idempotent] == ["Bash"]


@pytest.mark.parametrize(("timeout", "margin"), [(120, 2.0), (5, 0.5), (0.1, 0.01)])
def test_a_body_ends_a_little_before_its_call(timeout: float, margin: float) -> None:
    deadline = Deadline(ExecutionContext(working_dir=".", timeout=timeout))
    assert deadline.margin == pytest.approx(margin)
    assert 0 < deadline.remaining <= timeout - margin
    assert not deadline.is_over
