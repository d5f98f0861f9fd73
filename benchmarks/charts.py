"""`python -m benchmarks.charts`: bar charts of the kept figures as SVG in `docs/images/`, and `benchmarks/RESULTS.md`."""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Literal

from benchmarks.measures import SETS
from benchmarks.peers import page
from benchmarks.peers.catalogue import OURS
from benchmarks.peers.report import CPU, P50, P99, RATE, SLEEPS, SPLIT, Figure, PeersReport
from benchmarks.peers.runner import Account
from benchmarks.processes import ROOT
from benchmarks.report import Report

IMAGES = ROOT / "docs" / "images"

WIDTH = 760
PLOT_LEFT = 172
PLOT_RIGHT = WIDTH - 110
TOP = 104
ROW = 34
THICKNESS = 18
LOG_FROM = 100.0
"""Readings that differ by more than this factor are drawn on a logarithmic scale."""

Kind = Literal["ours", "sql", "broker"]
Tint = Literal["ours", "sql", "broker", "first", "second", "third"]

STYLE = """
  .card { fill: #ffffff; stroke: #d1d9e0; }
  .title { font-size: 17px; font-weight: 600; fill: #1f2328; }
  .small { font-size: 12px; fill: #59636e; }
  .label { font-size: 13px; fill: #1f2328; }
  .bold { font-weight: 600; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .spread { stroke: #1f2328; stroke-width: 1.5; fill: none; }
  .ours { fill: #0969da; } .sql { fill: #1a9c8b; } .broker { fill: #9aa4af; }
  .first { fill: #0969da; } .second { fill: #d4a017; } .third { fill: #8250df; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d; }
    .title, .label { fill: #f0f6fc; }
    .small { fill: #9198a1; }
    .grid { stroke: #2a313c; }
    .spread { stroke: #f0f6fc; }
    .ours { fill: #4493f8; } .sql { fill: #2fb8a6; } .broker { fill: #6e7781; }
    .first { fill: #4493f8; } .second { fill: #d8b04a; } .third { fill: #ab7df8; }
  }
"""

