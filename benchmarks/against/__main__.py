"""`python -m benchmarks.against REV`: measures, prints the table; exits with 1 if the working tree is worse."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import quiet
from benchmarks.against.arms import arm, check_out, interpreter
from benchmarks.against.changes import AGAIN, FIGURES, NEW, OLD, QUICK, Change, Sizes
from benchmarks.fleets import Database
from benchmarks.processes import ROOT
from benchmarks.report import shown
from tests.session_folder import SessionFolder

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has changed, and what could not be measured, with the reason."""

    changes: list[Change] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if something is worse or could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description="The working tree beside a commit."
    )
    parser.add_argument("revision", metavar="REV", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"the median counts (default {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="a small try: everything runs, no figure means anything")
    options = parser.parse_args(arguments)
    console, watch = Console(), quiet.Watch()
    sizes = QUICK if options.quick else Sizes()
    try:
        with console.status("") as status:
            outcome = compare(options.revision, options.rounds, sizes, status.update)
    except RuntimeError as error:
        console.print(f"Nothing was measured: {error}", highlight=False, markup=False)
        return 1
    console.print(
        _table(outcome.changes, f"The working tree beside {options.revision}, median of {options.rounds} rounds")
    )
    console.print(
        f"In {watch.seconds():.0f} s; others used {watch.others():.0%} of the machine.", style="dim", highlight=False
    )
    for what, reason in outcome.failures.items():
        console.print(f"failed: {what}: {reason}", highlight=False, markup=False)
    return 1 if outcome.failures or any(change.verdict == "worse" for change in outcome.changes) else 0


def compare(revision: str, rounds: int, sizes: Sizes, tell: Callable[[str], None]) -> Outcome:
    """Measure the old commit in two arms and the working tree in a third, by turns.

    Raises:
        RuntimeError: one of them cannot be started.
    """
    session, outcome = SessionFolder(), Outcome()
    try:
        tell("laying out the old commit, with its packages")
        check_out(revision, session.path / "tree")
        for database in FIGURES:
            _measure(database, session.path, rounds, sizes, tell, outcome)
    finally:
        session.remove()
    return outcome


def _measure(
    database: Database, folder: Path, rounds: int, sizes: Sizes, tell: Callable[[str], None], outcome: Outcome
) -> None:
    old = (folder / "tree", interpreter(folder / "tree"))
    places = {OLD: old, NEW: (ROOT, sys.executable), AGAIN: old}
    changes = [(figure, Change(f"{figure.title}, {database}", figure.unit)) for figure in FIGURES[database]]
    with ExitStack() as cleanup:
        tell(f"{database}: starting servers and workers")
        arms = [cleanup.enter_context(arm(name, *place, database, folder)) for name, place in places.items()]
        for number in range(rounds):
            arms = [*arms[1:], arms[0]] if number % 2 else arms[::-1]
            for figure, change in changes:
                if change.title in outcome.failures:
                    continue
                tell(f"round {number + 1} of {rounds}: {change.title}")
                try:
                    change.add(figure.read(arms, sizes))
                except RuntimeError as error:  # something that one commit cannot do must not cost the other figures
                    outcome.failures[change.title] = str(error)
    outcome.changes.extend(change for _, change in changes if change.title not in outcome.failures)


def _table(changes: Sequence[Change], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure")
    for heading in ("old", "new", "cost, new / old", "old / old"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for one in changes:
        table.add_row(
            one.title,
            *(shown([median(readings)], one.unit) for readings in (one.readings[OLD], one.readings[NEW])),
            f"{one.ratio:.2f}x",
            f"± {one.spread:.0%}",
            one.verdict,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
