"""The results as a table for a terminal, as Markdown, and as JSON that is kept."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Bar, Result, Row
from benchmarks.machine import line
from benchmarks.quiet import NOISY

FOLDER = Path(__file__).resolve().parent / "results"
HEADINGS = ("measure", "ours", "raw", "ratio", "bar", "met")

MARK = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run: when, on what machine, how thoroughly, and its results. `measures` are the names of those it ran."""

    at: str
    machine: Mapping[str, str]
    rounds: int
    is_quick: bool
    results: Sequence[Result]
    failures: Mapping[str, str]
    measures: Sequence[str] = ()

    @classmethod
    def now(cls, **fields: Any) -> Self:
        return cls(at=datetime.now(UTC).isoformat(timespec="seconds"), **fields)

    def print(self, console: Console) -> None:
        table = Table(*HEADINGS, title=self.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("ours", "raw", "ratio"):
            table.columns[HEADINGS.index(name)].justify = "right"
        for result in self.results:
            table.add_row(*cells(result, spread=False))
        console.print(table)
        if self.noise:
            console.print(self.noise, style="yellow", highlight=False)
        console.print(line(dict(self.machine)), style="dim", highlight=False)
        for side, reason in self.failures.items():
            console.print(f"failed: {side}: {reason}", highlight=False, markup=False)

    def markdown(self) -> str:
        """The table with the spread of the rounds, ready for a page."""
        rows: list[tuple[str, ...]] = [HEADINGS, ("---", "---:", "---:", "---:", "---", "---")]
        rows += [cells(result, spread=True) for result in self.results]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        words = [self.title, table, self.noise, line(dict(self.machine))]
        return "\n\n".join(word for word in words if word) + "\n"

    def save(self) -> Path:
        """Write it to `results/`; quick runs are named so."""
        FOLDER.mkdir(exist_ok=True)
        name = self.at.replace(":", "").replace("+0000", "Z") + ("-quick" if self.is_quick else "")
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path

    @classmethod
    def latest(cls, measures: Collection[str]) -> Self | None:
        """The newest kept run with all of these measures that was not a quick one."""
        kept = sorted((path for path in FOLDER.glob("*.json") if not path.stem.endswith("-quick")), reverse=True)
        return next((report for report in map(cls.read, kept) if set(measures) <= set(report.measures)), None)

    @classmethod
    def read(cls, path: Path) -> Self:
        fields = json.loads(path.read_text())
        return cls(**{**fields, "results": [_result(one) for one in fields["results"]]})

    @property
    def title(self) -> str:
        how = "quick look, not a measurement" if self.is_quick else f"median of {self.rounds}"
        return f"Measured {self.at}, {how}"

    @property
    def noise(self) -> str:
        """What the mark of some rows means, or nothing."""
        highest = max((result.others for result in self.results), default=0.0)
        return f"{MARK} others used the machine too, up to {highest:.0%} of it." if highest > NOISY else ""


def cells(result: Result, *, spread: bool) -> tuple[str, ...]:
    """One line of the table; `spread` adds the lowest and highest round."""
    ratio = result.ratio
    return (
        f"{result.row.title} {MARK}" if result.others > NOISY else result.row.title,
        shown(result.ours, result.row.unit, spread=spread),
        shown(result.raw, result.row.unit, spread=spread),
        "" if ratio is None else f"{ratio:.2f}x",
        "" if result.row.bar is None else result.row.bar.shown(result.row.unit),
        result.verdict,
    )


def said(result: Result) -> str:
    """One line of the table, as a line of text."""
    return "  ".join(cell for cell in cells(result, spread=False) if cell)


def shown(readings: Sequence[float], unit: str, *, spread: bool = False) -> str:
    """The middle reading with its unit; `spread` adds the lowest and the highest."""
    if not readings:
        return ""
    middle = f"{_number(median(readings))} {unit}".rstrip()
    return f"{middle} ({_number(min(readings))}..{_number(max(readings))})" if spread and len(readings) > 1 else middle


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _result(fields: dict[str, Any]) -> Result:
    row = fields["row"]
    bar = Bar(**row["bar"]) if row["bar"] else None
    return Result(Row(**{**row, "bar": bar}), fields["ours"], fields["raw"], fields.get("others", 0.0))
