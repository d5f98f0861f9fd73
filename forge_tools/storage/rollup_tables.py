"""The tables of figures that are kept by the hour."""

import json
from array import array
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Column, Dialect, Float, Integer, Table, Text
from sqlalchemy.types import TypeEngine

from forge_tools.storage.models import Identifier, JsonText, Moment, metadata


class Numbers(JsonText):
    """A list of floats: `double precision[]` on PostgreSQL, a JSON array in TEXT on SQLite. It binds what `in_form` makes."""

    cache_ok = True
    holds = (list,)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(Float(53)) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value


def in_form(numbers: Sequence[float], dialect: str) -> Sequence[float] | str:
    """In ascending order, as a column of `Numbers` holds them: for many it takes long, so it is done before they are bound."""
    ranked = sorted(numbers)
    return array("d", ranked) if dialect == "postgresql" else json.dumps(ranked, separators=(",", ":"))


rollup_hours = Table(
    "rollup_hours",
    metadata,
    Column("hour", Moment, primary_key=True),
    Column("token", Identifier),
    Column("rolled_at", Moment),
    Column("calls", BigInteger),
)
"""One row an hour that was counted, or is to be again: then `rolled_at` is NULL. `token` is of who counts it at the moment."""

rollup_figures = Table(
    "rollup_figures",
    metadata,
    Column("grouped_by", Text, primary_key=True),
    Column("hour", Moment, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("tool", Text),
    Column("category", Text),
    Column("queue", Text),
    Column("agent_id", Text),
    Column("session_id", Text),
    Column("calls", BigInteger, nullable=False),
    Column("succeeded", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("durations", Numbers, nullable=False),
    Column("waits", Numbers, nullable=False),
)
"""The calls that were queued in an hour, once told apart by `tool` (and category and queue), once by `agent`, once by `session`.

`durations` and `waits` are milliseconds, in ascending order. A row counts only while its hour is rolled up.
"""
