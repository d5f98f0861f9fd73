"""The difference of two texts as people read it: unified, with line numbers, and never longer than asked for."""

from collections.abc import Callable
from difflib import SequenceMatcher

from forge_tools.tools.file.text import visible

MAX_LINES = 200
_CONTEXT = 3
_MAX_COMPARED = 2000  # lines of each side between the first and the last that differ: the comparison may be quadratic
_MAX_WINDOW = 1 << 20
_MAX_CHARS = 500
_FIRST_STEP, _STEP = 1 << 6, 1 << 16


def unified(old: str, new: str, readable: Callable[[str], str] = str, max_lines: int = MAX_LINES) -> str | None:
    """Render the difference, or None where it is longer than `max_lines`, or too much to compare.

    `readable` turns a line into what people see.
    """
    start, end = _window(old, new)
    if max(len(old), len(new)) - end - start > _MAX_WINDOW:
        return None
    parts = old[start : len(old) - end], new[start : len(new) - end]
    if max(part.count("\n") for part in parts) > _MAX_COMPARED:
        return None
    if all(part.count("\r\n") == part.count("\n") for part in parts):
        parts = parts[0].replace("\r\n", "\n"), parts[1].replace("\r\n", "\n")
    before, after = (_lines(part, is_last=not end) for part in parts)
    first, lines = old.count("\n", 0, start), []
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(_CONTEXT):
        lines.append(_header(first, group))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[i1:i2]]
            else:
                lines += [f"-{line}" for line in before[i1:i2]] + [f"+{line}" for line in after[j1:j2]]
    if len(lines) > max_lines:
        return None
    return "\n".join(_short(visible(readable(line[: 4 * _MAX_CHARS]))) for line in lines)


def line_count(text: str) -> int:
    """How many lines a text has; the last one counts with or without its end."""
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def _window(old: str, new: str) -> tuple[int, int]:
    """How many characters at the start and at the end are the same in both, but for some lines of context."""
    start = _common(old, new, min(len(old), len(new)))
    end = _common_end(old, new, min(len(old), len(new)) - start)
    for _ in range(_CONTEXT + 1):
        start = old.rfind("\n", 0, max(0, start)) if start > 0 else -1
    start += 1
    position = len(old) - end
    if end and position and old[position - 1] == "\n" == (new[len(new) - end - 1] if len(new) > end else "\n"):
        position -= 1  # what differs ends with its line, so the context begins right after it
    for _ in range(_CONTEXT + 1):
        position = old.find("\n", position) + 1 or len(old)
    return start, min(end, len(old) - position)


def _common(old: str, new: str, most: int) -> int:
    return _first_difference(lambda start, end: old[start:end] == new[start:end], most)


def _common_end(old: str, new: str, most: int) -> int:
    def is_same(start: int, end: int) -> bool:
        return old[len(old) - end : len(old) - start] == new[len(new) - end : len(new) - start]

    return _first_difference(is_same, most)


def _first_difference(is_same: Callable[[int, int], bool], most: int) -> int:
    """Find how many of the first `most` are the same, by asking about pieces: larger ones, then halves of the one that differs."""
    same, step = 0, _FIRST_STEP
    while same < most and is_same(same, min(same + step, most)):
        same = min(same + step, most)
        step = min(2 * step, _STEP)
    end = min(same + step, most)
    while end - same > 1:
        middle = (same + end) // 2
        same, end = (middle, end) if is_same(same, middle) else (same, middle)
    return same


def _lines(text: str, *, is_last: bool) -> list[str]:
    """Split at line ends, and let a missing last one show as a difference."""
    *lines, last = text.split("\n")
    return [*lines, f"{last} [no newline at the end]" if is_last else last] if last else lines


def _header(first: int, group: list[tuple[str, int, int, int, int]]) -> str:
    (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
    return f"@@ -{first + i1 + 1},{i2 - i1} +{first + j1 + 1},{j2 - j1} @@"


def _short(line: str) -> str:
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
