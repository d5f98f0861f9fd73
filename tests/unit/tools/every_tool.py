"""A workspace and calls of every file tool on it, for suites of what all of them have in common."""

import json
import os
from pathlib import Path
from typing import Any

from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS

FINE: list[tuple[str, dict[str, Any]]] = [
    ("Read", {"file_path": "long.txt"}),
    ("Read", {"file_path": "long.txt", "line_numbers": False}),
    ("Read", {"file_path": "wide.txt"}),
    ("Read", {"file_path": "latin.txt", "tail": 30}),
    ("Grep", {"pattern": "needle"}),
    ("Grep", {"pattern": "needle", "output_mode": "count"}),
    ("Grep", {"pattern": "needle", "output_mode": "content", "context_lines": 1, "head_limit": 5000}),
    ("Grep", {"pattern": "needle", "path": "long.txt", "output_mode": "content"}),
    ("Grep", {"pattern": "nowhere to be found"}),
    ("Glob", {"pattern": "**"}),
    ("Glob", {"pattern": "no-such-*"}),
    ("ListDirectory", {"depth": 3}),
    ("ListDirectory", {"details": True, "sort": "mtime"}),
    ("Write", {"file_path": "new/file.txt", "content": "new\n" * 50}),
    ("Write", {"file_path": "half.txt", "content": "other é\n" * 60}),
    ("Edit", {"file_path": "long.txt", "old_string": "needle", "new_string": "thread", "expected_replacements": 40}),
    ("Delete", {"file_path": "many", "recursive": True}),
    ("Delete", {"file_path": "half.txt"}),
    ("NotebookRead", {"notebook_path": "book.ipynb"}),
    ("NotebookRead", {"notebook_path": "book.ipynb", "cell_index": 3, "max_output_chars": 50_000}),
    ("NotebookEdit", {"notebook_path": "book.ipynb", "cell_index": 1, "new_source": "new \U0001f600\n" * 40}),
    ("DetectProjectType", {}),
    ("ExtractConventions", {"language": "Python"}),
    ("ProjectOverview", {}),
]
"""Calls that succeed, each on the fresh workspace."""

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("Read", {"file_path": "no-such"}),
    ("Read", {"file_path": "../outside"}),
    ("Read", {"file_path": "many"}),
    ("Read", {"file_path": "picture.png"}),
    ("Grep", {"pattern": "("}),
    ("Grep", {"pattern": "x", "type": "no-such-type"}),
    ("Glob", {"pattern": "{a"}),
    ("ListDirectory", {"path": "long.txt"}),
    ("Write", {"file_path": "many", "content": "x"}),
    ("Write", {"file_path": "half.txt", "content": "x", "if_match": "b2:00"}),
    ("Edit", {"file_path": "half.txt", "old_string": "not in it", "new_string": "x"}),
    ("Edit", {"file_path": "half.txt", "old_string": "half", "new_string": "x"}),
    ("Delete", {"file_path": "many"}),
    ("Delete", {"file_path": "no-such"}),
    ("NotebookRead", {"notebook_path": "long.txt"}),
    ("NotebookEdit", {"notebook_path": "book.ipynb", "cell_index": 99, "new_source": "x"}),
    ("DetectProjectType", {"path": "no-such"}),
    ("ExtractConventions", {"language": "no-such"}),
    ("ProjectOverview", {"sections": ["no-such"]}),
]
"""Calls that fail."""


def fill(root: Path) -> None:
    """Make the files that the calls are about; root is the workspace, new or used before."""
    (root / "many/inner").mkdir(parents=True, exist_ok=True)
    for number in range(60):
        (root / f"many/{'inner/' if number % 2 else ''}{number:03} \u202e\U0001f600.txt").write_text("a needle\nb\nc\n")
    lines = [f"{number} {'needle' if number % 10 == 7 else 'hay'} \U0001f600 \u00e9\u0301" for number in range(400)]
    (root / "long.txt").write_text("\n".join(lines) + "\n")
    (root / "wide.txt").write_text("\U0001f600 wide " * 900 + "\nshort\n")
    (root / "latin.txt").write_bytes(b"caf\xe9 \x00\xff needle\n".replace(b"\0", b"\x1b") * 40)
    (root / "half.txt").write_text("half\nhalf\n" * 20)
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0" * 9)
    outputs = [{"output_type": "stream", "name": "stdout", "text": "hay \U0001f600\n" * 900}]
    cell = {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": outputs, "source": "hay\n" * 9}
    (root / "book.ipynb").write_text(
        json.dumps({"cells": [cell] * 9, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})
    )
    (root / os.fsdecode(b"bad \xff name.txt")).write_text("needle\n")
    for number, path in enumerate(sorted(root.rglob("*"))):
        os.utime(path, (1_700_000_000 + number,) * 2)


def executor(root: Path, artifacts: Path | None = None) -> ToolExecutor:
    """All built-ins on one workspace."""
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    return ToolExecutor(
        registry, reach=Reach(root=root, artifacts=FolderArtifacts(artifacts) if artifacts is not None else None)
    )
