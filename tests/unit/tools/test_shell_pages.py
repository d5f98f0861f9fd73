"""However output is cut into slices, together they are the whole."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge_tools.sandbox.shells.folder import Output
from forge_tools.sandbox.shells.supervisor import Segments
from forge_tools.tools.execution.bash_output import Line, fitting, head_of, read_page
from tests.waiting import within

PARTS = st.lists(
    st.one_of(
        st.sampled_from([b"\n", b"\r\n", b"a\rb", b"\x1b[31m", b"\x1b[0", b"\x1b", b"\x00", b"line\n", "é😀".encode()]),
        st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace")),
        st.binary(max_size=8),
    ),
    max_size=30,
)


PRINTABLE = st.characters(codec="utf-8", exclude_categories=["Cc"])


@contextlib.contextmanager
def spooled(data: bytes) -> Iterator[Output]:
    with tempfile.TemporaryDirectory() as path:
        folder = os.open(path, os.O_RDONLY)
        written = Segments(folder, 1 << 20)
        written.write(data)
        written.close()
        yield Output(folder)
        os.close(folder)


@example(parts=[b"\x1bX\xc2\x800\xf0\x90\x80\x80"], limit=8, room=0)  # an unfinished escape longer than the page
@given(parts=PARTS, limit=st.integers(8, 60), room=st.sampled_from([0, 20, 1000]))
def test_slices_follow_one_another_and_are_the_whole(parts: list[bytes], limit: int, room: int) -> None:
    data = b"".join(parts)
    with spooled(data) as output:
        lines: list[Line] = []
        at, has_more = 0, True
        time_left = within(60, "the pages do not end")
        while has_more and next(time_left):
            found = read_page(output, at, limit, len(data), is_over=True, room=room)
            assert found.next > at or not found.has_more
            lines += found.lines
            at, has_more = found.next, found.has_more
        assert at == len(data)
        assert [line.start for line in lines] == [0, *(line.end for line in lines)][: len(lines)]
        assert sum(line.end - line.start for line in lines) == len(data)


@given(
    text=st.text(PRINTABLE, max_size=60),
    cuts=st.lists(st.integers(0, 60)),
)
def test_text_that_comes_in_any_parts_is_never_torn(text: str, cuts: list[int]) -> None:
    data = text.encode()
    shown, at = "", 0
    for end in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
        with spooled(data[:end]) as output:
            found = read_page(output, at, 1 << 16, end, is_over=end == len(data))
            shown += "".join(line.text for line in found.lines)
            at = found.next
    assert (shown, at) == (text, len(data))


@pytest.mark.parametrize("line", ["é" * 50, "x" * 99, "\x1b[31m" * 30 + "red"])
@pytest.mark.parametrize("room", [1, 2, 7])
def test_a_line_may_be_cut_into_parts_that_are_the_whole(line: str, room: int) -> None:
    data = line.encode()
    with spooled(data) as output:
        text, at = "", 0
        time_left = within(60, "the pages do not end")
        while at < len(data) and next(time_left):
            (rest,) = read_page(output, at, 1 << 16, len(data), is_over=True).lines
            part = head_of(rest, output, room)
            assert at < part.end <= rest.end
            text, at = text + part.text, part.end
        if "\x1b" not in line:
            assert text == line


def test_lines_are_counted_as_far_as_there_is_room() -> None:
    lines = [Line(0, 3, "abc"), Line(3, 6, "def"), Line(6, 7, "g")]
    assert [fitting(lines, room) for room in (0, 2, 3, 6, 7)] == [0, 0, 1, 2, 3]
