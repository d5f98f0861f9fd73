"""Tools of servers: their names here, and answers as results."""

import base64
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, ToolAnnotations

from forge_tools.mcp.hosted.servers import capabilities_of, result_of, tool_name
from forge_tools.model.content import holds_parts
from forge_tools.tool.base import Capabilities, ExecutionContext, ToolResult
from forge_tools.tool.content import with_parts
from tests.part_tools import png

PNG = base64.b64encode(png()).decode()
WAV = base64.b64encode(b"RIFF\4\0\0\0WAVE").decode()
CONTEXT = ExecutionContext(working_dir=".")


async def mapped(*content: dict[str, Any], **fields: Any) -> ToolResult:
    return result_of(CallToolResult.model_validate({"content": content, **fields}))


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


async def test_texts_are_joined_and_made_storable() -> None:
    assert (await mapped(text("a\0"), text("b"))).output == "a\\x00\nb"


async def test_structured_content_is_the_output_where_there_is_no_text() -> None:
    assert (await mapped(structuredContent={"n": 1})).output == {"n": 1}
    assert (await mapped(text("one"), structuredContent={"n": 1})).metadata == {"structured": {"n": 1}}


async def test_much_structured_content_beside_a_text_is_left_out() -> None:
    result = await mapped(text("many"), structuredContent={"n": "x" * 200_000})

    assert result.metadata == {"structured_omitted_chars": 200_009}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"content": [text("out of paper")]}, "out of paper"),
        ({"content": [], "structuredContent": {"code": 3}}, '{"code": 3}'),
        ({"content": []}, "The server reported a failure without a reason."),
    ],
)
async def test_a_failure_says_why(fields: dict[str, Any], error: str) -> None:
    result = result_of(CallToolResult.model_validate({**fields, "isError": True}))

    assert (result.success, result.error, result.error_code) == (False, error, "MCP_TOOL_ERROR")


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "image", "mimeType": "image/png", "data": PNG}, "[image image.png, 75 bytes, image/png]"),
        ({"type": "audio", "mimeType": "audio/wav", "data": WAV}, "[audio audio.wav, 12 bytes, audio/wav]"),
        ({"type": "image", "mimeType": "image/png", "data": "?"}, "[image: its data is not base64]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[link a, file:///a]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "t"}}, "[resource file:///a]\nt"),
        (
            {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "AAAA"}},
            "[file a.bin, 3 bytes, application/octet-stream]",
        ),
    ],
)
async def test_other_content_passes_through_whole(block: dict[str, Any], shown: str) -> None:
    answer = await mapped(text("Look:"), block)

    result = await with_parts(answer, CONTEXT, (), 5.0) if holds_parts(answer.output) else answer

    assert result.output == f"Look:\n{shown}"
    data = block.get("data") or block.get("resource", {}).get("blob")
    if data not in {None, "?"}:
        assert await (result.images or result.files)[0].bytes() == base64.b64decode(data)


async def test_a_failure_keeps_the_picture_beside_its_reason() -> None:
    answer = await mapped(text("Not found"), {"type": "image", "mimeType": "image/png", "data": PNG}, isError=True)

    result = await with_parts(answer, CONTEXT, (), 5.0)

    assert (result.success, result.error, len(result.images)) == (False, "Not found", 1)


@pytest.mark.parametrize(
    ("hints", "can"),
    [
        (None, {"writes_files": True, "executes_commands": True, "accesses_network": True}),
        ({"readOnlyHint": True}, {"accesses_network": True, "idempotent": True}),
        ({"readOnlyHint": True, "openWorldHint": False}, {"idempotent": True}),
        ({"destructiveHint": False, "openWorldHint": False}, {"writes_files": True}),
        (
            {"idempotentHint": True, "openWorldHint": False},
            {"writes_files": True, "executes_commands": True, "idempotent": True},
        ),
    ],
)
def test_hints_become_capabilities(hints: Any, can: dict[str, bool]) -> None:
    said = None if hints is None else ToolAnnotations.model_validate(hints)

    assert capabilities_of(said) == Capabilities(**can)


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
