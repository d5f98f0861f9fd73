"""Names of the tools of servers."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.mcp.hosting.naming import tool_name


def test_a_plain_name_is_the_one_that_other_clients_use() -> None:
    assert tool_name("github", "create_issue") == "mcp__github__create_issue"


@pytest.mark.parametrize("tool", ["read.file", "größe", "a b", "x" * 200])
def test_a_name_that_had_to_be_changed_carries_a_hash(tool: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool_name("files", tool))
    assert re.search(r"_[0-9a-f]{8}(_|$)", tool_name("files", tool))


def test_what_would_be_one_name_is_two() -> None:
    pairs = [("a", "_b"), ("a_", "b"), ("a__b", "c"), ("a", "b__c"), ("a", "b.c"), ("a", "b/c"), ("a", "b_c")]

    assert len({tool_name(*pair) for pair in pairs}) == len(pairs)


def test_long_names_that_share_their_beginning_keep_their_ends() -> None:
    first, second = (tool_name("server", "x" * 60 + end) for end in ("_read", "_write"))

    assert (first[-5:], second[-6:]) == ("_read", "_write")
    assert first.startswith("mcp__server__xxx")


def test_a_name_never_changes() -> None:
    assert tool_name("s", "a.b") == "mcp__s__a_b_407e8e5c"


@given(st.text(max_size=90), st.text(max_size=90))
def test_every_pair_has_a_name_that_providers_take(server: str, tool: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool_name(server, tool))


def test_short_pairs_never_meet() -> None:
    words = ["".join(letters) for size in (1, 2, 3) for letters in product("a_.", repeat=size)]
    names = [tool_name(server, tool) for server, tool in product(words, words)]

    assert len(set(names)) == len(names)
