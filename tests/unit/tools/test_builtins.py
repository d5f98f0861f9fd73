"""What all built-in tools have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from forge_tools.model import ToolCategory, ToolParameter
from forge_tools.tool.base import BaseTool
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS
from forge_tools.tools.builtin import Deadline, counted, option, parameters_of

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
    "notebook_read": "NotebookRead",
    "notebook_edit": "NotebookEdit",
    "detect_project_type": "DetectProjectType",
    "extract_conventions": "ExtractConventions",
    "get_project_overview": "ProjectOverview",
}


@pytest.mark.parametrize("tool", BUILTINS)
def test_a_built_in_is_complete(tool: type[BaseTool]) -> None:
    spec = tool().spec
    assert spec.lane == ("process" if "code" in spec.tags else "async")  # a grammar holds the interpreter
    assert not spec.extra
    assert all(parameter.description.endswith(".") or ":" in parameter.description for parameter in spec.parameters)


@dataclass(kw_only=True)
class Options:
    """One field of each kind."""

    text: str = option("A text.", max_length=3, aliases=("t",))
    number: int | None = option("A number.", None, minimum=1)
    choice: Literal["a", "b"] = option("A choice.", "a")
    maybe: Literal["*"] | None = option("A choice, or none.", None)
    flag: bool = option("A flag.", default=True)
    several: Sequence[str] | None = option("Texts.", None, items={"type": "string"})
    table: Mapping[str, Any] | None = option("Names and values.", None)
    own: int = 0


def test_the_fields_of_a_record_are_parameters() -> None:
    assert parameters_of(Options) == (
        ToolParameter(name="text", type="string", description="A text.", max_length=3, aliases=("t",)),
        ToolParameter(name="number", type="integer", description="A number.", required=False, minimum=1),
        ToolParameter(
            name="choice", type="string", description="A choice.", required=False, default="a", enum=["a", "b"]
        ),
        ToolParameter(name="maybe", type="string", description="A choice, or none.", required=False, enum=["*"]),
        ToolParameter(name="flag", type="boolean", description="A flag.", required=False, default=True),
        ToolParameter(name="several", type="array", description="Texts.", required=False, items={"type": "string"}),
        ToolParameter(name="table", type="object", description="Names and values.", required=False),
    )


def test_things_are_counted_in_words() -> None:
    assert [counted(1, "file"), counted(2994, "file"), counted(0, "entry", "entries")] == [
        "1 file",
        "2,994 files",
        "0 entries",
    ]


def test_both_kinds_of_names_find_them() -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    assert {alias: registry.get(alias).name for alias in NAMES} == NAMES
    assert set(NAMES.values()) <= set(registry.list_names())
    by_category = {category: {tool.name for tool in registry.list_by_category(category)} for category in ToolCategory}
    assert by_category[ToolCategory.EXECUTION] == {"Bash", "BashOutput", "KillShell", "ListShells"}
    assert by_category[ToolCategory.NOTEBOOK] == {"NotebookRead", "NotebookEdit"}
    assert by_category[ToolCategory.FILE] == {"Read", "Write", "Edit", "Delete", "ListDirectory", "Glob", "Grep"}
    tagged = {tag: {tool.name for tool in BUILTINS if tag in tool.tags} for tag in ("project", "code")}
    assert tagged["project"] == {"DetectProjectType", "ExtractConventions", "ProjectOverview"}
    assert by_category[ToolCategory.OTHER] == tagged["project"] | tagged["code"]


def test_what_writes_says_so() -> None:
    writers = {tool.name for tool in BUILTINS if tool().spec.capabilities.writes_files}
    assert writers == {"Write", "Edit", "Delete", "Bash", "NotebookEdit"}
    assert [tool.name for tool in BUILTINS if not tool().spec.capabilities.idempotent] == ["Bash"]


@pytest.mark.parametrize(("timeout", "margin"), [(120, 2.0), (5, 0.5), (0.1, 0.01)])
def test_a_body_ends_a_little_before_its_call(timeout: float, margin: float) -> None:
    deadline = Deadline(timeout)
    assert deadline.margin == pytest.approx(margin)
    assert 0 < deadline.remaining <= timeout - margin
    assert not deadline.is_over


def test_the_deadline_of_a_part_passes_when_the_call_is_cancelled() -> None:
    deadline = Deadline(60)
    part = deadline.within(30)
    assert not part.is_over
    deadline.cancel()
    assert part.is_over
    assert deadline.is_over
