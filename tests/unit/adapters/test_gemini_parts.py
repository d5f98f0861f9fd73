"""However a reply is cut into pieces, together they are the whole."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.adapters.gemini import Part, add_part, sendable

LEAVES = st.one_of(st.text(), st.integers(-(2**40), 2**40), st.floats(-1e6, 1e6), st.booleans(), st.none())
NAMES = st.text(min_size=1)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(NAMES, inner, min_size=1, max_size=3),
    max_leaves=8,
)
"""What pieces can say: they name leaves, so nothing of an empty object or array."""


def pieces(path: str, value: Any) -> Iterator[dict[str, Any]]:
    """The partial arguments that stream a value."""
    if isinstance(value, dict):
        for name, member in value.items():
            quoted = name.replace("\\", "\\\\").replace("'", "\\'")
            yield from pieces(f"{path}['{quoted}']", member)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from pieces(f"{path}[{index}]", item)
    elif isinstance(value, str):
        yield {"json_path": path, "string_value": value[: len(value) // 2], "will_continue": True}
        yield {"json_path": path, "string_value": value[len(value) // 2 :]}
    elif isinstance(value, bool) or value is None:
        yield {"json_path": path, **({"null_value": "NULL_VALUE"} if value is None else {"bool_value": value})}
    else:
        yield {"json_path": path, "number_value": float(value)}


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), st.integers(1, 4))
def test_arguments_in_pieces_are_the_arguments(arguments: dict[str, Any], at_once: int) -> None:
    parts: list[Part] = []
    streamed = list(pieces("$", arguments))

    add_part(parts, {"function_call": {"name": "Do", "will_continue": True}, "thought_signature": "c2ln"})
    for start in range(0, len(streamed), at_once):
        more = {"partial_args": streamed[start : start + at_once], "will_continue": True}
        add_part(parts, {"function_call": copy.deepcopy(more)})
    add_part(parts, {"function_call": {}})

    assert sendable(parts) == [{"function_call": {"name": "Do", "args": arguments}, "thought_signature": "c2ln"}]


TEXTS = st.builds(
    lambda text, thought, signed: {
        "text": text,
        **({"thought": True} if thought else {}),
        **({"thought_signature": "c2ln"} if signed else {}),
    },
    st.text(max_size=5),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(TEXTS))
def test_text_is_joined_where_nothing_is_lost_by_it(chunks: list[Part]) -> None:
    parts: list[Part] = []

    for chunk in chunks:
        add_part(parts, dict(chunk))

    kept = sendable(parts)
    for is_thought in (False, True):
        said = ["".join(p["text"] for p in some if bool(p.get("thought")) is is_thought) for some in (chunks, kept)]
        assert said[0] == said[1]
    assert [p for p in kept if "thought_signature" in p] == [p for p in chunks if "thought_signature" in p]
    assert all(p["text"] or "thought_signature" in p for p in kept)


def test_parts_of_nothing_and_pieces_of_no_call_leave_nothing_behind() -> None:
    parts: list[Part] = []

    for part in (
        {},
        {"thought": True},
        {"function_call": {}},
        {"text": "Hm."},
        {"thought": True},
        {"function_call": {}},
    ):
        add_part(parts, part)

    assert sendable(parts) == [{"text": "Hm."}]


@pytest.mark.parametrize("between", [{"text": "Hm.", "thought": True}, {"text": "", "thought_signature": "c2ln"}])
def test_no_piece_of_a_call_is_lost_behind_a_part_of_another_kind(between: Part) -> None:
    parts: list[Part] = []
    pieces = [{"json_path": "$.path", "string_value": "/tmp/"}], [{"json_path": "$.path", "string_value": "x"}]

    add_part(parts, {"function_call": {"name": "Delete", "partial_args": pieces[0], "will_continue": True}})
    add_part(parts, between)
    add_part(parts, {"function_call": {"partial_args": pieces[1]}})

    assert parts == [{"function_call": {"name": "Delete", "args": {"path": "/tmp/x"}}}, between]


def test_an_end_that_comes_twice_makes_no_second_call() -> None:
    parts: list[Part] = []

    for call in ({"name": "Do", "id": "1"}, {"will_continue": False}, {}):
        add_part(parts, {"function_call": call})

    assert sendable(parts) == [{"function_call": {"name": "Do", "id": "1"}}]
