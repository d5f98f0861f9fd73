"""Keeps an output within `max_output_size`: its head and tail, what was left out, and where all of it is."""

import asyncio
import json
from functools import partial
from typing import Any

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.sandbox.artifacts import keep_text
from forge_tools.sandbox.processes.output import omissions, position_after
from forge_tools.secrets import scrubbed
from forge_tools.tool.base import brief

MARKER_CHARS = 250
"""More than a marker takes."""

LEAST_SECONDS = 0.5
"""What a call whose time is nearly over has left for keeping its output."""


def is_overlong(result: ToolResult, limit: int) -> bool:
    """Whether an output is more than `limit` characters, as text or as JSON."""
    output = result.output
    if not result.success or output is None or isinstance(output, bool | int | float):
        return False
    return len(output if isinstance(output, str) else _json(output)) > limit


async def limit_output(result: ToolResult, context: ExecutionContext, seconds: float) -> ToolResult:
    """Replace an output that `is_overlong` by its head and tail, and say so in `metadata`.

    All of it is kept as an artifact where there are any and that takes no longer than about `seconds`.
    """
    text = result.output
    if not isinstance(text, str):  # in a thread: indenting megabytes would hold up every other tool of the loop
        text = await asyncio.to_thread(_shown, text)
    if result.metadata.get("truncated") is True and len(text) <= MARKER_CHARS:
        return result  # the tool has cut it itself, and a marker of ours would count the characters of its own
    kept = await keep_text(text, context, max(seconds, LEAST_SECONDS))
    shown, facts = shorten(text, context.max_output_size, kept.get("artifact"))
    return result.model_copy(update={"output": shown, "metadata": result.metadata | facts | kept})


def shorten(text: str, limit: int, artifact: str | None = None) -> tuple[str, dict[str, Any]]:
    """Keep head (40 %) and tail of `text` within `limit` characters, marker included; return it and what was cut.

    Cuts move to the end of a line that lies within 10 % of the limit. A limit too small for the marker gives the marker.
    """
    total, lines = len(text), text.count("\n") + 1
    longest = omissions(total, lines, {"offset": lines, "column": total}, artifact)
    form = next((at for at, marker in enumerate(longest) if len(marker) <= limit), -1)
    budget = max(0, limit - len(longest[form]) - 2)
    head, tail = budget * 2 // 5, total - (budget - budget * 2 // 5)
    slack = limit // 10
    if (line_end := text.rfind("\n", max(0, head - slack), head)) >= 0:
        head = line_end
    if (line_end := text.find("\n", tail, tail + slack)) >= 0:
        tail = line_end + 1
    breaks = text.count("\n", head, tail)  # without a copy of what may be megabytes
    omitted_lines = breaks + 1 - text.startswith("\n", head, tail) - text.endswith("\n", head, tail)
    at = position_after(text[: head + (head > 0 and text[head] == "\n")])
    parts = (text[:head], omissions(tail - head, omitted_lines, at, artifact)[form], text[tail:])
    shown = text[:head].count("\n") + text[tail:].count("\n") + bool(head) + bool(total - tail)
    facts: dict[str, Any] = {"truncated": True, "total_chars": total, "total_lines": lines, "shown_lines": shown}
    if artifact:
        facts["next"] = {"tool": "Read", "file_path": artifact, **at}
    return "\n".join(part for part in parts if part), facts


def _shown(output: Any) -> str:
    """The text of what was no text, without the secrets that only show in it: objects and bytes have them too."""
    text: str = scrubbed(_json(output, 2))
    return text


def _json(output: Any, indent: int | None = None) -> str:
    for render in (partial(json.dumps, indent=indent, ensure_ascii=False, default=str), repr):
        try:
            return render(output)
        except Exception:  # noqa: BLE001, S112 the methods of foreign objects may raise anything
            continue
    return brief(output)
