"""The text of a command: cleaned, and cut in the middle with exact counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.sandbox.processes.output import HeadTail, TerminalText
from forge_tools.secrets.scrubber import CONCEALED, Scrubber


def shown(*chunks: bytes, limit: int = 100_000) -> str:
    kept = HeadTail(limit)
    terminal = TerminalText(kept.add)
    for chunk in chunks:
        terminal.feed(chunk)
    terminal.finish()
    return kept.show(limit)[0]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m\n", "red\n"),
        (b"\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\n", "xlink\n"),
        (b"\x1b]0;no title\nlost\x07\n", "\\x1b]0;no title\nlost\\x07\n"),
        (b"\x1b(Bx\x1b7\x1b[6n\x1bMy", "xy"),
        (b"10%\r50%\r100%\n", "100%\n"),
        (b"10%\r100%\r\n", "100%\n"),
        (b"10%\r", "10%"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"bell\x07 nul\x00 del\x7f\n", "bell\\x07 nul\\x00 del\\x7f\n"),
        (b"caf\xe9 \xff\n", "caf\ufffd \ufffd\n"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"tab\tand\nline", "tab\tand\nline"),
        (b"\x1b", "\\x1b"),
    ],
)
def test_the_text_is_what_a_person_would_be_left_with(written: bytes, text: str) -> None:
    assert shown(written) == text


@given(
    st.lists(
        st.sampled_from([b"a\xe2\x82\xacb", b"\r", b"\n", b"\r\n", b"\x1b[31m", b"\xff", b"50%\r", b"\0", b"end"])
    ),
    st.integers(1, 7),
)
def test_it_does_not_matter_where_the_pipe_cuts(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    assert shown(*(whole[i : i + size] for i in range(0, len(whole), size))) == shown(whole)


@given(
    st.lists(st.sampled_from([b"s3cr\xc3\xa9t", b"s3cr\xc3\xa9t-longer", b"s3", b"a", b"\xc3", b"\n", b"\r"])),
    st.integers(1, 7),
)
def test_no_secret_is_in_it_wherever_the_pipe_cuts(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    plain, token = shown(whole), CONCEALED.set(Scrubber(["s3crét", "s3crét-longer"]))
    try:
        text = shown(*(whole[i : i + size] for i in range(0, len(whole), size)))
    finally:
        CONCEALED.reset(token)
    assert text == plain.replace("s3crét-longer", "[redacted]").replace("s3crét", "[redacted]")


def test_an_unfinished_line_in_colours_hides_no_secret() -> None:
    token = CONCEALED.set(Scrubber(["s3cret-key"]))
    try:
        text = shown(b"x" * 9000 + b"s3cr\x1b[1m", b"et-\x1b[0mkey" + b"x" * 9000)
    finally:
        CONCEALED.reset(token)
    assert text == "x" * 9000 + "[redacted]" + "x" * 9000


@pytest.mark.parametrize(
    "secret", ["user-me\r\npass-me", "user-me\rpass-me", "\x1b[1muser-me", "us\0er-me", "user\nme"]
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_secret_that_a_terminal_shows_otherwise_is_hidden_as_well(secret: str, line_end: str) -> None:
    token = CONCEALED.set(Scrubber([secret]))
    try:
        text = shown(f"is: {secret.replace(chr(10), line_end)}{line_end}".encode())
    finally:
        CONCEALED.reset(token)
    assert text in ("is: [redacted]\n", "[redacted]\n")


def test_a_line_of_100_mb_is_kept_within_the_limit() -> None:
    kept = HeadTail(1000)
    terminal = TerminalText(kept.add)
    for _ in range(400):
        terminal.feed(b"x" * 250_000)
    terminal.finish()
    text, facts = kept.show(1000)
    assert (kept.chars, facts["total_lines"], facts["truncated"], len(text) <= 1000) == (100_000_000, 1, True, True)


def test_head_and_tail_are_kept_and_the_middle_is_counted() -> None:
    text = shown(*(b"line %d\n" % number for number in range(1000)), limit=300)
    head, marker, tail = text.partition("[... ")[0], text.partition("[... ")[2], text.rpartition("...]\n")[2]
    assert head.startswith("line 0\nline 1\n")
    assert tail.endswith("line 998\nline 999\n")
    omitted = 1000 - head.count("\n") - tail.count("\n")
    assert f"({omitted:,} lines) omitted" in marker


@pytest.mark.parametrize("limit", [0, 1, 64, 110, 111, 200, 999, 1000, 1001])
@pytest.mark.parametrize("size", [0, 1, 63, 998, 999, 1000, 1001, 5000])
def test_the_marker_is_there_exactly_when_something_is_missing(limit: int, size: int) -> None:
    kept = HeadTail(limit)
    kept.add("x" * size)
    text, facts = kept.show(limit)
    is_cut = facts["truncated"]
    assert is_cut == (size > limit) == ("omitted" in text)
    assert len(text) <= max(limit, 110)
    if not is_cut:
        assert text == "x" * size
