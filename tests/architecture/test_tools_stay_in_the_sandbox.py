"""Tools access files, processes and the network only through `forge_tools.sandbox`, and print nothing."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = sorted((ROOT / "forge_tools/tools").rglob("*.py"))

FORBIDDEN_MODULES = {
    "subprocess",
    "socket",
    "shutil",
    "glob",
    "tempfile",
    "io",
    "multiprocessing",
    "ctypes",
    "mmap",
    "pty",
    "posix",
    "posixpath",
    "genericpath",
    "fcntl",
    "fileinput",
    "linecache",
    "zipfile",
    "tarfile",
    "sqlite3",
    "importlib",
    "runpy",
    "urllib",
    "http",
}
# Of `os` only what works on a handle that the sandbox opened, or on no file at all.
ALLOWED_OF_OS = {"pread", "lseek", "SEEK_SET", "fsencode", "fsdecode"}
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__"}
FORBIDDEN_ASYNCIO = {"create_subprocess_exec", "create_subprocess_shell", "open_connection", "start_server"}
PATH_ACTIONS = {
    "exists", "is_file", "is_dir", "iterdir", "glob", "rglob", "resolve", "stat", "lstat", "open", "read_text", "read_bytes",
    "write_text", "write_bytes", "unlink", "rename", "replace", "mkdir", "rmdir", "touch", "chmod", "readlink", "cwd", "home",
}  # fmt: skip


def offences(tree: ast.AST) -> list[str]:
    found: list[str] = []
    paths = {"Path"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.partition(".")[0] in FORBIDDEN_MODULES | {"pathlib"}]
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_forbidden = node.module.partition(".")[0] in FORBIDDEN_MODULES or node.module.startswith("os.")
            is_forbidden = is_forbidden and node.module != "urllib.parse"  # which takes URLs apart, and reaches nothing
            found += [node.module] if is_forbidden else []
            found += [f"os.{a.name}" for a in node.names if node.module == "os" and a.name not in ALLOWED_OF_OS]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += [node.func.id] if node.func.id in FORBIDDEN_CALLS else []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name, action = node.value.id, node.attr
            found += [f"os.{action}"] if name == "os" and action not in ALLOWED_OF_OS else []
            found += [f"asyncio.{action}"] if name == "asyncio" and action in FORBIDDEN_ASYNCIO else []
        if isinstance(node, ast.Attribute) and node.attr in PATH_ACTIONS and is_path(node.value, paths):
            found.append(f"Path.{node.attr}")
    return found


def is_path(node: ast.expr, names: set[str]) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name) and called.id in names


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_tool_touches_nothing_but_through_the_sandbox(path: Path) -> None:
    assert offences(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "import subprocess",
        "from subprocess import run",
        "import os; os.open(path, 0)",
        "import os; os.environ['HOME']",
        "from os import listdir",
        "from pathlib import Path; Path(path).read_text()",
        "from pathlib import Path; Path.cwd()",
        "import pathlib",
        "import asyncio; asyncio.create_subprocess_exec('ls')",
        "import posixpath; posixpath.exists(path)",
        "from os.path import exists",
        "import os; os.path.exists(path)",
        "import os; os.replace(one, other)",
        "import os; os.unlink(name, dir_fd=folder)",
        "from zipfile import ZipFile",
        "print('x')",
    ],
)
def test_the_rule_itself_finds_what_it_forbids(code: str) -> None:
    assert offences(ast.parse(code))


def test_every_built_in_is_looked_at() -> None:
    modules = {"read.py", "write.py", "edit.py", "delete.py", "list_directory.py", "grep.py", "bash.py"}
    assert modules <= {path.name for path in TOOLS}
