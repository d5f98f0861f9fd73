"""`python -m benchmarks.peers`: installs the peers, measures them side by side, prints the table, keeps the figures."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks import machine, quiet
from benchmarks.peers import runner
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.report import PeersReport

EXIT_FAILED = 1
WIDTH = 120
"""Columns of what is printed into a file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if anything could not be measured."""
    options = _options(arguments)
    if options.markdown:
        return _print_latest()
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    others = quiet.wait_for_quiet(0 if options.quick else quiet.PATIENCE_SECONDS)
    if others > quiet.NOISY:
        console.print(f"Others use {others:.0%} of this machine: rates say little, CPU time more.", style="red")
    facts = machine.facts()
    chosen = [peer for peer in PEERS if peer.name in options.only]
    sizes = runner.QUICK if options.quick else runner.Sizes()
    with console.status("") as status:
        tell = status.update if console.is_terminal else console.print
        accounts = runner.run(chosen, sizes, options.rounds, tell)
    report = PeersReport.now(machine=facts, rounds=options.rounds, is_quick=options.quick, accounts=accounts)
    report.print(console)
    console.print(f"kept in {report.save()}", style="dim", highlight=False, soft_wrap=True)
    return EXIT_FAILED if any(report.failures) else 0


def _print_latest() -> int:
    report = PeersReport.latest()
    if report is None:
        print("No results are kept yet. Run: python -m benchmarks.peers", file=sys.stderr)
        return EXIT_FAILED
    print(report.markdown(), end="")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Task queues, in one run.")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=names, help=f"only these: {', '.join(names)}")
    parser.add_argument("--rounds", type=_positive, default=3, help="turns of each peer; the median counts (default 3)")
    parser.add_argument("--quick", action="store_true", help="a small try: everything runs, no figure means anything")
    parser.add_argument(
        "--markdown", action="store_true", help="print the newest kept results as Markdown; runs nothing"
    )
    options = parser.parse_args(arguments)
    for unknown in set(options.only) - set(names):
        parser.error(f"there is no peer {unknown!r}; there are {', '.join(names)}")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round")
    return number


if __name__ == "__main__":
    sys.exit(main())
