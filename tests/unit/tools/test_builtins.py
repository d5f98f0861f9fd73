"""What all built-in tools have in common."""

import inspect

import pytest

from forge_tools.base import BaseTool
from forge_tools.records import ExecutionContext, ToolCategory
from forge_tools.registry import ScopedRegistry
from forge_tools.tools import BUILTINS, Grep
from forge_tools.tools.deadline import Deadline
from forge_tools.tools.file.ripgrep import Search


@pytest.mark.parametrize("tool", BUILTINS)
def test_a_built_in_is_complete(tool: type[BaseTool]) -> None:
    spec = tool().spec
    assert spec.lane == "async"
    assert not spec.extra
    assert all(parameter.description.endswith(".") or ":" in parameter.description for parameter in spec.parameters)


@pytest.mark.parametrize("tool", BUILTINS)
def test_the_schema_and_the_body_have_the_same_defaults(tool: type[BaseTool]) -> None:
    body = inspect.signature(Search if tool is Grep else tool._execute).parameters
    for parameter in tool().spec.parameters:
        if not parameter.required:
            assert (body[parameter.name].default or None) == (parameter.default or None)


def test_both_kinds_of_names_find_them() -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    assert registry.list_names() == ["Bash", "Grep", "Read"]
    assert {registry.get(name).name for name in ("read_file", "grep", "run_command")} == {"Read", "Grep", "Bash"}
    assert len(registry.list_by_category(ToolCategory.FILE)) == 2


@pytest.mark.parametrize(("timeout", "margin"), [(120, 2.0), (5, 0.5), (0.1, 0.01)])
def test_a_body_ends_a_little_before_its_call(timeout: float, margin: float) -> None:
    deadline = Deadline(ExecutionContext(working_dir=".", timeout=timeout))
    assert deadline.margin == pytest.approx(margin)
    assert 0 < deadline.remaining <= timeout - margin
    assert not deadline.is_over
