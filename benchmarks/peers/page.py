"""The page of results: what was compared, how to repeat it, and what the figures do not show."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.report import PeersReport
from benchmarks.report import Report

PAGE = Path(__file__).resolve().parent.parent / "RESULTS.md"

INTRODUCTION = """# Results

Written by `python -m benchmarks.charts` from the newest kept runs. Nothing here is typed in by hand.

```
make bench-peers                     # installs the peers into .bench/, measures all of them, three rounds each
make bench                           # ours beside raw Celery, line by line
make bench-growth                    # ours as work, history and workers grow
python -m benchmarks history         # ours beside ten million calls that are over
python -m benchmarks.charts          # writes this page and its charts
```

All need Linux and Python 3.11 or later, and bring everything else: Valkey and PostgreSQL come as wheels, the peers from PyPI with the versions pinned in
`benchmarks/peers/requirements/`.
"""

PEERS = """## Beside other task queues

All on one machine and the same servers: Valkey with its append-only file synced every second, PostgreSQL with `fsync` on. Every peer has two worker
processes. Only those of one peer run at a time; the peers take turns, and each round begins with another one. The client sends a number with each no-op and checks
that this number comes back. The first calls warm both sides up and are not measured.

- **no-ops**: calls a second from the first submit of a burst to its last result, from one client.
- **CPU a call**: processor time of that burst, summed over client, workers and servers. It depends least on what else the machine does.
- **round trip**: one call at a time, 200 of them: submit, run, result.
- **500 x sleep(0.2)**: all submitted at once, until the last result. Calls that only wait, as tools that call services do. n/a: its
  processes run one call at a time, so that two of them need 50 s.
- **in SQL**: the call is committed to PostgreSQL before it is accepted. **recorded**: what is kept of it, and how long. **at most once**: whether something
  keeps a call from being run twice when messages are repeated or workers die.
"""

CAVEATS = """### What these figures do not show

- **Work.** A tool that takes 50 ms hides every difference but that of the last column.
- **Distance.** Over a network, each exchange with a server costs more.
- **Other settings.** Each peer runs as its documentation advises for this use, with results and, where it has them, acknowledgements on. Where a default would
  have made it slow without need, such as polling once a second, it was changed in the peer's favour; the table of settings says so.
- **What else a queue is chosen for.** One that keeps less does less: figures of peers that keep calls in the broker only are no measure of those that
  commit them to SQL.
"""

EXPLAINED = "What each side is and what each line measures: [docs/benchmarks.md](../docs/benchmarks.md).\n"
HEADINGS = {
    "default": f"## Beside raw Celery\n\n{EXPLAINED}",
    "development": "## While tools are written\n",
    "growth": "## As work grows\n",
    "history": "## Beside a long history\n",
}
"""Of the sets of measures that have a table here."""


def write(peers: PeersReport, ours: Mapping[str, Report | None], pictures: Sequence[tuple[str, Path]]) -> Path:
    """Write the page; `ours` is a report for each set of measures that is kept, `pictures` are titles and files."""
    PAGE.write_text(text(peers, ours, pictures))
    return PAGE


def text(peers: PeersReport, ours: Mapping[str, Report | None], pictures: Sequence[tuple[str, Path]]) -> str:
    images = "\n\n".join(f"![{title}]({os.path.relpath(path, PAGE.parent)})" for title, path in pictures)
    parts = [INTRODUCTION, PEERS, f"{images}\n", peers.markdown(), CAVEATS]
    for name, heading in HEADINGS.items():
        if (report := ours.get(name)) is not None:
            parts += [heading, report.markdown()]
    return "\n".join(parts)
