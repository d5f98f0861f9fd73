"""The hot statements, by name, from the `.sql` files of each database; what they list of columns comes from the tables.

A file has blocks, each after a line `-- name: ...`; other comments are for people. `{name}` stands for another block, or for
columns: `asked` (of a call that is inserted), `queued` (those of them that its row in the queue repeats), `outcome` (of an
attempt that ended), `claim` and `result` (what is read of either). Parameters are `:name`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Column
from sqlalchemy.ext.asyncio import AsyncConnection

from forge_tools.storage.columns import JsonText
from forge_tools.storage.models import execution_attempts, execution_queue, executions
from forge_tools.storage.rows import ASKED, CLAIM, MAX_SKEW, OUTCOME, RESULT

FOLDER = Path(__file__).with_name("sql")

_BLOCK = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


class Numbered(NamedTuple):
    """A statement whose parameters are `$1` and on, which stand for these names."""

    text: str
    names: tuple[str, ...]

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] for name in self.names]


@cache
def sqlite_statements() -> Mapping[str, str]:
    """With the named parameters of SQLite."""
    return _read("sqlite", {f"{name}_values": _places(names) for name, names in _LISTS.items()})


async def prepare(connection: AsyncConnection, name: str) -> None:
    """Begin a transaction with what this database needs for it, which is nothing where no block has that name."""
    for said in settings(connection.dialect.name, name):
        await connection.exec_driver_sql(said)


def settings(dialect: str, name: str) -> list[str]:
    """The statements of a block, one by one."""
    texts = _TEXTS[dialect]()
    return texts[name].split(";\n") if name in texts else []


@cache
def postgres_statements() -> Mapping[str, Numbered]:
    """With the numbered parameters of PostgreSQL, where columns of many rows are arrays."""
    columns = {name: _columns(names) for name, names in _LISTS.items()}
    arrays = {f"{name}_arrays": ", ".join(map(_array, them)) for name, them in columns.items()}
    values = {f"{name}_values": ", ".join(map(_cast, them)) for name, them in columns.items()}
    return {name: _numbered(said) for name, said in _read("postgresql", arrays | values).items()}


_TEXTS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "sqlite": sqlite_statements,
    "postgresql": lambda: {name: statement.text for name, statement in postgres_statements().items()},
}

_LISTS: Mapping[str, Sequence[str]] = {"asked": ASKED, "outcome": OUTCOME}


def _columns(names: Iterable[str]) -> list[Column[object]]:
    return [executions.c[name] if name in executions.c else execution_attempts.c[name] for name in names]


def _array(column: Column[object]) -> str:
    """JSON travels as text."""
    return f":{column.name}::{getattr(column.type, 'array', 'text')}[]"


def _cast(column: Column[object]) -> str:
    return f"{column.name}::json" if isinstance(column.type, JsonText) else column.name


def _places(names: Iterable[str]) -> str:
    return ", ".join(f":{name}" for name in names)


def _read(dialect: str, lists: Mapping[str, str]) -> dict[str, str]:
    parts = {
        "asked": ", ".join(ASKED),
        "queued": ", ".join(name for name in ASKED if name in execution_queue.c),
        "outcome": ", ".join(OUTCOME),
        "claim": ", ".join(f"e.{name}" for name in CLAIM),
        "result": ", ".join(f"a.{name}" for name in RESULT),
        "max_skew": str(MAX_SKEW),
        **lists,
    }
    blocks: dict[str, str] = {}
    for file in sorted((FOLDER / dialect).glob("*.sql")):
        _, *named = _BLOCK.split(file.read_text())
        blocks.update(zip(named[::2], (_COMMENT.sub("", said).strip() for said in named[1::2]), strict=True))

    def filled(said: str) -> str:
        return _PLACE.sub(lambda place: filled(parts.get(place[1]) or blocks[place[1]]), said)

    return {name: filled(said) for name, said in blocks.items()}


def _numbered(said: str) -> Numbered:
    names = tuple(dict.fromkeys(_PARAMETER.findall(said)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Numbered(_PARAMETER.sub(lambda place: numbers[place[1]], said), names)
