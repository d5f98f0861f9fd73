"""Executions as people name them: by id, a part of it, or `@last`; and what a shell completes them to."""

import re
from collections.abc import Iterator
from typing import Annotated

import typer
from typer import Argument

from forge_tools.cli.database import with_history
from forge_tools.cli.text import one_line
from forge_tools.errors import ExecutionNotFoundError, ForgeError
from forge_tools.model import ExecutionRecord, is_id
from forge_tools.storage.history.history import History

LOOKED_AT = 1_000
"""Newest executions among which the end of an id is looked for; its beginning is found among all."""

COMPLETED = 30

_BACK = re.compile(r"@(?:last|-(?P<count>[1-9]\d{0,3}))")
_END = re.compile(r"[0-9a-f]{4,12}", re.IGNORECASE)


def whole_id(context: typer.Context, given: str) -> str:
    """The id that is meant; what is none of these forms is handed on as it is."""
    if context.resilient_parsing:  # a shell asks what could follow
        return given
    if found := _BACK.fullmatch(given):
        back = int(found["count"] or 1)
        newest = _newest(back)
        if len(newest) < back:
            raise ExecutionNotFoundError(f"There is no {given}: {len(newest)} executions are recorded.")
        return newest[-1].id
    if is_id(given.lower()) or not _END.fullmatch(given):
        return given
    fitting = [
        one.id for one in _newest(LOOKED_AT) if one.id.endswith(given.lower()) or one.id.startswith(given.lower())
    ]
    if len(fitting) > 1:
        raise ExecutionNotFoundError(f"{given} begins or ends several ids: {', '.join(fitting[:3])}. Give more of it.")
    return fitting[0] if fitting else given


def completed_ids(incomplete: str) -> Iterator[tuple[str, str]]:
    """The newest executions, as a shell offers them."""
    try:
        newest = _newest(COMPLETED)
    except ForgeError:  # no database, nothing to offer
        return
    for name, one in [("@last", newest[0]), *((one.id, one) for one in newest)] if newest else []:
        if name.startswith(incomplete):
            yield name, one_line(f"{one.tool} {one.status}")


IdArgument = Annotated[
    str,
    Argument(
        metavar="ID",
        help="Its id, a unique beginning or end of it, @last, or @-2 for the one before.",
        callback=whole_id,
        autocompletion=completed_ids,
    ),
]


def _newest(count: int) -> list[ExecutionRecord]:
    async def read(known: History) -> list[ExecutionRecord]:
        return list(await known.list(limit=count))

    return with_history(read)
