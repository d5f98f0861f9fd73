"""Keeps an output within `max_output_size`: its head and tail, and what was left out."""

import json
from functools import partial
from typing import Any

from forge_tools.base import brief
from forge_tools.records import ToolResult


def limit_output(result: ToolResult, limit: int) -> ToolResult:
    """Replace an output of more than `limit` characters by its head and tail, and say so in `metadata`."""
    output = result.output
    if not result.success or output is None or isinstance(output, bool | int | float):
        return result
    if not isinstance(output, str):
        if len(_json(output)) <= limit:
            return result
        output = _json(output, indent=2)
    if len(output) <= limit:
        return result
    text, facts = shorten(output, limit)
    return result.model_copy(update={"output": text, "metadata": result.metadata | facts})


def shorten(text: str, limit: int) -> tuple[str, dict[str, Any]]:
    """Keep head (40 %) and tail of `text` within `limit` characters, marker included; return it and what was cut.

    Cuts move to the end of a line that lies within 10 % of the limit. A limit too small for the marker gives the marker.
    """
    total, lines = len(text), text.count("\n") + 1
    budget = max(0, limit - len(_marker(total, lines)) - 2)
    head, tail = budget * 2 // 5, total - (budget - budget * 2 // 5)
    slack = limit // 10
    if (line_end := text.rfind("\n", max(0, head - slack), head)) >= 0:
        head = line_end
    if (line_end := text.find("\n", tail, tail + slack)) >= 0:
        tail = line_end + 1
    omitted = text[head:tail]
    omitted_lines = omitted.count("\n") + 1 - omitted.startswith("\n") - omitted.endswith("\n")
    parts = (text[:head], _marker(len(omitted), omitted_lines), text[tail:])
    shown = text[:head].count("\n") + text[tail:].count("\n") + bool(head) + bool(total - tail)
    facts = {"truncated": True, "total_chars": total, "total_lines": lines, "shown_lines": shown}
    return "\n".join(part for part in parts if part), facts


def _marker(characters: int, lines: int) -> str:
    return f"[... {characters:,} characters ({lines:,} lines) omitted ...]"


def _json(output: Any, indent: int | None = None) -> str:
    for render in (partial(json.dumps, indent=indent, ensure_ascii=False, default=str), repr):
        try:
            return render(output)
        except Exception:  # noqa: BLE001, S112 the methods of foreign objects may raise anything
            continue
    return brief(output)
