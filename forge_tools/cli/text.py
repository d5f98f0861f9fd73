"""Values as people read them: escaped, in short words, in tables that stay readable at 80 columns."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

NARROW = 70
"""Columns of a terminal below which rows are shown as facts, one below the other: columns would lose what identifies a row."""

WIDE = 100
"""Columns of a terminal from which there is room for everything."""

GAP = 3
"""Columns between two of a table."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, marks that reorder text on a terminal, and lone surrogates."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

number = partial(Column, justify="right", no_wrap=True, overflow="ellipsis")
"""A column of numbers, which stand to the right."""

flexible = partial(Column, overflow="ellipsis")
"""A column that gives way when the terminal is narrow; others are not cut."""


def printable(text: object) -> str:
    """Escape what would move the cursor, reorder text or cannot be encoded."""
    return _UNPRINTABLE.sub(_escaped, str(text))


def one_line(text: object) -> str:
    """Make a text fit a table's cell: printable, white space collapsed."""
    return " ".join(_UNPRINTABLE.sub(_escaped, str(text)).split())


def from_here(text: str) -> str:
    """Name files below this folder as seen from it."""
    return text.replace(f"{Path.cwd()}/", "")


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def table(columns: Iterable[str | Column], rows: Iterable[Iterable[str | Text]]) -> Table:
    """Build a table without a frame; an ellipsis says where a flexible column is cut."""
    headers = (
        Column(one, no_wrap=True, overflow="ellipsis") if isinstance(one, str) else one.copy() for one in columns
    )
    form: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, 1)}
    made = Table(*headers, header_style="bold", border_style="dim", **form)
    for row in rows:
        made.add_row(*cells(row))
    return made


def listed(columns: Sequence[str | Column], rows: Iterable[Iterable[str | Text]], width: int) -> Table:
    """Build a table; on a narrow terminal, in which its columns would be cut, a block of facts for each row."""
    if width >= NARROW:
        return table(columns, rows)
    titles = [one if isinstance(one, str) else str(one.header) for one in columns]
    made = Table.grid()
    for row in rows:
        made.add_row(facts((title, one) for title, one in zip(titles, row, strict=True) if str(one) not in {"", "-"}))
        made.add_row("")
    return made


def cells(row: Iterable[str | Text]) -> list[Text]:
    """Texts that do not wrap: a flexible column would, and a fixed one is never narrowed for its sake."""
    return [one if isinstance(one, Text) else Text(one_line(one), no_wrap=True, overflow="ellipsis") for one in row]


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Build two aligned columns, names dimmed; long values wrap below themselves."""
    made = Table.grid(Column(style="dim", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, value in pairs:
        made.add_row(Text(one_line(name)), value if isinstance(value, Text) else Text(one_line(value)))
    return made


def as_json(value: Any, **form: Any) -> str:
    """JSON for programs; times are in ISO 8601 UTC."""
    return json.dumps(value, default=lambda one: iso(one) if isinstance(one, datetime) else str(one), **form)


def as_text(value: Any) -> str:
    """A value as text: what is none already as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """Read `90s`, `15m`, `1h`, `2d`, `1w` (ago), or a date or time in ISO 8601; without an offset it is UTC.

    Raises:
        ValueError: with what was given and the forms that are understood.
    """
    ago = _AGE.fullmatch(text.strip())
    try:
        if ago:
            return (now or datetime.now(UTC)) - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time. Write 90s, 15m, 1h, 2d, or ISO such as 2026-05-01T12:00Z.") from None


def iso(moment: datetime | None) -> str | None:
    """UTC in ISO 8601 with milliseconds, for programs."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def compact(moment: datetime | None, now: datetime | None = None) -> str:
    """`14:03:22Z 2m`: the time in UTC and how long ago; with the date instead of seconds where it is older than a day."""
    if moment is None:
        return "-"
    moment = moment.astimezone(UTC)
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    form = "%H:%M:%SZ" if seconds < 86_400 else "%m-%d %H:%MZ"
    return f"{moment.strftime(form)} {age(seconds)}"


def age(seconds: float) -> str:
    """`12s`, `5m`, `3h`, `9d`: one unit is enough to find one's way."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def short_path(path: str) -> str:
    """As seen from this folder where it is below, else from the user's home folder."""
    relative, home = os.path.relpath(path), os.path.expanduser("~")  # noqa: PTH111  never raises
    if not relative.startswith(".."):
        return relative
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path


def took(milliseconds: float | None) -> str:
    """`3 ms`, `1.2 s`, `4m 10s`."""
    if milliseconds is None:
        return "-"
    if milliseconds < 999.5:
        return f"{milliseconds:.{1 if milliseconds < 0.95 else 0}f} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def limit(seconds: float) -> str:
    """Seconds as they were set: `5s`, `0.5s`, `120s`."""
    return f"{seconds:g}s"
