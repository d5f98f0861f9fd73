"""Values for people: escaped, in short words, in tables that stay readable at 80 columns."""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

NARROW = 70
"""Below this terminal width each record is a block of facts: in columns, its identity would be cut."""

WIDE = 100
"""From this terminal width on there is room for everything."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, marks that reorder text on a terminal, and lone surrogates."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


@dataclass(frozen=True, slots=True)
class Column:
    """One cell of each record, below a title. It is omitted on terminals narrower than `least`."""

    title: str
    cell: Callable[[Any], str | Text]
    least: int = 0
    is_number: bool = False
    is_flexible: bool = False
    """Whether it is cut on a narrow terminal; other columns are not."""


number = partial(Column, is_number=True)
flexible = partial(Column, is_flexible=True)


def printable(text: object) -> str:
    """Escape whatever would move the cursor or reorder text, or cannot be encoded."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], str(text))


def one_line(text: object) -> str:
    """Make a text fit a table's cell: printable, white space collapsed."""
    return " ".join(printable(text).split())


def from_here(text: str) -> str:
    """Shorten paths below the current folder to relative ones."""
    return text.replace(f"{Path.cwd()}/", "")


def table(columns: Sequence[Column], records: Iterable[Any], width: int) -> Table:
    """Return one line for each record, without a frame; on a terminal too narrow for that, a block of facts for each."""
    columns = [one for one in columns if width < NARROW or width >= one.least]
    rows = [[one.cell(record) for one in columns] for record in records]
    if width < NARROW:
        return _blocks([one.title for one in columns], rows)
    sides = 1 if width >= WIDE else 0
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, sides),
        header_style="bold",
        border_style="dim",
    )
    return filled(made, columns, rows)


def filled(made: Table, columns: Iterable[Column], rows: Iterable[Iterable[str | Text]]) -> Table:
    """Add the columns and the rows to a table; an ellipsis marks a cut cell."""
    for one in columns:
        made.add_column(
            Text(one.title),
            justify="right" if one.is_number else "left",
            no_wrap=not one.is_flexible,
            overflow="ellipsis",
        )
    for row in rows:
        made.add_row(*cells(row))
    return made


def _blocks(titles: Sequence[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    made = Table.grid()
    for row in rows:
        made.add_row(facts((title, one) for title, one in zip(titles, row, strict=True) if str(one) not in {"", "-"}))
        made.add_row("")
    return made


def cells(row: Iterable[str | Text]) -> list[Text]:
    """Return texts that do not wrap: flexible columns would wrap them, and fixed ones never give up room for that."""
    return [one if isinstance(one, Text) else Text(one_line(one), no_wrap=True, overflow="ellipsis") for one in row]


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Build two aligned columns, names dimmed; long values wrap below themselves."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(Text(one_line(name)), value if isinstance(value, Text) else Text(one_line(value)))
    return made


def as_json(value: Any, **form: Any) -> str:
    """Render JSON for programs; times are in ISO 8601 UTC."""
    return json.dumps(value, default=lambda one: iso(one) if isinstance(one, datetime) else str(one), **form)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """Parse `90s`, `15m`, `1h`, `2d`, `1w` (ago), or a date or time in ISO 8601; without an offset it is UTC.

    Raises:
        ValueError: with the given text and the accepted forms.
    """
    ago = _AGE.fullmatch(text.strip())
    try:
        if ago:
            return (now or datetime.now(UTC)) - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time. Write 90s, 15m, 1h, 2d, or ISO such as 2026-05-01T12:00Z.") from None


def iso(moment: datetime | None) -> str | None:
    """Format as UTC in ISO 8601 with milliseconds, for programs."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def compact(moment: datetime | None, now: datetime | None = None) -> str:
    """Format as `14:03:22Z 2m`: the time in UTC and its age; the date replaces the seconds after a day."""
    return "-" if moment is None else f"{clock(moment, now)} {since(moment, now)}"


def clock(moment: datetime, now: datetime | None = None) -> str:
    """Format as `14:03:22Z`, the time in UTC; the date replaces the seconds after a day."""
    form = "%H:%M:%SZ" if _elapsed(moment, now) < 86_400 else "%m-%d %H:%MZ"
    return moment.astimezone(UTC).strftime(form)


def since(moment: datetime, now: datetime | None = None) -> str:
    """Format as `2m`: how long ago it was."""
    return age(_elapsed(moment, now))


def _elapsed(moment: datetime, now: datetime | None) -> float:
    return ((now or datetime.now(UTC)) - moment).total_seconds()


def age(seconds: float) -> str:
    """Format as `12s`, `5m`, `3h`, `9d`: one unit is precise enough."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def short_path(path: str) -> str:
    """Make a path relative to the current folder if it lies below, else to the user's home."""
    relative, home = os.path.relpath(path), os.path.expanduser("~")  # noqa: PTH111  never raises
    if not relative.startswith(".."):
        return relative
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path


def took(milliseconds: float | None) -> str:
    """Format as `3 ms`, `1.2 s`, `4m 10s`."""
    if milliseconds is None:
        return "-"
    if milliseconds < 999.5:  # more would be rounded to 1000 ms, and 59.95 s to 60.0 s
        return f"{milliseconds:.{1 if milliseconds < 0.95 else 0}f} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def counted(count: int, noun: str, nouns: str | None = None) -> str:
    """Format as `1 call`, `2,000 calls`."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def limit(seconds: float) -> str:
    """Format seconds as they were set: `5s`, `0.5s`, `120s`."""
    return f"{seconds:g}s"
