"""What is written to a broker is read again, and nothing else is."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.dispatch.message import MAX_BYTES, MalformedMessageError, body, envelope, read_body, read_envelope
from forge_tools.records import Ring, new_id

ID = new_id()
Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["body", "headers"]), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("count", [1, 16, 128])
def test_what_is_written_is_read_again(count: int) -> None:
    rings = [Ring(new_id(), attempt) for attempt in range(count)]

    assert read_body(body(rings)) == rings
    assert read_envelope(envelope(rings, "forge.default.async", 0).encode()) == rings


def as_body(rings: Any) -> bytes:
    return json.dumps([[rings], {}, {}]).encode()


@pytest.mark.parametrize(
    "rings",
    [
        *([], None, "text", {"a": 0}, 7, [[ID]], [[ID, "0"]], [[ID, True]], [[ID, 1.0]], [[ID, -1]], [[ID, 2**31]]),
        *([["not-an-id", 0]], [[ID.upper(), 0]], [[f"{ID}\n", 0]], [[1, 2]], [{"a": 0}], [None], ["ab"]),
        [[ID, 0], [ID, 0, 0]],
        [[ID, 0]] * 129,
    ],
)
def test_only_a_bounded_list_of_ids_with_attempts_is_a_message(rings: Any) -> None:
    with pytest.raises(MalformedMessageError):
        read_body(as_body(rings))


@given(st.binary(max_size=300) | st.binary(max_size=40).map(base64.b64encode) | Json.map(json.dumps).map(str.encode))
def test_whatever_bytes_there_are_nothing_else_is_raised(text: bytes) -> None:
    for read in (read_body, read_envelope):
        with pytest.raises(MalformedMessageError):
            read(text)


@pytest.mark.parametrize("text", [b"[" * MAX_BYTES, b"1" * MAX_BYTES, b" " * MAX_BYTES + as_body([[ID, 0]])])
def test_what_is_long_or_deep_is_dropped(text: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        read_body(text)
