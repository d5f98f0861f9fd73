"""The tools that the conformance suite calls by name, made as users make theirs."""

import asyncio
import io
import logging
import os
import time
import wave
from typing import Any

from PIL import Image as Pillow

from forge_tools import Audio, BaseTool, ExecutionContext, File, Image, ToolCategory, ToolResult
from forge_tools.tool import tool

PAUSE = 0.6
"""Seconds between two reports of a tool: what is told faster is told together."""

logger = logging.getLogger(__name__)


def png() -> Image:
    buffer = io.BytesIO()
    Pillow.new("RGB", (1, 1), "red").save(buffer, "PNG")
    return Image(buffer.getvalue())


def resource(name: str, text: str) -> File:
    return File(text.encode(), name, "text/plain")


@tool(lane="async")
async def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(lane="async")
async def test_image_content() -> Image:
    """Return a picture."""
    return png()


@tool(lane="async")
async def test_audio_content() -> Audio:
    """Return a sound."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80" * 80)
    return Audio(buffer.getvalue(), "silence.wav", "audio/wav")


@tool(lane="async")
async def test_embedded_resource() -> File:
    """Return a file."""
    return resource("embedded.txt", "This is an embedded resource content.")


@tool(lane="async")
async def test_multiple_content_types() -> list[Any]:
    """Return a text, a picture and a file."""
    return ["Multiple content types test:", png(), resource("mixed.txt", "What comes with a picture.")]


@tool(lane="async")
async def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")


@tool(lane="async")
async def test_tool_with_progress(context: ExecutionContext) -> str:
    """Report how far it is."""
    for done in (0, 50, 100):
        context.progress(done, 100)
        await asyncio.sleep(PAUSE)
    return "done"


@tool(lane="async")
async def test_streaming_elicitation(context: ExecutionContext) -> str:
    """Report something at once: all that our tools ever send besides their result."""
    context.progress(1)
    return "asked nobody"


@tool(lane="async")
async def test_tool_with_logging() -> str:
    """Log three messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        logger.warning(message)
        await asyncio.sleep(PAUSE)
    return "logged"


@tool(lane="async")
async def test_logging_tool() -> str:
    """Log a message."""
    logger.warning("nobody asked for this")
    return "logged"


@tool(lane="async")
async def greet(name: str) -> str:
    """Greet someone by name."""
    return f"Hello, {name}!"


@tool(lane="async")
async def slow_compute(seconds: float, label: str = "") -> str:
    """Take some seconds."""
    await asyncio.sleep(seconds)
    return f"computed {label}"


@tool(lane="async")
async def failing_job() -> str:
    """Fail after a second."""
    await asyncio.sleep(1)
    raise ValueError("This job always fails")


@tool(lane="async")
async def confirm_delete(filename: str) -> str:
    """Delete nothing, after a second and without asking."""
    await asyncio.sleep(1)
    return f"left {filename}"


@tool
def protocol_error_job() -> str:
    """End its process in the middle, so that nobody knows what became of it."""
    time.sleep(1)
    os._exit(1)


REGION: dict[str, Any] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}


class Routed(BaseTool):
    """Take what intermediaries route calls by."""

    name = "routed"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = ()
    input_schema = REGION

    async def _execute(self, context: ExecutionContext, region: str) -> ToolResult:
        return ToolResult.ok(region)


CONTACT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


class Contact(Routed):
    """Take what only the draft of 2020-12 can describe."""

    name = "json_schema_2020_12_tool"
    input_schema = CONTACT

    async def _execute(self, context: ExecutionContext, **contact: Any) -> ToolResult:
        return ToolResult.ok(sorted(contact))


TOOLS = [one for one in list(globals().values()) if isinstance(one, BaseTool)] + [Routed(), Contact()]
