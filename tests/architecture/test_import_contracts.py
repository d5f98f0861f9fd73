"""The contracts of pyproject.toml hold, can be broken, and no module imports in a circle."""

import graphlib
import shutil
import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run `lint-imports` on the code in `folder`."""
    return subprocess.run(
        [sys.executable, "-P", "-c", LINT, "--no-cache", "--no-logo"],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_import_contracts_hold() -> None:
    checked = lint(ROOT)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert " 0 broken" in checked.stdout


def test_an_import_that_runs_upward_breaks_them(tmp_path: Path) -> None:
    for package in ("forge_tools", "workers"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "forge_tools" / "errors.py").open("a") as errors:
        errors.write("\nfrom forge_tools.client import ExecutorClient\nimport celery\nimport workers\n")

    checked = lint(tmp_path)

    assert checked.returncode == 1
    assert "imports run downward only BROKEN" in checked.stdout
    assert "nothing imports workers BROKEN" in checked.stdout


def test_no_module_imports_in_a_circle() -> None:
    graph = grimp.build_graph("forge_tools", "workers", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}

    order = list(graphlib.TopologicalSorter(imports).static_order())  # raises CycleError, naming the circle

    assert order.index("forge_tools.errors") < order.index("forge_tools.client.client")
