"""The options by which history, figures, exports and pruning are narrowed: one meaning, wherever they stand."""

import shlex
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from typer import Option

from forge_tools.cli.text import parse_since
from forge_tools.model import ExecutionStatus, ToolCategory

Chosen = dict[str, Any]
"""What is asked for, by the names of `Selection`."""


def moment(text: str) -> datetime:
    """Read a time on the command line; what is none is a usage error."""
    try:
        return parse_since(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _if_given(text: str | None) -> datetime | None:
    return moment(text) if text else None


_TIME = {"metavar": "TIME", "callback": _if_given}
_MILLISECONDS = {"metavar": "MS", "min": 0}
_OPTIONS: dict[str, tuple[str, Any, str, dict[str, Any]]] = {
    "kind": ("kind", str, "Only events of this kind: cancel, requeue, lost, replay, prune, ...", {"metavar": "KIND"}),
    "tool": ("tool", str, "Only this tool.", {}),
    "category": ("category", ToolCategory, f"One of {', '.join(ToolCategory)}.", {"metavar": "CATEGORY"}),
    "status": ("status", ExecutionStatus, f"One of {', '.join(ExecutionStatus)}.", {"metavar": "STATUS"}),
    "agent": ("agent_id", str, "Only calls of this agent.", {}),
    "session": ("session_id", str, "Only calls of this session.", {}),
    "queue": ("queue", str, "Only calls of this queue.", {}),
    "since": ("since", str, "Queued since 90s, 15m, 1h, 2d ago, or ISO.", _TIME),
    "until": ("until", str, "Queued before then, in the same forms.", _TIME),
    "error_code": ("error_code", str, "Only those that ended with it.", {"metavar": "CODE"}),
    "error": ("error_text", str, "Only those whose error has this text in it.", {"metavar": "TEXT"}),
    "slower_than": ("min_ms", float, "Only those that ran for so many milliseconds or longer.", _MILLISECONDS),
    "faster_than": ("max_ms", float, "Only those that ran for so many milliseconds at most.", _MILLISECONDS),
}
"""Each option with its name in `Selection`, its type and its help."""

ALL = tuple(_OPTIONS)

_RANGES = (("since", "until", "--since / --until"), ("min_ms", "max_ms", "--slower-than / --faster-than"))


def filtered(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options where it has the parameter `chosen`, which gets what they say."""

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
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions may have one
        return run

    return with_options


def _checked(chosen: Chosen) -> Chosen:
    for low, high, options in _RANGES:
        if low in chosen and high in chosen and chosen[low] > chosen[high]:
            raise typer.BadParameter("Nothing lies between them: the first is beyond the second.", param_hint=options)
    return chosen


def again(context: typer.Context, **others: str) -> str:
    """This command with its options, and with `others` in place of what they were, as it can be typed."""
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
