"""The parts of a streamed reply put together: text in pieces, calls whole or with arguments in pieces."""

import re
from typing import Any

Part = dict[str, Any]

_TEXT = frozenset({"text", "thought"})
_STREAMED = frozenset({"partial_args", "will_continue"})
"""What a call says of its being streamed; requests do not take it."""

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]|\[(?P<quote>['"])(?P<quoted>(?:\\.|[^\\])*?)(?P=quote)\]""", re.DOTALL
)
"""One step of a JSON path (RFC 9535) that names one place."""


def add_part(parts: list[Part], part: Part) -> None:
    """Add what a chunk brought. A part with a signature stays one of its own, since that belongs to what it came with."""
    last = parts[-1] if parts else {}
    call = part.get("function_call")
    if call is None and _is_plain(last) and _is_plain(part) and last.get("thought") == part.get("thought"):
        last["text"] += part["text"]
    elif call is None:
        parts.append(part)
    elif call.get("name"):
        parts.append(part | {"function_call": _with_pieces(call, call)})
    else:  # only what goes on with a call comes without its name
        begun = next((at for at in reversed(range(len(parts))) if "function_call" in parts[at]), None)
        if begun is not None:
            parts[begun] |= part | {"function_call": _with_pieces(parts[begun]["function_call"], call)}


def sendable(parts: list[Part]) -> list[Part]:
    """What the history gets: nothing that is empty, which requests do not take."""
    return [part for part in parts if part.keys() - _TEXT or part.get("text")]


def _is_plain(part: Part) -> bool:
    return "text" in part and part.keys() <= _TEXT


def _with_pieces(call: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A call with more of its arguments, as a request takes it."""
    call = {name: value for name, value in call.items() if name not in _STREAMED}
    for piece in more.get("partial_args") or ():
        call["args"] = _with_value(call.get("args") or {}, _steps(piece.get("json_path") or ""), piece)
    return call


def _steps(path: str) -> list[str | int]:
    return [
        int(step["index"])
        if step["index"]
        else step["name"] or re.sub(r"\\(.)", r"\1", step["quoted"], flags=re.DOTALL)
        for step in _STEP.finditer(path)
    ]


def _with_value(place: Any, steps: list[str | int], piece: dict[str, Any]) -> Any:
    """Put a piece where its path leads, making the objects and arrays on the way."""
    if not steps:
        return _value(place, piece)
    step, *rest = steps
    if isinstance(step, int):
        items = place if isinstance(place, list) else []
        if step < len(items):
            items[step] = _with_value(items[step], rest, piece)
        else:
            items.append(_with_value(None, rest, piece))
        return items
    members = place if isinstance(place, dict) else {}
    members[step] = _with_value(members.get(step), rest, piece)
    return members


def _value(before: Any, piece: dict[str, Any]) -> Any:
    if "string_value" in piece:
        return (before if isinstance(before, str) else "") + piece["string_value"]
    if "number_value" in piece:
        number = piece["number_value"]
        return int(number) if float(number).is_integer() else number
    return piece.get("bool_value")
