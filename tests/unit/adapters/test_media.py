"""Images and documents of results reach each model through its real SDK, and models that do not see get a line."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.adapters.pydantic_ai import pydantic_ai_toolset
from forge_tools.adapters.toolset import Toolset
from forge_tools.model import File, Image
from forge_tools.sandbox.reach import Reach
from forge_tools.tool import tool
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.model_servers.providers import CHAT, GEMINI, MESSAGES, RESPONSES, Provider, Stage
from tests.model_servers.wire import Say
from tests.part_tools import png
from tests.unit.adapters.test_ollama import OLLAMA

Scene = Callable[..., Stage]
PDF = b"%PDF-1.4\n%%EOF"
CALL = (("call_1", "show", "{}"),)
IMAGE = base64.b64encode(png()).decode()
DOCUMENT = base64.b64encode(PDF).decode()


@tool
async def show() -> list[object]:
    """Return a picture, a document, and a file that no model is shown."""
    return ["Look:", Image(png(), name="a.png"), File(PDF, name="b.pdf"), File(b"\0", name="c.bin")]


@pytest.fixture
def executor(tmp_path: Path) -> ToolExecutor:
    registry = ScopedRegistry()
    registry.register(show)
    return ToolExecutor(registry, reach=Reach(root=tmp_path))


@pytest.fixture
def toolset(executor: ToolExecutor) -> Toolset:
    return Toolset(executor)


def data(found: Any) -> list[str]:
    """The base64 texts anywhere in a request, without the URL that they may be in."""
    if isinstance(found, str):
        text = found.rpartition(";base64,")[2]
        return [text] if text in {IMAGE, DOCUMENT} else []
    return [
        text
        for part in (found.values() if isinstance(found, dict) else found if isinstance(found, list) else [])
        for text in data(part)
    ]


@pytest.mark.parametrize("provider", [CHAT, RESPONSES, MESSAGES, GEMINI], ids=lambda one: one.name)
async def test_a_model_is_sent_the_image_and_the_document(scene: Scene, provider: Provider, toolset: Toolset) -> None:
    stage = scene(provider, Say(calls=CALL), Say("I see red."), toolset=toolset)

    turn = await stage.conversation.run("Go")

    assert (turn.text, stage.server.refusals) == ("I see red.", [])
    request = stage.server.requests[-1]
    assert data(request) == [IMAGE, DOCUMENT]
    assert "[file c.bin, 1 bytes, application/octet-stream: artifact://" in json.dumps(request)


@pytest.mark.parametrize("provider", [CHAT, RESPONSES, MESSAGES, GEMINI], ids=lambda one: one.name)
async def test_a_model_without_vision_gets_lines(scene: Scene, provider: Provider, toolset: Toolset) -> None:
    stage = scene(provider, Say(calls=CALL), Say("I read."), toolset=toolset, vision=False)

    await stage.conversation.run("Go")

    assert data(stage.server.requests[-1]) == []
    [(_, text, _)] = stage.told()
    assert text.startswith("Look:\n[image a.png, 75 bytes, image/png: artifact://")


async def test_ollama_gets_the_images_of_a_message(scene: Scene, toolset: Toolset) -> None:
    stage = scene(OLLAMA, Say(calls=CALL), Say("I see red."), toolset=toolset)

    await stage.conversation.run("Go")

    assert (data(stage.server.requests[-1]), stage.server.refusals) == ([IMAGE], [])


async def test_pydantic_ai_gets_binary_content(executor: ToolExecutor) -> None:
    from pydantic_ai import Agent, BinaryContent
    from pydantic_ai.models.test import TestModel

    agent = Agent(TestModel(), toolsets=[pydantic_ai_toolset(executor)])

    found = await agent.run("Go")

    sent = [part for message in found.all_messages() for part in message.parts if part.part_kind == "user-prompt"]
    seen = [one for part in sent if not isinstance(part.content, str) for one in part.content]
    assert [(one.data, one.media_type) for one in seen if isinstance(one, BinaryContent)] == [
        (png(), "image/png"),
        (PDF, "application/pdf"),
    ]
