"""Which tests reach a line: those that ran it in their own process, as it was measured once for a state of the code."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.changes import Mutant

MOST_SECONDS = 40.0
"""What the tests of one mutant may usually take: the quickest ones are run, up to this."""


class Reach:
    """Reads what the plugin `tests.mutants.tracing` wrote."""

    def __init__(self, root: Path, traces: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._traced: set[str] = set()
        self._executed: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._importers: dict[str, set[str]] = defaultdict(set)
        for file in sorted(traces.glob("*.jsonl")):
            for entry in map(json.loads, file.read_text().splitlines()):
                if not entry["failed"]:
                    self._add(**entry)
        for test_file in {test.partition("::")[0] for test in self._seconds}:
            of_file = {test for test in self._seconds if test.startswith(f"{test_file}::")}
            for module in _imports(root / test_file):
                self._importers[module] |= of_file

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
        """The quickest first. Where no test ran the line, those whose file imports the module; and of those that were not traced."""
        executing = self.executing(mutant)
        importers = self._importers[mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")]
        return self._quickest(executing | (importers - self._traced if executing else importers))

    def seconds(self, tests: Iterable[str]) -> float:
        return sum(self._seconds[test] for test in tests)

    def _quickest(self, tests: set[str]) -> list[str]:
        chosen: list[str] = []
        left = MOST_SECONDS
        for test in sorted(tests, key=lambda each: (self._seconds[each], each)):
            left -= self._seconds[test]
            if chosen and left < 0:
                break
            chosen.append(test)
        return chosen


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found
