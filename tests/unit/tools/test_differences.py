"""Differences as people read them."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tools.tools.file.write import line_count, unified

texts = st.lists(st.sampled_from(["a", "b", "c", "", "dd"]), max_size=14).map(
    lambda lines: "".join(f"{x}\n" for x in lines)
)


def patched(old: str, diff: str) -> str:
    """Apply a difference, believing its line numbers."""
    lines, done, at = old.split("\n"), [], 0
    for line in diff.split("\n"):
        if header := re.fullmatch(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", line):
            start = int(header[1]) - 1
            done += lines[at:start]
            at = start
        elif line[:1] in ("-", " "):
            assert lines[at] == line[1:]
            at += 1
            done += [line[1:]] if line[0] == " " else []
        elif line:
            done.append(line[1:])
    return "\n".join(done + lines[at:])


@settings(max_examples=60)
@given(st.integers(0, 900), st.integers(0, 900), st.sampled_from([63, 64, 65, 5000]))
def test_wherever_two_long_texts_differ_the_difference_is_found(first: int, last: int, width: int) -> None:
    lines = [f"{number} {'x' * width}" for number in range(901)]
    old = "".join(f"{line}\n" for line in lines)
    lines[first] = lines[first][:-1] + "y"
    lines[last] = "z" + lines[last]
    new = "".join(f"{line}\n" for line in lines)
    diff = unified(old, new)
    if diff is not None and width < 500:  # longer lines are shown in part
        assert patched(old, diff) == new
    elif diff is None:
        assert abs(first - last) * width > 1 << 19


@settings(max_examples=300)
@given(texts, texts)
def test_a_difference_turns_the_old_text_into_the_new_one(old: str, new: str) -> None:
    diff = unified(old, new)
    assert diff is not None
    assert patched(old, diff) == new


def test_a_missing_last_line_end_shows() -> None:
    assert unified("a\nb", "a\nb\n") == "@@ -1,2 +1,2 @@\n a\n-b [no newline at the end]\n+b"


def test_carriage_returns_show_only_where_they_differ() -> None:
    assert unified("a\r\nb\r\n", "a\r\nc\r\n") == "@@ -1,2 +1,2 @@\n a\n-b\n+c"
    assert unified("a\r\nb\n", "a\nb\n") == "@@ -1,2 +1,2 @@\n-a\\r\n+a\n b"


def test_what_is_too_long_to_read_or_to_compare_is_none() -> None:
    assert unified("a\n" * 300, "b\n" * 300) is None
    assert unified("".join(f"{n}\n" for n in range(5000)), "".join(f"x{n}\n" for n in range(5000))) is None


def test_one_change_in_a_large_file_is_found_fast() -> None:
    old = "some line of text\n" * 500_000
    middle = len(old) // 2
    started = time.process_time()
    diff = unified(old, f"{old[:middle]}new {old[middle:]}")
    assert time.process_time() - started < 1
    assert diff
    assert diff.startswith("@@ -249998,7 +249998,7 @@")


@pytest.mark.parametrize(("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n", 1)])
def test_lines_count_with_or_without_their_end(text: str, lines: int) -> None:
    assert line_count(text) == lines
