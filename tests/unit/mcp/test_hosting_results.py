"""Answers of servers, as results."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.types import CallToolResult, ToolAnnotations

from forge_tools.base import Capabilities, ExecutionContext, ToolResult
from forge_tools.mcp.hosting.results import result_of
from forge_tools.mcp.hosting.tools import capabilities_of
from forge_tools.records import Artifact
from forge_tools.sandbox.reach import REACH, Reach

CONTEXT = ExecutionContext(working_dir=".")


async def mapped(*content: dict[str, Any], **fields: Any) -> ToolResult:
    return await result_of(CallToolResult.model_validate({"content": content, **fields}), CONTEXT)


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
        ({"content": []}, "The server says that it failed, and not why."),
    ],
)
async def test_a_failure_says_why(fields: dict[str, Any], error: str) -> None:
    result = await result_of(CallToolResult.model_validate({**fields, "isError": True}), CONTEXT)

    assert (result.success, result.error, result.error_code) == (False, error, "MCP_TOOL_ERROR")


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "image", "mimeType": "image/png", "data": "AAAA"}, "[image (image/png), 3 bytes]"),
        ({"type": "audio", "mimeType": "audio/wav", "data": "AAAA"}, "[audio (audio/wav), 3 bytes]"),
        ({"type": "image", "mimeType": "image/png", "data": "?"}, "[image (image/png): its data are no base64]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[resource a: file:///a]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "t"}}, "[resource file:///a]\nt"),
        ({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}, "[resource file:///a, 3 bytes]"),
    ],
)
async def test_other_content_is_described(block: dict[str, Any], shown: str) -> None:
    result = await mapped(text("Look:"), block)

    assert result.output == f"Look:\n{shown}"
    assert result.metadata["content"][0]["type"] == block["type"]


class Shelf:
    """Artifacts that are only counted."""

    max_bytes = 1000

    async def put(self, chunks: AsyncIterator[bytes], context: ExecutionContext) -> Artifact:
        size = len(b"".join([chunk async for chunk in chunks]))
        return Artifact(id=f"of-{size}", size=size)

    async def open(self, handle: str, context: ExecutionContext) -> int:
        raise NotImplementedError


async def test_pictures_are_kept_where_artifacts_are() -> None:
    token = REACH.set(Reach(artifacts=Shelf()))
    try:
        result = await mapped({"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"12345").decode()})
    finally:
        REACH.reset(token)

    handle = result.metadata["content"][0]["artifact"]
    assert result.output == f"[image (image/png), 5 bytes: {handle}]"
    assert handle.endswith("of-5")


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
