"""`python -m benchmarks.house`: writes benchmarks/HOUSE.md."""

import re
import subprocess
from collections.abc import Iterator

from benchmarks.house import journeys, size

PAGE = size.ROOT / "benchmarks" / "HOUSE.md"
GLOSSARY = size.ROOT / "docs" / "architecture.md"

HEAD = """\
# The house: its size, and the way of one call through it

Written by `make house`. A *call* is a function of `forge_tools` or `workers` that starts, in whatever process and thread of an
embedded stack; a *jump* is a change of file from one to the next within a thread, a *hand-over* a change of thread or process.
Everything that the client and the worker of the call do between `execute("Read")` after 1.5 s of silence and 50 ms after its result counts,
a heartbeat that falls into it too; the round of five with the median number of calls is shown. The tracer is
`benchmarks/house/tracing/sitecustomize.py`.
"""


def main() -> None:
    lines = [HEAD, *_journey(journeys.one_read()), *_places(), *_size()]
    PAGE.write_text("\n".join(lines))
    print("\n".join(lines))


def _journey(read: journeys.Journey) -> Iterator[str]:
    yield f"Commit: {_commit()}\n\n## One Read\n\n| | |\n|---|---|"
    yield f"| function calls | {read.calls} |\n| of them before the call is inserted | {read.calls_before_insert} |"
    yield f"| files | {read.files} |\n| jumps between files | {read.jumps} |\n| hand-overs | {read.hand_overs} |"
    yield f"| function calls of `forge-tools history --limit 3` | {journeys.a_page_of_history()} |"
    yield f"| records made (dataclasses alone) | {', '.join(one.rpartition('.')[2] for one in read.records)} |\n"
    yield "SQL, in order:\n\n```sql"
    yield from (statement[:110] for statement in read.statements)
    yield "```\n"


def _places() -> Iterator[str]:
    yield "## Files that know one fact\n\n| | files |\n|---|---|"
    yield from (f"| {name} | {len(size.places(pattern))} |" for name, pattern in size.PLACES.items())
    yield f"| words of our own in the glossary | {_words()} |\n"


def _words() -> str:
    """Count the rows in the glossary's table of terms that are not the field's."""
    if not GLOSSARY.exists():
        return "no glossary"
    _, _, own = GLOSSARY.read_text().partition("### Words of our own\n")
    return str(len(re.findall(r"(?m)^\| \*\*", own.partition("\n#")[0])))


def _size() -> Iterator[str]:
    yield "## Size\n\n| | lines | files |\n|---|---|---|"
    yield from (f"| {one.name} | {one.lines:,} | {one.files} |" for one in size.sizes())
    yield ""


def _commit() -> str:
    said = subprocess.run(
        ["git", "log", "-1", "--format=%h %s"], cwd=size.ROOT, capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


if __name__ == "__main__":
    main()
