"""What users import exists, and `__all__` is correct."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROMISED = {
    "forge_tools": ("BaseTool", "ToolExecutor", "ToolRegistry"),
    "forge_tools.tool.base": (
        "BaseTool",
        "Capabilities",
        "ExecutionContext",
        "ToolCategory",
        "ToolExecution",
        "ToolParameter",
        "ToolResult",
        "ToolSpec",
    ),
    "forge_tools.tool.registry": ("ScopedRegistry", "ToolRegistry"),
    "forge_tools.tool.executor": ("CallOptions", "ToolExecutor"),
    "forge_tools.client": ("Call", "ExecutorClient", "Handle", "SyncExecutorClient", "SyncHandle"),
    "forge_tools.config": ("Settings",),
    "forge_tools.tool": (
        "Depends",
        "FunctionTool",
        "Setting",
        "ToolFactory",
        "ToolFailure",
        "admit",
        "load_project",
        "load_tools",
        "tool",
    ),
    "forge_tools.testing": ("InlineExecutor",),
    "forge_tools.errors": ("ErrorCode", "ForgeError"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def declared(path: Path) -> list[str] | None:
    """The value of `__all__`, where a module has one."""
    for statement in statements(path):
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["__all__"]:
            return list(ast.literal_eval(statement.value))
    return None


def annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.Name]:
    """The names in the annotations of a function."""
    holders = [function, *(node for node in ast.walk(function.args) if isinstance(node, ast.arg))]
    given = [holder.returns if isinstance(holder, FUNCTIONS) else holder.annotation for holder in holders]
    return [name for one in given if one is not None for name in ast.walk(one) if isinstance(name, ast.Name)]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SOURCES = sorted(path for package in ("forge_tools", "workers") for path in (ROOT / package).rglob("*.py"))
DECLARING = [path for path in SOURCES if declared(path) is not None]
HANDING_ON = [
    path
    for path in SOURCES
    if path.name == "__init__.py" and any(isinstance(one, ast.ImportFrom | ast.Import) for one in statements(path))
]


@pytest.mark.parametrize(("module", "names"), PROMISED.items(), ids=list(PROMISED))
def test_the_promised_names_are_importable(module: str, names: tuple[str, ...]) -> None:
    found = importlib.import_module(module)

    assert [name for name in names if not hasattr(found, name)] == []


def test_the_names_of_the_package_are_those_of_their_modules() -> None:
    package = importlib.import_module("forge_tools")
    [block] = [one for one in statements(ROOT / "forge_tools" / "__init__.py") if isinstance(one, ast.If)]
    homes = {alias.name: found.module for found in block.body for alias in found.names}

    assert sorted(homes) == package.__all__
    for name, home in homes.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("path", DECLARING, ids=module_name)
def test_what_is_declared_public_exists_and_is_said_once(path: Path) -> None:
    names = declared(path) or []
    module = importlib.import_module(module_name(path))

    assert [name for name in names if not hasattr(module, name)] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", HANDING_ON, ids=module_name)
def test_a_package_that_hands_on_names_declares_exactly_these(path: Path) -> None:
    lazily = [one for statement in statements(path) if isinstance(statement, ast.If) for one in statement.body]
    handed_on = [
        alias.asname or alias.name
        for statement in (*statements(path), *lazily)
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]
    named_here = [
        target.id
        for statement in statements(path)
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id != "__all__"
    ]
    own = [one.name for one in statements(path) if isinstance(one, ast.FunctionDef | ast.ClassDef)]

    public = {name for name in (*handed_on, *named_here, *own) if not name.startswith("_")}

    names = declared(path)
    assert names is not None, "a package that hands on names says which, in `__all__`"
    assert set(names) <= public
    assert set(handed_on) - set(names) <= imported_for_itself(path), "handed on, but not declared"


def imported_for_itself(path: Path) -> set[str]:
    """Names that the file imports and also uses."""
    return {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}


def test_no_annotation_means_a_method_of_its_class() -> None:
    """Python 3.14 evaluates annotations in the class, where a method `list` stands before the builtin."""
    found = [
        f"{path.relative_to(ROOT)}: {cls.name}.{member.name}: {name.id}"
        for path in SOURCES
        for cls in ast.walk(ast.parse(path.read_text()))
        if isinstance(cls, ast.ClassDef)
        for methods in [{one.name for one in cls.body if isinstance(one, FUNCTIONS)}]
        for member in cls.body
        if isinstance(member, FUNCTIONS)
        for name in annotated(member)
        if name.id in methods
    ]

    assert found == [], "write builtins.list"
