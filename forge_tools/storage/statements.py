"""The hot statements by name, from each database's `.sql` file; their column lists come from the tables.

A file has blocks, each after a line `-- name: ...`; other lines that begin with `--` are for people and never sent.
`{name}` stands for another block, or for columns: `asked` (of a call that is inserted), `queued` (those of them that
its row in the queue repeats), `outcome` (of an attempt that ended), `claim_columns` and `result_columns` (what is read
of either). Parameters are `:name`.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from forge_tools.storage.columns import Column
from forge_tools.storage.rows import ASKED, CLAIM, MAX_SKEW, OUTCOME, RESULT
from forge_tools.storage.tables import NOBODY, execution_attempts, execution_queue, executions

FOLDER = Path(__file__).with_name("sql")

_BLOCK = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")  # `::uuid` is a cast


class Numbered(NamedTuple):
    """A statement whose parameters are `$1` and so on, with the names that these stand for."""

    text: str
    names: tuple[str, ...]

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] for name in self.names]


@cache
def sqlite_statement(name: str) -> str:
    return _filled(_blocks("sqlite")[name], "sqlite")


@cache
def postgres_statement(name: str) -> Numbered:
    """Return a statement with the numbered parameters of PostgreSQL, where columns of many rows are arrays."""
    said = _filled(_blocks("postgresql")[name], "postgresql")
    names = tuple(dict.fromkeys(_PARAMETER.findall(said)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Numbered(_PARAMETER.sub(lambda place: numbers[place[1]], said), names)


def settings(dialect: str, name: str) -> list[str]:
    """Return the statements of a block without parameters, one by one."""
    blocks = _blocks(dialect)
    return _filled(blocks[name], dialect).split(";\n") if name in blocks else []


@cache
def _blocks(dialect: str) -> Mapping[str, str]:
    _, *named = _BLOCK.split((FOLDER / f"{dialect}_statements.sql").read_text())
    return dict(zip(named[::2], (_COMMENT.sub("", said).strip() for said in named[1::2]), strict=True))


def _filled(said: str, dialect: str) -> str:
    return _PLACE.sub(lambda place: _filled(_blocks(dialect).get(place[1]) or _lists(dialect)[place[1]], dialect), said)


@cache
def _lists(dialect: str) -> Mapping[str, str]:
    asked = [executions.columns[name] for name in ASKED]
    given: dict[str, list[Column]] = {
        "asked": asked,
        "queued": [column for column in asked if column.name in execution_queue.columns],
        "outcome": [execution_attempts.columns[name] for name in OUTCOME],
    }
    forms: dict[str, Callable[[Column], str]] = {
        "": attrgetter("name"),
        "_arrays": lambda column: f":{column.name}::{column.kind.array}[]",  # JSON travels as text
        "_parameters": lambda column: f":{column.name}::{'json' if column.kind.type == 'json' else column.kind.array}",
        "_values": _cast if dialect == "postgresql" else lambda column: f":{column.name}",
    }
    return {
        "claim_columns": ", ".join(f"e.{name}" for name in CLAIM),
        "result_columns": ", ".join(f"a.{name}" for name in RESULT),
        "nobody": ", ".join(f"{name} = NULL" for name in NOBODY),
        "max_skew": str(MAX_SKEW),
        **{name + form: ", ".join(map(forms[form], columns)) for name, columns in given.items() for form in forms},
    }


def _cast(column: Column) -> str:
    return f"{column.name}::json" if column.kind.type == "json" else column.name
