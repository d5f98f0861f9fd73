"""Lines are found wherever the chunks of a file end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.tools.file.text import (
    MAX_LINE_CHARS,
    Count,
    Line,
    lines_from,
    plain_lines,
    tail_start,
)

PIECES = st.lists(st.sampled_from(["a", "é", "€", "😀", "\n", "\r\n", "\r", "\u2028", "\x85", "x" * 50]), max_size=60)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def expected(text: str) -> list[str]:
    lines = text.split("\n")
    ends = [line.removesuffix("\r") for line in lines[:-1]]
    return ends + ([lines[-1]] if lines[-1] else [])


@given(PIECES, st.integers(1, 7), st.integers(1, 12))
def test_lines_are_the_same_wherever_chunks_end(pieces: list[str], size: int, first: int) -> None:
    text = "".join(pieces)
    found = [line.text for line in lines_from(cut(text.encode(), size), first)]
    assert found == expected(text)[first - 1 :]


@given(PIECES, st.integers(1, 7))
def test_counts_are_the_same_wherever_chunks_end(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    count = Count()
    for chunk in cut(text.encode(), size):
        count.add(chunk)
    assert (count.lines, count.chars, count.crlf) == (len(expected(text)), len(text), text.count("\r\n"))


@given(PIECES, st.integers(1, 9), st.integers(1, 8))
def test_the_tail_is_found_from_behind(pieces: list[str], size: int, count: int) -> None:
    text = "x\n" + "".join(pieces)
    data = text.encode()
    start = tail_start(lambda position, length: data[position : position + length], 0, len(data), count, size)
    found = [line.text for line in lines_from([data[start:]], 1)]
    assert found == expected(text)[-count:]


@given(st.integers(1, 6), st.integers(0, 5000))
def test_a_long_line_can_be_paged_by_column(size: int, column: int) -> None:
    text = "".join(chr(0x61 + n % 26) + "é€😀"[n % 3] for n in range(2500))
    line = next(lines_from(cut(text.encode() + b"\nrest", size * 1000), 1, column))
    assert line == Line(text[column : column + MAX_LINE_CHARS], column, max(0, len(text) - column - MAX_LINE_CHARS))


def test_a_column_past_the_end_of_its_line_is_seen_in_its_start() -> None:
    assert next(lines_from([b"abc\ndef"], 1, 9)) == Line("", 3, 0)


@pytest.mark.parametrize(
    ("data", "eol"), [(b"a", None), (b"a\nb", "lf"), (b"a\r\nb\r\n", "crlf"), (b"a\r\nb\n", "mixed"), (b"a\rb", None)]
)
def test_the_line_ends_of_a_file_have_a_name(data: bytes, eol: str | None) -> None:
    count = Count()
    count.add(data)
    assert count.eol == eol


@given(st.text(alphabet="ab \t\r\nç\x07\x85\u2028", max_size=60), st.integers(1, 8), st.integers(1, 8))
def test_plain_lines_are_those_that_the_slow_way_gives(text: str, first: int, count: int) -> None:
    utf8 = text.encode()
    slow = [line.text for line in lines_from([utf8], first)]

    lines, has_more = plain_lines(utf8, first, count)

    assert lines in ([], slow[:count])
    assert not has_more or len(slow) > count
    if lines:
        assert has_more == (len(slow) > count)
