"""A byte stream in lines, and the id of a message that is too long for one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.mcp.lines import Lines, LongLine


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 7))
def test_lines_are_the_same_however_they_arrive(written: list[bytes], size: int) -> None:
    written = [line.replace(b"\n", b"") for line in written]
    text = b"".join(line + b"\n" for line in written)
    lines = Lines(1000)

    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]

    assert found == written


def test_of_a_long_line_the_beginning_is_kept_and_the_rest_is_counted() -> None:
    lines = Lines(10_000)
    for _ in range(100):
        assert lines.feed(b"a" * 10_000) == []

    assert lines.feed(b"the end\nnext\n") == [LongLine(b"a" * 1000, None, 1_000_007), b"next"]


def test_a_line_at_the_limit_is_whole() -> None:
    assert Lines(5_000).feed(b"a" * 5_000 + b"\n") == [b"a" * 5_000]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('a"\\{}[]:,\nid'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "a", '"id":']), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([7, "seven", 'a"\\b', "", None, True, 1.5]), st.booleans(), st.integers(1, 9))
def test_the_id_of_a_long_message_is_that_of_its_outermost_object(
    params: Any, id_: Any, is_first: bool, size: int
) -> None:
    message = {"id": id_, "params": params} if is_first else {"params": params, "method": "x", "id": id_}
    text = json.dumps(message).encode() + b"\n"
    lines = Lines(3)

    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]

    known = id_ if isinstance(id_, str | int) and id_ is not True else None
    assert [(line.id, line.size) for line in found if isinstance(line, LongLine)] == [(known, len(text) - 1)]


@pytest.mark.parametrize(
    "text", [b'[{"id": 1}]', b'{"params": {"id": 1}}', b'{"id": 1', b'{"id": 1}}', b'"id": 1', b"[" * 99]
)
def test_what_is_not_a_message_has_no_id(text: bytes) -> None:
    assert Lines(3).feed(text + b"\n") == [LongLine(text, None, len(text))]