KINDS: Sequence[tuple[Tint, str]] = (
    ("ours", "forge_tools (in SQL)"),
    ("sql", "others in SQL"),
    ("broker", "others, in the broker only"),
)
PARTS: Sequence[tuple[Tint, str]] = (("first", "client"), ("second", "workers"), ("third", "servers"))


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: its parts end to end, and how far the thin line reaches; a row without parts says why."""

    label: str
    parts: Sequence[tuple[Tint, float]]
    text: str
    spread: tuple[float, float] | None = None
    is_bold: bool = False

    @property
    def total(self) -> float:
        return sum(value for _, value in self.parts)

    @property
    def reach(self) -> float:
        return max(self.total, self.spread[1] if self.spread else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A horizontal bar chart; `name` is its file."""

    name: str
    title: str
    subtitle: str
    legend: Sequence[tuple[Tint, str]]
    bars: Sequence[Bar]
    footer: str

    def svg(self) -> str:
        height = TOP + ROW * len(self.bars) + 52
        body = "\n".join((*_heading(self), *_grid(self), *_rows(self), *_footer(self, height)))
        described = "; ".join(f"{bar.label}: {bar.text}" for bar in self.bars)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" aria-labelledby="title desc" '
            "font-family=\"-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif\">\n"
            f'<title id="title">{escape(self.title)}</title>\n'
            f'<desc id="desc">{escape(f"{self.subtitle}. {described}.")}</desc>\n'
            f"<style>{STYLE}</style>\n"
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
            f"{body}\n</svg>\n"
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """Where to draw a reading."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, bars: Sequence[Bar]) -> "Scale":
        readings = [bar.total for bar in bars if bar.parts]
        high = max((bar.reach for bar in bars), default=1.0) or 1.0
        can_be_log = all(len(bar.parts) <= 1 for bar in bars)  # lengths on such a scale do not add up
        if not can_be_log or not readings or min(readings) <= 0 or high / min(readings) <= LOG_FROM:
            return cls(0.0, _round_up(high), is_log=False)
        return cls(10.0 ** math.floor(math.log10(min(readings))), 10.0 ** math.ceil(math.log10(high)), is_log=True)

    def x(self, reading: float) -> float:
        if self.is_log:
            share = math.log10(max(reading, self.low) / self.low) / math.log10(self.high / self.low)
        else:
            share = reading / self.high
        return PLOT_LEFT + share * (PLOT_RIGHT - PLOT_LEFT)

    def ticks(self) -> list[float]:
        if self.is_log:
            decades = round(math.log10(self.high / self.low))
            return [self.low * 10.0**decade for decade in range(decades + 1)]
        return [self.high * part / 4 for part in range(5)]


def charts_of(report: PeersReport) -> list[Chart]:
    """Return one chart per figure, best first."""
    rounds = "a quick look, not a measurement" if report.is_quick else f"median of {report.rounds} rounds"
    footer = f"{report.at[:10]}, {rounds}, {report.machine['cores']} cores ({report.machine['processor']})"
    return [
        _simple(
            report.accounts,
            footer,
            figure=RATE,
            name="peers-throughput",
            title="No-ops a second",
            subtitle="one client, every result awaited, two worker processes; thin line: all rounds; higher is better",
        ),
        _round_trips(report.accounts, footer),
        _processor_time(report.accounts, footer),
        _simple(
            report.accounts,
            footer,
            figure=SLEEPS,
            name="peers-sleeps",
            title="500 calls of sleep(0.2), all at once",
            subtitle="seconds until the last result, two worker processes; 0.2 is the floor; lower is better",
        ),
    ]


def _simple(accounts: Sequence[Account], footer: str, *, figure: Figure, name: str, title: str, subtitle: str) -> Chart:
    bars = [
        _bar(account, figure, [(_kind(account), median(figure.of(account)))]) for account in _with(accounts, figure)
    ]
    bars.sort(key=lambda bar: bar.total, reverse=figure is RATE)
    return Chart(
        name=name, title=title, subtitle=subtitle, legend=KINDS, bars=bars + _without(accounts, figure), footer=footer
    )


def _round_trips(accounts: Sequence[Account], footer: str) -> Chart:
    bars = [
        Bar(
            account.peer.title,
            [(_kind(account), median(P50.of(account)))],
            f"{P50.cell(account, spread=False)} / {P99.cell(account, spread=False)}",
            (median(P50.of(account)), median(P99.of(account))),
            account.peer.name == OURS,
        )
        for account in _with(accounts, P50)
    ]
    return Chart(
        name="peers-round-trip",
        title="One call at a time: submit, run, result",
        subtitle="p50, and p99 at the end of the thin line; lower is better",
        legend=KINDS,
        bars=sorted(bars, key=lambda bar: bar.total) + _without(accounts, P50),
        footer=footer,
    )


def _processor_time(accounts: Sequence[Account], footer: str) -> Chart:
    tints = [tint for tint, _ in PARTS]
    bars = [
        _bar(account, CPU, [(tint, median(part.of(account))) for tint, part in zip(tints, SPLIT, strict=True)])
        for account in _with(accounts, CPU)
    ]
    return Chart(
        name="peers-cpu",
        title="Processor time a call",
        subtitle="microseconds in the burst of no-ops; servers are PostgreSQL and Valkey; lower is better",
        legend=PARTS,
        bars=sorted(bars, key=lambda bar: bar.total) + _without(accounts, CPU),
        footer=footer,
    )


def _bar(account: Account, figure: Figure, parts: Sequence[tuple[Tint, float]]) -> Bar:
    readings = figure.of(account)
    spread = (min(readings), max(readings)) if len(readings) > 1 else None
    return Bar(account.peer.title, parts, figure.cell(account, spread=False), spread, account.peer.name == OURS)


def _with(accounts: Sequence[Account], figure: Figure) -> list[Account]:
    return [account for account in accounts if figure.of(account)]


def _without(accounts: Sequence[Account], figure: Figure) -> list[Bar]:
    return [
        Bar(account.peer.title, [], figure.cell(account, spread=False))
        for account in accounts
        if not figure.of(account)
    ]


def _kind(account: Account) -> Kind:
    if account.peer.name == OURS:
        return "ours"
    return "sql" if account.peer.keeps.in_sql == "yes" else "broker"


def _heading(chart: Chart) -> Iterator[str]:
    logarithmic = " (logarithmic scale)" if Scale.of(chart.bars).is_log else ""
    yield _text(20, 32, chart.title, "title")
    yield _text(20, 52, chart.subtitle + logarithmic, "small")
    x = 20.0
    for tint, words in chart.legend:
        yield f'<rect class="{tint}" x="{x:.0f}" y="67" width="11" height="11" rx="2"/>'
        yield _text(x + 17, 77, words, "small")
        x += 40 + 6.6 * len(words)


def _grid(chart: Chart) -> Iterator[str]:
    scale = Scale.of(chart.bars)
    bottom = TOP + ROW * len(chart.bars)
    for tick in scale.ticks():
        x = scale.x(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>'
        yield _text(x, bottom + 16, f"{tick:,.10g}", "small", anchor="middle")


def _rows(chart: Chart) -> Iterator[str]:
    scale = Scale.of(chart.bars)
    for number, bar in enumerate(chart.bars):
        top = TOP + ROW * number + (ROW - THICKNESS) / 2 - 4
        weight = " bold" if bar.is_bold else ""
        yield _text(PLOT_LEFT - 10, top + 14, bar.label, f"label{weight}", anchor="end")
        start = 0.0
        for tint, value in bar.parts:
            left, right = scale.x(start), scale.x(start + value)
            yield (
                f'<rect class="{tint}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 1):.1f}" '
                f'height="{THICKNESS}"/>'
            )
            start += value
        yield from _spread(bar, scale, top)
        yield _text(scale.x(bar.reach) + 8, top + 14, bar.text, f"label{weight}")


def _spread(bar: Bar, scale: Scale, top: float) -> Iterator[str]:
    if bar.spread is None:
        return
    left, right = (scale.x(reading) for reading in bar.spread)
    middle = top + THICKNESS / 2
    yield (
        f'<path class="spread" d="M{left:.1f} {middle - 4:.1f}v8M{left:.1f} {middle:.1f}H{right:.1f}'
        f'M{right:.1f} {middle - 4:.1f}v8"/>'
    )


def _footer(chart: Chart, height: int) -> Iterator[str]:
    yield _text(20, height - 14, chart.footer, "small")


def _text(x: float, y: float, words: str, style: str, *, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _round_up(value: float) -> float:
    """Return the next number that suits the end of an axis and has readable quarters."""
    decade = 10.0 ** math.floor(math.log10(value))
    return next(step * decade for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * decade >= value * 0.999)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its charts from the newest kept runs, or from the run that is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.charts", description="Charts and the page of results.")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="a kept run of the peers (default: the newest)")
    options = parser.parse_args(arguments)
    report = PeersReport.read(options.peers) if options.peers else PeersReport.latest()
    if report is None:
        print("No run of all peers is kept yet. Run: python -m benchmarks.peers", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    charts = charts_of(report)
    for chart in charts:
        (IMAGES / f"{chart.name}.svg").write_text(chart.svg())
    pictures = [(chart.title, IMAGES / f"{chart.name}.svg") for chart in charts]
    ours = {name: Report.latest([measure.name for measure in measures]) for name, measures in SETS.items()}
    path = page.write(report, ours, pictures)
    print(f"written: {path} and {len(charts)} charts in {IMAGES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
