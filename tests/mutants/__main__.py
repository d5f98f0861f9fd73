"""`python -m tests.mutants PACKAGE ...`: change lines of packages one at a time, and say which changes no quick test notices."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.__main__ import measured_patience
from tests.mutants.changes import Mutant, choose
from tests.mutants.reach import Reach, files_about
from tests.mutants.record import Verdict, record, recorded_score, row, score
from tests.mutants.tracing import traces_of
from tests.mutants.trees import SURVIVED, TRIES, Tree, state_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".mutants"
RECORD = ROOT / "benchmarks/MUTANTS.md"
AT_ONCE = 2


class Hunt:
    """The mutants of one package, judged in copies of the tree."""

    def __init__(self, trees: Sequence[Tree], reach: Reach) -> None:
        self._reach = reach
        self._unfit: set[str] = set()
        self._free = SimpleQueue[Tree]()
        for tree in trees:
            self._free.put(tree)

    def verdicts(self, mutants: Sequence[Mutant]) -> list[Verdict]:
        """Kills by tests that fail without any change, too, are judged again without those tests."""
        found: dict[Mutant, Verdict] = {}
        for _ in range(TRIES):
            left = [each for each in mutants if each not in found or self._unfit & set(found[each].killers)]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found |= zip(left, pool.map(self._judge, left), strict=True)
            if not (killers := sorted({test for each in left for test in found[each].killers})):
                break
            tree = self._free.get()
            ended, failed = tree.run_tests(killers, self._reach.seconds(killers))
            self._free.put(tree)
            if ended != SURVIVED and not failed:
                raise RuntimeError(f"The tests do not run where nothing is changed: see {tree.folder}/log")
            self._unfit |= set(failed)
        return [found[each] for each in mutants]

    def _judge(self, mutant: Mutant) -> Verdict:
        tests = [test for test in self._reach.tests(mutant) if test not in self._unfit]
        executed = bool(self._reach.executing(mutant)) or mutant.runs_at_import
        ended, killers = SURVIVED, list[str]()
        if tests:
            tree = self._free.get()
            try:
                ended, killers = tree.judge(mutant, tests, self._reach.seconds(tests))
            finally:
                self._free.put(tree)
        verdict = Verdict(mutant, ended, executed, killers)
        print(f"{ended}: {verdict}; {len(tests)} tests {' '.join(killers)[:160]}\n", end="", flush=True)
        return verdict


def main() -> int:
    """Returns 1 where a score is lower than the recorded one of the same seed and number."""
    options = parser().parse_args()
    os.nice(10)
    patience = measured_patience()
    trees = [Tree(ROOT, FOLDER / f"tree-{number}", patience) for number in range(AT_ONCE)]
    for tree in trees:
        tree.compile()
    lower = [package for package in options.packages if _is_lower(trees, package, options)]
    return int(bool(lower))


def _is_lower(trees: Sequence[Tree], package: str, options: argparse.Namespace) -> bool:
    reach = _reach(trees[0], package, options.untraced)
    verdicts = Hunt(trees, reach).verdicts(choose(ROOT, package, options.mutants, options.seed))
    print(*(f"survived: {each}" for each in verdicts if each.ended == SURVIVED), sep="\n")
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True).strip()
    print(row(package, options.seed, verdicts, commit), flush=True)
    before = recorded_score(RECORD, package, options.seed, len(verdicts))
    if options.record:
        record(RECORD, package, options.seed, verdicts, commit)
    if before is not None:
        print(f"Recorded: {before} %.", flush=True)
    return before is not None and score(verdicts) < before


def _reach(tree: Tree, package: str, untraced: str) -> Reach:
    """What the package's tests execute; measured where that is not known for this state of the code."""
    files, traces = files_about(ROOT, package), FOLDER / f"traces-{state_of(ROOT)}"
    if missing := [file for file in files if not (traces / traces_of(file)).exists()]:
        print(f"Measuring which lines the tests of {len(missing)} files run.", flush=True)
        tree.measure(missing, traces, untraced)
    return Reach(ROOT, files, traces)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m tests.mutants", description="What the quick tests do not notice.")
    found.add_argument("packages", nargs="+", help="folders, such as forge_tools/storage")
    found.add_argument("--mutants", type=int, default=100, help="how many (default 100)")
    found.add_argument("--seed", type=int, default=20261123, help="what chooses them")
    found.add_argument("--untraced", default="", help="test files that stand still when traced")
    found.add_argument("--record", action="store_true", help=f"keep the score and the survivors in {RECORD.name}")
    return found


if __name__ == "__main__":
    sys.exit(main())
