"""The file that keeps each package's score and what survived there."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import Mutant
from tests.mutants.trees import KILLED, SURVIVED, TIMED_OUT

HEAD = """# Mutants

Of each package, lines that a seed chooses are changed, one at a time, and the quick tests that execute such a line run on the change: those of `tests/unit`, `tests/spec`
and `tests/contract` whose file imports something of the package, itself or through what it uses of `tests`. The score is the share of changes that a test notices. It may not
fall: see CONTRIBUTING.md.

"Not executed" is a line that no such test executes in its own process. What runs only in processes that tests start (children of lanes, workers, the command line), or only in
`tests/integration` and `tests/e2e`, is not executed in this sense; on it run the tests whose file imports the module, and mostly it survives. Where one process does not show a
difference (the size of a cache, a log, an argument that equals its default), a survivor is no flaw of a test.

| package | seed | mutants | killed | timed out | survived | of these not executed | score | commit |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    mutant: Mutant
    ended: str
    executed: bool
    killers: Sequence[str] = ()

    def __str__(self) -> str:
        return f"{self.mutant}{'' if self.executed else ' (not executed)'}"


def score(verdicts: Sequence[Verdict]) -> int:
    return 100 * sum(each.ended != SURVIVED for each in verdicts) // max(len(verdicts), 1)


def row(package: str, seed: int, verdicts: Sequence[Verdict], commit: str) -> str:
    ends = Counter(each.ended for each in verdicts)
    unseen = sum(each.ended == SURVIVED and not each.executed for each in verdicts)
    figures = (seed, len(verdicts), ends[KILLED], ends[TIMED_OUT], ends[SURVIVED], unseen)
    return f"| {package} | {' | '.join(map(str, figures))} | {score(verdicts)} % | {commit} |"


def recorded_score(file: Path, package: str, seed: int, count: int) -> int | None:
    """The score that was recorded for the same question."""
    rows, _ = _read(file)
    found = re.match(rf"\| {re.escape(package)} \| {seed} \| {count} \|.* (\d+) % \|", rows.get(package, ""))
    return int(found[1]) if found else None


def record(file: Path, package: str, seed: int, verdicts: Sequence[Verdict], commit: str) -> None:
    """Put this package's row and survivors in the place of those that the file has."""
    rows, survivors = _read(file)
    rows[package] = row(package, seed, verdicts, commit)
    lived = sorted(
        (each for each in verdicts if each.ended == SURVIVED), key=lambda each: (each.mutant.file, each.mutant.line)
    )
    survivors[package] = "".join(f"- {each}\n" for each in lived) or "None.\n"
    sections = "\n".join(f"### {name}\n\n{text}" for name, text in survivors.items())
    file.write_text(HEAD + "".join(f"{line}\n" for line in rows.values()) + f"\n## Survivors\n\n{sections}")


def _read(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    table, _, rest = file.read_text().partition("## Survivors\n") if file.exists() else ("", "", "")
    lines = [line for line in table.splitlines() if re.match(r"\| \S+ \| \d", line)]
    sections = [section.partition("\n\n") for section in re.split(r"^### ", rest, flags=re.MULTILINE)[1:]]
    return {line.split()[1]: line for line in lines}, {name: f"{text.strip()}\n" for name, _, text in sections}
