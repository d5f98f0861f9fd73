"""What a terminal obeys and does not show. The standard library alone: supervisors of shells load little."""

import re

# No two alternatives match the same, so that there is nothing to try twice. (Possessive quantifiers lose matches before 3.11.5.)
_ESCAPE = (
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # strings of one line: titles, links
    r"|[ -/]+[0-~]"  # character sets
    r"|[PX](?![^\x07\x1b\n]*(?:\x07|\x1b\\))|[0-OQ-WYZ\\`-~]"  # single functions, and strings without an end
    r")"
)
_UNFINISHED = r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)"

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""A character that says something to a terminal, or nothing at all."""

_ESCAPES = re.compile(_ESCAPE)
_RUN = re.compile(rf"(?:{_ESCAPE}|\r)+".encode())
_ESCAPES_IN_RUN = re.compile(_ESCAPE.encode())
_UNDECIDED = re.compile(rf"(?:(?<!\r)\r(?:{_ESCAPE}|\r)*(?:{_UNFINISHED})?|{_UNFINISHED})\Z".encode())


def plain(text: str) -> str:
    """Turn whole lines of a terminal's output into what a person would be left with."""
    if not CONTROL.search(text):
        return text
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def unseen(data: bytes) -> list[tuple[int, int]]:
    """Say from where to where there are escapes, and carriage returns where a line begins or ends."""
    spans = [run.span() for run in _RUN.finditer(data)]
    return spans if b"\r" not in data else [span for run in spans for span in _unseen_in_run(data, *run)]


def undecided(data: bytes) -> int:
    """Say from where on only what follows tells whether it is an escape, or the end of a line."""
    match = _UNDECIDED.search(data)
    return len(data) if match is None else match.start()


def _unseen_in_run(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    is_at_an_edge = b"\n" in (data[end : end + 1], data[start - 1 : start])
    if is_at_an_edge or data.find(b"\r", start, end) < 0:
        return [(start, end)]
    return [escape.span() for escape in _ESCAPES_IN_RUN.finditer(data, start, end)]
