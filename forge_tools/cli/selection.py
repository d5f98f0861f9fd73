"""Executions as people name them on the command line: by id, a part of it, @last, or by common features."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from typer import Argument, Option

from forge_tools.cli.parameters import completed_tools
from forge_tools.cli.services import with_history
from forge_tools.cli.text import one_line, parse_since
from forge_tools.errors import ExecutionNotFoundError, ForgeError
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.history import ExecutionRecord
from forge_tools.model.tools import ToolCategory

LOOKED_AT = 1_000
"""How many of the newest executions are searched for the end of an id; its beginning is searched in all."""

COMPLETED = 30
_BACK = re.compile(r"@(?:last|-(?P<count>[1-9]\d{0,3}))")
_END = re.compile(r"[0-9a-f]{4,12}", re.IGNORECASE)
_MILLISECONDS = {"metavar": "MS", "min": 0}
_RANGES = (("since", "until", "--since / --until"), ("min_ms", "max_ms", "--slower-than / --faster-than"))


def whole_id(context: typer.Context, given: str) -> str:
    """Resolve an abbreviated id; anything else is returned unchanged."""
    if context.resilient_parsing:  # a shell requests completions
        return given
    if found := _BACK.fullmatch(given):
        back = int(found["count"] or 1)
        newest = _newest(back)
        if len(newest) < back:
            raise ExecutionNotFoundError(f"There is no {given}: {len(newest)} executions are recorded.")
        return newest[-1].id
    if not _END.fullmatch(given):
        return given
    part = given.lower()
    fitting = [one.id for one in _newest(LOOKED_AT) if one.id.startswith(part) or one.id.endswith(part)]
    if len(fitting) > 1:
        some = ", ".join(fitting[:3])
        raise ExecutionNotFoundError(f"{given} is the beginning or end of several ids: {some}. Give more of it.")
    return fitting[0] if fitting else given


def whole_ids(context: typer.Context, given: list[str] | None) -> list[str]:
    return [whole_id(context, one) for one in given or ()]


def completed_ids(incomplete: str) -> Iterator[tuple[str, str]]:
    try:
        newest = _newest(COMPLETED)
    except ForgeError:  # no database, nothing to offer
        return
    for name, one in [("@last", newest[0]), *((one.id, one) for one in newest)] if newest else []:
        if name.startswith(incomplete):
            yield name, one_line(f"{one.tool} {one.status}")


_SPELLINGS = "a unique beginning or end of it, @last, or @-2 for the one before."

IdArgument = Annotated[
    str, Argument(metavar="ID", help=f"The id, {_SPELLINGS}", callback=whole_id, autocompletion=completed_ids)
]

IdsArgument = Annotated[
    list[str] | None,
    Argument(metavar="ID", help=f"Each id, {_SPELLINGS}", callback=whole_ids, autocompletion=completed_ids),
]


def _newest(count: int) -> Sequence[ExecutionRecord]:
    return with_history(lambda known: known.list(limit=count))


Chosen = dict[str, Any]
"""The given filters, by the names of `Selection`."""


def moment(text: str) -> datetime:
    try:
        return parse_since(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


_TIME = {"metavar": "TIME", "callback": lambda text: moment(text) if text else None}
_OPTIONS: dict[str, tuple[str, Any, str, dict[str, Any]]] = {
    "kind": ("kind", str, "Only events of this kind: cancel, requeue, lost, replay, prune, ...", {"metavar": "KIND"}),
    "tool": ("tool", str, "Only this tool.", {"autocompletion": completed_tools}),
    "category": ("category", ToolCategory, f"One of {', '.join(ToolCategory)}.", {"metavar": "CATEGORY"}),
    "status": ("status", ExecutionStatus, f"One of {', '.join(ExecutionStatus)}.", {"metavar": "STATUS"}),
    "agent": ("agent_id", str, "Only calls of this agent.", {}),
    "session": ("session_id", str, "Only calls of this session.", {}),
    "queue": ("queue", str, "Only calls of this queue.", {}),
    "since": ("since", str, "Queued since then: 90s, 15m, 1h or 2d ago, or an ISO time.", _TIME),
    "until": ("until", str, "Queued before then, in the same formats.", _TIME),
    "error_code": ("error_code", str, "Only those that ended with this code.", {"metavar": "CODE"}),
    "error": ("error_text", str, "Only those whose error contains this text.", {"metavar": "TEXT"}),
    "slower_than": ("min_ms", float, "Only those that ran for this many milliseconds or longer.", _MILLISECONDS),
    "faster_than": ("max_ms", float, "Only those that ran for this many milliseconds at most.", _MILLISECONDS),
}
"""Each option with its name in `Selection`, its type and its help."""

ALL = tuple(_OPTIONS)


def filtered(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options instead of its parameter `chosen`, which gets their values."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**words: Any) -> None:
            asked = {_OPTIONS[name][0]: words.pop(name) for name in names}
            command(**words, chosen=_checked({name: value for name, value in asked.items() if value is not None}))

        options = []
        for name in names:
            _, kind, said, form = _OPTIONS[name]
            option: Any = Annotated[kind | None, Option(help=said, **form)]
            options.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option))
        own = signature(command)
        at = list(own.parameters).index("chosen")
        parameters = [*own.parameters.values()]
        parameters[at : at + 1] = options
        vars(run)["__signature__"] = own.replace(parameters=parameters)
        return run

    return with_options


def _checked(chosen: Chosen) -> Chosen:
    for low, high, options in _RANGES:
        if low in chosen and high in chosen and chosen[low] > chosen[high]:
            raise typer.BadParameter("The first is beyond the second, so nothing can match.", param_hint=options)
    return chosen


def again(context: typer.Context, **others: str) -> str:
    """Rebuild this command line, with `others` in place of its own options."""
    words = ["forge-tools", str(context.info_name)]
    for option in context.command.params:
        name = str(option.name)
        value = others.get(name, context.params.get(name))
        if value is not None and value != option.get_default(context):
            words.append(next(word for word in option.opts if word.startswith("--")))
            words += [] if value is True else [_word(value)]
    return shlex.join(words)


def _word(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value.value if isinstance(value, Enum) else value)
