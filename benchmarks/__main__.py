"""`python -m benchmarks`: runs measures, prints the table, keeps the figures."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks import machine, runner
from benchmarks.measures import MEASURES
from benchmarks.report import Report
from benchmarks.scene import QUICK, Sizes

EXIT_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a side could not be measured; a bar that is missed is a figure, not a failure."""
    options = _options(arguments)
    if options.markdown:
        return _print_latest()
    console = Console()
    if machine.is_busy():
        console.print("This machine is busy: compare ratios and CPU time, not rates.", style="yellow")
    facts = machine.facts()
    chosen = [measure for measure in MEASURES if measure.name in options.names]
    sizes = QUICK if options.quick else Sizes()
    with console.status("") as status:
        outcome = runner.run(chosen, sizes, options.rounds, status.update)
    report = Report.now(
        machine=facts,
        rounds=options.rounds,
        is_quick=options.quick,
        results=outcome.results,
        failures=outcome.failures,
    )
    report.print(console)
    console.print(f"kept in {report.save()}", style="dim", highlight=False, soft_wrap=True)
    return EXIT_FAILED if outcome.failures else 0


def _print_latest() -> int:
    report = Report.latest()
    if report is None:
        print("No results are kept yet. Run: python -m benchmarks", file=sys.stderr)
        return EXIT_FAILED
    print(report.markdown(), end="")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [measure.name for measure in MEASURES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside raw Celery, in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--rounds", type=_positive, default=3, help="turns of each side; the median counts (default 3)")
    parser.add_argument("--quick", action="store_true", help="a small try: everything runs, no figure means anything")
    parser.add_argument(
        "--markdown", action="store_true", help="print the newest kept results as Markdown; runs nothing"
    )
    options = parser.parse_args(arguments)
    options.names = options.names or names
    for unknown in set(options.names) - set(names):
        parser.error(f"there is no measure {unknown!r}; there are {', '.join(names)}")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return number


if __name__ == "__main__":
    sys.exit(main())
