"""What the sources ask of the tools for notebooks and projects: their names, their category, and that they only read."""

from pathlib import Path

import pytest

from forge_tools.executor import ToolExecutor
from forge_tools.model import ExecutionContext, ToolCategory
from forge_tools.registry import ScopedRegistry
from forge_tools.sandbox.reach import Reach
from forge_tools.tools import BUILTINS
from tests.unit.tools.notebook.notebooks import code, notebook, written


@pytest.mark.spec("S0-14", "S0-51")
def test_the_notebook_tools_are_found_by_their_category() -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])

    found = registry.list_by_category(ToolCategory.NOTEBOOK)

    assert [tool.name for tool in found] == ["NotebookRead", "NotebookEdit"]


@pytest.mark.spec("S1-15")
@pytest.mark.parametrize("name", ["detect_project_type", "extract_conventions", "get_project_overview"])
async def test_a_project_tool_only_reads_and_says_so(tmp_path: Path, name: str) -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    (tmp_path / "setup.py").write_text("open('ran', 'w')\n")

    told = await ToolExecutor(registry, reach=Reach(root=tmp_path)).execute(name, ExecutionContext(working_dir="."))

    assert told.success, told.error
    assert [path.name for path in tmp_path.iterdir()] == ["setup.py"]
    capabilities = registry.get_or_raise(name).spec.capabilities
    assert not capabilities.writes_files
    assert not capabilities.executes_commands
    assert not capabilities.accesses_network


@pytest.mark.spec("S0-33")
async def test_a_dry_run_of_a_notebook_edit_writes_nothing(tmp_path: Path) -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    (tmp_path / "n.ipynb").write_bytes(written(notebook(code("a"))))
    context = ExecutionContext(working_dir=".", dry_run=True)

    told = await ToolExecutor(registry, reach=Reach(root=tmp_path)).execute(
        "NotebookEdit", context, notebook_path="n.ipynb", cell_index=0, new_source="b"
    )

    assert told.success
    assert "[Dry Run]" in told.output
    assert (tmp_path / "n.ipynb").read_bytes() == written(notebook(code("a")))


@pytest.mark.spec("S1-52")
def test_each_tool_of_the_six_groups_is_there_by_its_name() -> None:
    groups = {
        "file": ("read_file", "write_file", "edit_file", "delete_file"),
        "search": ("grep", "glob", "list_directory"),
        "code": (
            *("search_code", "get_codebase_map", "get_symbol_info", "get_imports_exports"),
            *("build_dependency_graph", "resolve_symbol", "find_references"),
        ),
        "analysis": ("detect_project_type", "extract_conventions", "get_project_overview"),
        "execution": ("run_command", "bash_output", "kill_shell"),
        "state": ("todo_write",),
    }
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])

    assert [name for names in groups.values() for name in names if registry.get(name) is None] == []
