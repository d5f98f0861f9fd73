"""The result of a run: a table for a terminal, two for a page, and JSON that is kept."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.machine import line
from benchmarks.peers.catalogue import OURS, PEERS, Keeps, Peer
from benchmarks.peers.runner import Account
from benchmarks.quiet import NOISY

FOLDER = report.FOLDER / "peers"
FAILED = "failed"
NOT_MEASURED = "n/a"


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of figures: the reading `key` of a measure."""

    heading: str
    measure: str
    key: str
    unit: str

    def of(self, account: Account) -> list[float]:
        return account.readings.get(self.measure, {}).get(self.key, [])

    def cell(self, account: Account, *, spread: bool) -> str:
        readings = self.of(account)
        if not readings:
            has_failed = self.measure in account.failures or not account.readings
            return FAILED if has_failed else NOT_MEASURED
        middle = f"{_number(median(readings))} {self.unit}"
        shows_spread = spread and len(readings) > 1
        return f"{middle} ({_number(min(readings))}..{_number(max(readings))})" if shows_spread else middle

    def ratio(self, ours: Account, other: Account) -> str:
        """The median of each round's own ratio."""
        pairs = zip(self.of(ours), self.of(other), strict=False)  # a run that was cut short has fewer of some
        ratios = [mine / theirs for mine, theirs in pairs if theirs]
        return f"{median(ratios):.2f}x" if ratios else NOT_MEASURED


RATE = Figure("no-ops", "burst", "rate", "/s")
CPU = Figure("CPU a call", "burst", "cpu", "us")
P50 = Figure("round trip p50", "round-trip", "p50", "ms")
P99 = Figure("p99", "round-trip", "p99", "ms")
SLEEPS = Figure("500 x sleep(0.2)", "sleeps", "seconds", "s")
FIGURES = (RATE, CPU, P50, P99, SLEEPS)
SPLIT = (
    Figure("client", "burst", "client_cpu", "us"),
    Figure("workers", "burst", "worker_cpu", "us"),
    Figure("servers", "burst", "server_cpu", "us"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersReport:
    """One run: when, on what machine, how thoroughly, and its results."""

    at: str
    machine: Mapping[str, str]
    rounds: int
    is_quick: bool
    accounts: Sequence[Account]

    @classmethod
    def now(cls, **fields: Any) -> Self:
        return cls(at=datetime.now(UTC).isoformat(timespec="seconds"), **fields)

    @property
    def title(self) -> str:
        how = "quick look, not a measurement" if self.is_quick else f"median of {self.rounds} (lowest..highest)"
        return f"Measured {self.at}, {how}"

    @property
    def failures(self) -> Iterator[str]:
        """A sentence for all that could not be measured."""
        for account in self.accounts:
            for measure, reason in account.failures.items():
                yield f"{account.peer.title}, {measure}: {reason}"

    @property
    def quietness(self) -> str:
        """How much of the machine others used during measurements."""
        shares = [
            share
            for account in self.accounts
            for readings in account.readings.values()
            for share in readings.get("others", [])
        ]
        if not shares:
            return "Nothing was measured."
        noisy = sum(share > NOISY for share in shares)
        return (
            f"Others used {median(shares):.0%} of the machine in the median turn and {max(shares):.0%} in the worst; "
            f"in {noisy} of {len(shares)} it was more than {NOISY:.0%}."
        )

    def print(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "in SQL", *(figure.heading for figure in FIGURES)):
            table.add_column(heading, justify="left" if heading in ("", "in SQL") else "right")
        for account in self.accounts:
            figures = (figure.cell(account, spread=False) for figure in FIGURES)
            table.add_row(f"{account.peer.title} {account.version}", account.peer.keeps.in_sql, *figures)
        console.print(table)
        console.print(f"{self.quietness}\n{line(dict(self.machine))}", style="dim", highlight=False)
        for failure in self.failures:
            console.print(f"failed: {failure}", highlight=False, markup=False)

    def markdown(self) -> str:
        """The figures with their spread and what each peer keeps, the ratios to ours, and how each was set."""
        parts = [self.title, self._figures(), self._ratios(), self._split(), self._settings()]
        failures = [f"- {failure}" for failure in self.failures]
        parts += ["Not measured:", "\n".join(failures)] if failures else []
        return "\n\n".join([*filter(None, parts), self.quietness, line(dict(self.machine))]) + "\n"

    def save(self) -> Path:
        """Write it to `results/peers/`; quick runs and those of some peers only are named so."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        is_partial = len(self.accounts) < len(PEERS)
        kind = "-quick" if self.is_quick else "-partial" if is_partial else ""
        path = FOLDER / f"{self.at.replace(':', '').replace('+0000', 'Z')}{kind}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path

    @classmethod
    def latest(cls) -> Self | None:
        """The newest kept run of all peers that was not a quick one."""
        kept = sorted(path for path in FOLDER.glob("*.json") if not path.stem.endswith(("-quick", "-partial")))
        return cls.read(kept[-1]) if kept else None

    @classmethod
    def read(cls, path: Path) -> Self:
        fields = json.loads(path.read_text())
        return cls(**{**fields, "accounts": [_account(one) for one in fields["accounts"]]})

    def _figures(self) -> str:
        headings = ("", "in SQL", "recorded", "at most once", *(figure.heading for figure in FIGURES))
        rows = [
            (
                f"{account.peer.title} {account.version}",
                *(account.peer.keeps.in_sql, account.peer.keeps.recorded, account.peer.keeps.guard),
                *(figure.cell(account, spread=True) for figure in FIGURES),
            )
            for account in self.accounts
        ]
        return _table(headings, rows, right=range(4, 9))

    def _ratios(self) -> str:
        """Ours over each other one, round by round: rounds differ more than peers do on a machine that is shared."""
        ours = next((account for account in self.accounts if account.peer.name == OURS), None)
        if ours is None:
            return ""
        rows = [
            (account.peer.title, *(figure.ratio(ours, account) for figure in FIGURES))
            for account in self.accounts
            if account is not ours
        ]
        return _table(("forge_tools / other", *(figure.heading for figure in FIGURES)), rows, right=range(1, 6))

    def _split(self) -> str:
        rows = [
            (account.peer.title, *(figure.cell(account, spread=False) for figure in SPLIT)) for account in self.accounts
        ]
        return _table(("CPU a call", *(figure.heading for figure in SPLIT)), rows, right=range(1, 4))

    def _settings(self) -> str:
        rows = [
            (
                account.peer.title,
                f"{account.peer.burst:,}",
                str(account.peer.concurrency),
                NOT_MEASURED if account.peer.waiting is None else str(account.peer.waiting),
                account.peer.settings,
            )
            for account in self.accounts
        ]
        return _table(("settings", "no-ops", "concurrency", "for sleeps", "how"), rows, right=range(1, 4))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: range) -> str:
    sides = ["---:" if column in right else "---" for column in range(len(headings))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, sides, *rows))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _account(fields: dict[str, Any]) -> Account:
    peer = fields["peer"]
    keeps = Keeps(**peer["keeps"])
    return Account(**{**fields, "peer": Peer(**{**peer, "keeps": keeps, "commands": tuple(peer["commands"])})})
