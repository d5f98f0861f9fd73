"""Tables without frames that stay readable at 80 columns."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from forge_tools.cli.face import one_line


class Column(NamedTuple):
    """A column: what is over it, and how it gives way when the terminal is narrow."""

    title: str
    is_number: bool = False
    is_flexible: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Build a table: numbers to the right; only flexible columns are cut, and an ellipsis says so."""
    made = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold", border_style="dim", show_edge=False
    )
    for column in columns:
        made.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=not column.is_flexible,
            overflow="ellipsis",
        )
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Build two aligned columns, names dimmed; long values wrap below themselves."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(Text(one_line(name)), value if isinstance(value, Text) else Text(one_line(value)))
    return made


def _cell(value: str | Text) -> Text:
    # The text itself must not wrap: a flexible column would, and a fixed one is never narrowed for its sake.
    text = value if isinstance(value, Text) else Text(one_line(value))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
