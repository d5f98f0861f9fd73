"""The options by which history, figures and exports are narrowed: one meaning, wherever they stand."""

import shlex
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

import typer

from forge_tools.cli.moments import parse_since
from forge_tools.records import ExecutionStatus, ToolCategory

ToolOption = Annotated[str | None, typer.Option(help="Only this tool.")]
CategoryOption = Annotated[
    ToolCategory | None, typer.Option(metavar="CATEGORY", help=f"One of {', '.join(ToolCategory)}.")
]
StatusOption = Annotated[
    ExecutionStatus | None, typer.Option(metavar="STATUS", help=f"One of {', '.join(ExecutionStatus)}.")
]
AgentOption = Annotated[str | None, typer.Option(help="Only calls of this agent.")]
SessionOption = Annotated[str | None, typer.Option(help="Only calls of this session.")]
QueueOption = Annotated[str | None, typer.Option(help="Only calls of this queue.")]
CodeOption = Annotated[str | None, typer.Option(metavar="CODE", help="Only those that ended with it.")]
ErrorOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Only those whose error has this text in it.")]


def _moment(text: str | None) -> datetime | None:
    try:
        return parse_since(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


SinceOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Queued since 90s, 15m, 1h, 2d ago, or ISO.", callback=_moment),
]
UntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Queued before then, in the same forms.", callback=_moment)
]
SlowerOption = Annotated[
    float | None, typer.Option(metavar="MS", min=0, help="Only those that ran for so many milliseconds or longer.")
]
FasterOption = Annotated[
    float | None, typer.Option(metavar="MS", min=0, help="Only those that ran for so many milliseconds at most.")
]


_FIELDS = {
    "agent": "agent_id",
    "session": "session_id",
    "error": "error_text",
    "slower_than": "min_ms",
    "faster_than": "max_ms",
    **{name: name for name in ("tool", "category", "status", "queue", "since", "until", "error_code")},
}
"""What each option is called in `Selection`."""


def given(context: typer.Context) -> dict[str, Any]:
    """The filters that this command was given, by the names of `Selection`."""
    params = context.params
    asked = {field: params[name] for name, field in _FIELDS.items() if params.get(name) is not None}
    for low, high, options in (
        ("since", "until", "--since / --until"),
        ("min_ms", "max_ms", "--slower-than / --faster-than"),
    ):
        if low in asked and high in asked and asked[low] > asked[high]:
            raise typer.BadParameter("Nothing lies between them: the first is beyond the second.", param_hint=options)
    return asked


def again(context: typer.Context, **others: str) -> str:
    """This command with its options, and with `others` in place of what they were, as it can be typed."""
    words = ["forge-tools", str(context.info_name)]
    for option in context.command.params:
        name = str(option.name)
        value = others.get(name, context.params.get(name))
        if value is not None and value != option.get_default(context):
            words += [next(word for word in option.opts if word.startswith("--")), _word(value)]
    return shlex.join(words)


def _word(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value.value if isinstance(value, Enum) else value)
