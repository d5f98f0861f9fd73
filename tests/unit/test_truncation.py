"""Outputs are cut to their limit, whole lines where that costs little, and the cut says what is missing."""

import pytest

from forge_tools.truncation import shorten


@pytest.mark.parametrize("limit", [*range(70), 100, 1000, 5000])
def test_the_cut_text_keeps_to_the_limit_once_the_marker_fits(limit: int) -> None:
    text = "\n".join(f"line {number}: é漢\U0001f600" for number in range(2000))

    cut, facts = shorten(text, limit)

    marker = cut[cut.index("[...") : cut.index("...]") + 4]
    assert len(cut) <= max(limit, len(marker))
    head, tail = cut.split(marker)
    assert text.startswith(head.rstrip("\n"))
    assert text.endswith(tail.lstrip("\n"))
    assert (facts["truncated"], facts["total_chars"], facts["total_lines"]) == (True, len(text), 2000)


def test_cuts_prefer_whole_lines_and_say_what_is_missing() -> None:
    text = "\n".join(f"{number:04}" for number in range(1000))

    cut, facts = shorten(text, 500)

    lines = cut.split("\n")
    marker = next(line for line in lines if line.startswith("["))
    shown = [line for line in lines if line != marker]
    assert all(len(line) == 4 for line in shown)
    assert facts["shown_lines"] == len(shown)
    assert marker == f"[... {4999 - len(shown) * 5 + 2:,} characters ({1000 - len(shown):,} lines) omitted ...]"
    assert 1.2 < (len(shown) - lines.index(marker)) / lines.index(marker) < 1.8


def test_one_endless_line_is_cut_inside() -> None:
    cut, facts = shorten("ab" * 50_000, 1000)

    assert 950 <= len(cut) <= 1000
    assert cut.startswith("abab")
    assert cut.endswith("abab")
    assert facts == {"truncated": True, "total_chars": 100_000, "total_lines": 1, "shown_lines": 2}
