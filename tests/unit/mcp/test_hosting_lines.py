"""What servers write, in lines."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.mcp.hosting import lines as module
from forge_tools.mcp.hosting.lines import Lines, LongLine, Voice, shortened


def heard(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "line", record.msg) for record in caplog.records]


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 7))
def test_lines_are_the_same_however_they_arrive(written: list[bytes], size: int) -> None:
    written = [line.replace(b"\n", b"") for line in written]
    text = b"".join(line + b"\n" for line in written)
    lines = Lines(1000)

    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]

    assert found == written


def test_of_a_long_line_the_ends_are_kept_and_the_rest_is_counted() -> None:
    lines = Lines(10_000)
    for _ in range(100):
        assert lines.feed(b"a" * 10_000) == []

    (long, short) = lines.feed(b"the end\nnext\n")

    assert isinstance(long, LongLine)
    assert (long.head, long.tail[-8:], long.size) == (b"a" * 1000, b"athe end", 1_000_007)
    assert len(long.tail) < 2001
    assert short == b"next"


def test_a_line_at_the_limit_is_whole() -> None:
    assert Lines(5_000).feed(b"a" * 5_000 + b"\n") == [b"a" * 5_000]


def test_what_is_shown_of_a_line_is_short_and_printable() -> None:
    assert shortened(b"  \x1b[31mred\x1b[0m\x07 ") == "red\\x07"
    assert shortened(b"\xff\xfe") == "\ufffd\ufffd"
    assert shortened(b"x" * 3_000) == "x" * 200 + "... (3,000 bytes)"


def test_a_flood_is_told_in_few_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    voice = Voice(logging.getLogger("flood"), logging.WARNING, "Said", "s")

    for number in range(5_000):
        voice.hear(b"%d" % number)
    now += 11
    voice.hear(b"later")

    assert heard(caplog) == [*map(str, range(20)), "An MCP server wrote more lines than are shown", "later"]
    assert voice.last() == "4998 / 4999 / later"


def test_empty_lines_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    Voice(logging.getLogger("silence"), logging.WARNING, "Said", "s").hear(b" \r")

    assert caplog.records == []
