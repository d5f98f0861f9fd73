"""Secrets in a stream that is written down as it comes."""

import random
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge_tools.model import secret_names
from forge_tools.sandbox.processes.streams import REDACTED, StreamScrubber
from forge_tools.secrets.readings import MOST_UNSEEN

FORMS = (b"hunter2secret", b"hunter2", b"aab", b"ba")
SHORT = st.binary(min_size=1, max_size=6).map(lambda data: bytes(b"abc"[byte % 3] for byte in data))


def written(data: bytes, cuts: list[int], forms: tuple[bytes, ...] = FORMS) -> bytes:
    stream, parts, at = StreamScrubber(forms), list[bytes](), 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        parts.append(stream.feed(data[at:cut]))
        at = cut
    return b"".join([*parts, stream.rest()])


def whole(data: bytes, forms: tuple[bytes, ...] = FORMS) -> bytes:
    longest_first = sorted(forms, key=len, reverse=True)
    return re.sub(b"|".join(longest_first), REDACTED, data)


@given(st.lists(st.sampled_from([*FORMS, b"a", b"b", b"hunter", b"x\n", b"\0"])), st.lists(st.integers(0, 200)))
def test_however_it_is_cut_it_is_written_as_if_it_came_at_once(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    assert written(data, cuts) == whole(data)


@given(st.lists(SHORT, min_size=1, max_size=4).map(tuple), st.lists(SHORT).map(b"".join), st.lists(st.integers(0, 99)))
def test_secrets_that_overlap_are_written_as_if_they_came_at_once(
    forms: tuple[bytes, ...], data: bytes, cuts: list[int]
) -> None:
    assert written(data, cuts, forms) == whole(data, forms)


def test_a_secret_inside_what_began_another_is_withheld_though_that_is_not_finished() -> None:
    stream = StreamScrubber([b"first-and", b"and-second-third", b"second"])
    assert stream.feed(b"first-and-second-") == b"[redacted]-[redacted]-"


def test_very_many_secrets_hold_up_no_line_of_output() -> None:
    draw = random.Random(7)
    stream, line = StreamScrubber([draw.randbytes(draw.randrange(8, 5000)) for _ in range(1000)]), draw.randbytes(4000)
    started = time.process_time()
    for _ in range(20):
        stream.feed(line)
    assert time.process_time() - started < 2.0


def test_what_can_be_no_secret_is_written_at_once() -> None:
    stream = StreamScrubber([b"hunter2"])
    assert stream.feed(b"password: ") == b"password: "
    assert (stream.feed(b"hunt"), stream.feed(b"ing\n")) == (b"", b"hunting\n")
    assert (stream.feed(b"my hunter2"), stream.rest()) == (b"my [redacted]", b"")
    assert (stream.feed(b"the end, hun"), stream.rest()) == (b"the end, ", b"hun")


def test_an_escape_that_nobody_finishes_holds_up_no_more_than_its_line() -> None:
    stream = StreamScrubber([b"hunter2"])
    assert (stream.feed(b"a\x1b]0;ti"), stream.feed(b"tle")) == (b"a", b"")
    assert stream.feed(b"\npassword: ") == b"\x1b]0;title\npassword: "
    assert stream.feed(b"\x1b]" + b"x" * MOST_UNSEEN).endswith(b"x")


def test_escapes_without_end_after_the_beginning_of_a_secret_are_held_back_up_to_a_limit() -> None:
    stream, escapes = StreamScrubber([b"hunter2"]), b"\x1b[1m" * 500
    assert (stream.feed(b"hun"), stream.feed(escapes)) == (b"", b"")
    assert stream.feed(escapes * 2) == b"hun" + escapes * 3
    assert stream.feed(b"ter2") == b"ter2"


def test_the_longer_of_two_that_begin_alike_is_waited_for() -> None:
    stream = StreamScrubber(FORMS)
    assert (stream.feed(b"hunter2"), stream.feed(b"secret!")) == (b"", b"[redacted]!")
    assert (stream.feed(b"hunter2"), stream.rest()) == (b"", b"[redacted]")


@pytest.mark.parametrize("forms", [(), (b"",)])
def test_without_secrets_nothing_is_held_or_copied(forms: tuple[bytes, ...]) -> None:
    stream, data = StreamScrubber(forms), random.Random(7).randbytes(1000)
    assert stream.feed(data) is data
    assert stream.rest() == b""


def test_it_shows_what_everything_else_shows() -> None:
    assert REDACTED.decode() == secret_names.REDACTED


def shown(data: bytes) -> bytes:
    """What a terminal shows of it, in the simplest of ways."""
    return re.sub(rb"\r*\n", b"\n", re.sub(rb"\x1b\[[0-9;]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)", b"", data))


SEEN = (b"mother7", b"1;mk", b"K\nhunter2", b"hunter2", b"hunter2secret")
PIECES = [b"hun", b"ter2", b"sec", b"ret", b"mother", b"7", b"K", b"1;", b"mk", b"\n", b"\r\n", b"\r", b"x"]
ESCAPES = [b"\x1b[1m", b"\x1b[K", b"\x1b]0;hun\x07", b"\x1b]8;;u\x1b\\", b"\x1b", b"\x1b["]


@given(st.lists(st.sampled_from([*PIECES, *ESCAPES])), st.lists(st.integers(0, 200)))
@example([b"\n", b"K", b"hun", b"ter2"], [1])  # a secret of two lines, whose line end somebody has taken out
@example([b"\x1b", b"mother", b"\x1b[K", b"7"], [3])  # the secret begins within an escape
@example([b"hun", b"\x1b]8;;u\x1b\\", b"ter2"], [11])  # an escape whose end, a backslash, is where it is cut
def test_with_escapes_too_it_does_not_matter_how_it_is_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    assert written(data, cuts, SEEN) == written(data, [], SEEN)


@given(st.lists(st.sampled_from([*PIECES, *ESCAPES[:4]])), st.lists(st.integers(0, 200)))
def test_neither_what_is_written_nor_what_a_terminal_shows_of_it_has_a_secret(
    parts: list[bytes], cuts: list[int]
) -> None:
    clean = written(b"".join(parts), cuts, SEEN)
    assert not [form for form in SEEN if form in clean or form in shown(clean)]


@given(st.lists(st.sampled_from([*PIECES, *ESCAPES])), st.lists(st.integers(0, 200)))
def test_what_is_not_secret_is_written_as_it_came(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    assert written(data, cuts, (b"hunter3", b"mother8\nx")) == data
