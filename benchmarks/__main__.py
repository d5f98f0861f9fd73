"""`python -m benchmarks`: runs measures, prints the table, keeps the figures."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks import machine, quiet, runner
from benchmarks.figures import Measure
from benchmarks.measures import SETS
from benchmarks.report import Report, said
from benchmarks.scene import QUICK, Sizes
from benchmarks.stage import keep_history

EXIT_FAILED = 1
EXIT_BUSY = 75


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a side could not be measured, 75 if the machine was busy; a missed bar is not a failure."""
    options = _options(arguments)
    if options.markdown:
        return _print_latest()
    console = Console()
    if options.keep:
        keep_history(options.keep, _sizes(options), lambda said: console.print(said, highlight=False))
        return 0
    others = quiet.wait_for_quiet(0 if options.quick else quiet.PATIENCE_SECONDS)
    if others > quiet.NOISY:
        console.print(
            f"Others use {others:.0%} of this machine: rates say little, ratios and CPU time more.", style="red"
        )
        if options.strict:
            return EXIT_BUSY
    facts = machine.facts()
    sizes = _sizes(options)
    with console.status("") as status:
        outcome = runner.run(
            options.measures,
            sizes,
            options.rounds,
            status.update,
            retake=not options.quick,
            kept=options.kept,
            done=lambda result: console.print(said(result), style="dim", highlight=False),
        )
    report = Report.now(
        machine=facts,
        rounds=options.rounds,
        is_quick=options.quick,
        results=outcome.results,
        failures=outcome.failures,
        measures=[measure.name for measure in options.measures],
    )
    report.print(console)
    for side, reason in outcome.left_out.items():
        console.print(f"left out: {side}: {reason}", style="dim", highlight=False, markup=False)
    console.print(f"kept in {report.save()}", style="dim", highlight=False, soft_wrap=True)
    return EXIT_FAILED if outcome.failures else 0


def _print_latest() -> int:
    report = Report.latest([])
    if report is None:
        print("No results are kept yet. Run: python -m benchmarks", file=sys.stderr)
        return EXIT_FAILED
    print(report.markdown(), end="")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    known = {measure.name: [measure] for measures in SETS.values() for measure in measures} | SETS
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside raw Celery, in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these measures or sets: {', '.join(known)}")
    parser.add_argument("--all", action="store_true", help="every set, also those that take minutes")
    parser.add_argument("--rounds", type=_positive, default=3, help="turns of each side; the median counts (default 3)")
    parser.add_argument("--quick", action="store_true", help="a small try: everything runs, no figure means anything")
    parser.add_argument("--strict", action="store_true", help="refuse to run while others use the machine")
    parser.add_argument(
        "--markdown", action="store_true", help="print the newest kept results as Markdown; runs nothing"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="only load the long history, into a new folder, and keep it"
    )
    parser.add_argument("--kept", type=Path, metavar="DIR", help="measure on the history that was kept there")
    parser.add_argument("--calls", type=_positive, metavar="N", help="calls in the long history (default ten million)")
    options = parser.parse_args(arguments)
    for unknown in set(options.names) - set(known):
        parser.error(f"there is no measure {unknown!r}; there are {', '.join(known)}")
    names = options.names or (list(SETS) if options.all else ["default"])
    chosen: dict[str, Measure] = {measure.name: measure for name in names for measure in known[name]}
    options.measures = list(chosen.values())
    _check_kept(parser, options)
    return options


def _check_kept(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.keep and options.keep.exists():
        parser.error(f"{options.keep} is there already: a history is kept in a folder of its own")
    if options.kept and not (options.kept / "history.json").is_file():
        parser.error(f"no history is kept in {options.kept}: load one with --keep")
    others = [measure.name for measure in options.measures if "history" not in measure.needs]
    if options.kept and others:
        parser.error(f"--kept is for the measures of the set 'history', not for {', '.join(others)}")


def _sizes(options: argparse.Namespace) -> Sizes:
    """As many calls as requested; a tenth of them are also on SQLite, and another tenth, older ones, are there to be pruned."""
    sizes = QUICK if options.quick else Sizes()
    if not options.calls:
        return sizes
    return replace(sizes, history=options.calls, small_history=options.calls // 10, old_history=options.calls // 10)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return number


if __name__ == "__main__":
    sys.exit(main())
