"""Which tests reach a line: those that ran it in their own process, as it was measured once for a state of the code."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tests.mutants.changes import Mutant
from tests.mutants.tracing import traces_of

SUITES = ("tests/unit", "tests/spec", "tests/contract")

MOST_SECONDS = 40.0
"""What the tests of one mutant may usually take; those that come after that are not run."""


class Reach:
    """Reads what the plugin `tests.mutants.tracing` wrote."""

    def __init__(self, root: Path, files: Sequence[str], traces: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._traced: set[str] = set()
        self._executed: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._importers: dict[str, set[str]] = defaultdict(set)
        self._users: dict[str, set[str]] = defaultdict(set)
        for file in files:
            entries = [json.loads(line) for line in (traces / traces_of(file)).read_text().splitlines()]
            passed = [entry for entry in entries if not entry["failed"]]
            for entry in passed:
                self._add(**entry)
            for module in _imports(root / file):
                self._importers[module] |= {entry["test"] for entry in passed}
        for (file, _), tests in self._executed.items():
            for module in (_module(file), *_imports(root / file)):
                self._users[module] |= tests

    def _add(self, test: str, seconds: float, lines: dict[str, list[int]] | None = None, **_: object) -> None:
        self._seconds[test] = seconds
        if lines is not None:
            self._traced.add(test)
        for file, numbers in (lines or {}).items():
            for line in numbers:
                self._executed[file, line].add(test)

    def executing(self, mutant: Mutant) -> set[str]:
        """The tests that run the line; at import one of them does for all, which says nothing."""
        if mutant.runs_at_import:
            return set()
        return set().union(*(self._executed.get((mutant.file, line), set()) for line in mutant.lines))

    def tests(self, mutant: Mutant) -> list[str]:
        """First those whose file imports the module, then the others, the quickest first of each.

        Where no test ran the line, those whose file imports the module are all there is, as for those that were not traced.
        What runs at import is for the tests that run a line of the module, or of one that imports it.
        """
        module = _module(mutant.file)
        executing = self._users[module] if mutant.runs_at_import else self.executing(mutant)
        importers = self._importers[module]
        return self._within_limit(executing | (importers - self._traced if executing else importers), importers)

    def seconds(self, tests: Iterable[str]) -> float:
        return sum(self._seconds[test] for test in tests)

    def _within_limit(self, tests: set[str], first: set[str]) -> list[str]:
        chosen: list[str] = []
        left = MOST_SECONDS
        for test in sorted(tests, key=lambda each: (each not in first, self._seconds[each], each)):
            left -= self._seconds[test]
            if chosen and left < 0:
                break
            chosen.append(test)
        return chosen


def files_about(root: Path, package: str) -> list[str]:
    """The quick test files that import something of the package, themselves or through what they use of `tests`."""
    name = package.strip("/").removesuffix(".py").replace("/", ".")
    files = [file for suite in SUITES for file in sorted((root / suite).rglob("test_*.py"))]
    return [
        file.relative_to(root).as_posix()
        for file in files
        if any(f"{module}.".startswith(f"{name}.") for module in _all_imports(root, file))
    ]


def _all_imports(root: Path, file: Path) -> set[str]:
    found: dict[Path, set[str]] = {}
    left = [file, file.with_name("conftest.py")]
    while left:  # no deadline: each round takes one of the files there are
        path = left.pop()
        if path not in found and path.exists():
            found[path] = _imports(path)
            left += [root / f"{module.replace('.', '/')}.py" for module in found[path] if module.startswith("tests.")]
    return set().union(*found.values())


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found
