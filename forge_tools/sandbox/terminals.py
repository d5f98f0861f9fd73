"""What a terminal obeys and does not show. The standard library alone: supervisors of shells load little."""

import re

from forge_tools.secrecy.readings import ESCAPE

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""A character that says something to a terminal, or nothing at all."""

_ESCAPES = re.compile(ESCAPE)


def plain(text: str) -> str:
    """Turn whole lines of a terminal's output into what a person would be left with."""
    if not CONTROL.search(text):
        return text
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
