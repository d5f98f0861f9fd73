"""Conversations with local servers that play each provider in turn."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import pytest

from forge_tools.adapters.conversation import Conversation
from forge_tools.adapters.toolset import Toolset
from forge_tools.tool.executor import ToolExecutor
from tests.model_servers.providers import PROVIDERS, Provider, Stage, close
from tests.model_servers.wire import Say

Setting = Callable[..., Stage]

create_context_once = cache(ssl.create_default_context)


@pytest.fixture(autouse=True)
def _certificates_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client of an SDK reads all certificates that it trusts, which is most of what it takes to make one; none is used here."""
    monkeypatch.setattr(ssl, "create_default_context", create_context_once)


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.name)
def provider(request: pytest.FixtureRequest) -> Provider:
    chosen: Provider = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streams(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def scene(executor: ToolExecutor) -> AsyncIterator[Setting]:
    """Set the scene: a provider, what its model will say, and how the conversation is had."""
    async with AsyncExitStack() as stack:

        def set_scene(provider: Provider, *script: Say, toolset: Toolset | None = None, **options: Any) -> Stage:
            server = stack.enter_context(provider.server(*script))
            hooks = {name: options.pop(name) for name in ("on_step", "on_event", "messages") if name in options}
            model = provider.model(server.url, **options)
            stack.push_async_callback(close, model.client)
            tools = toolset or Toolset(executor)
            return Stage(Conversation(model, tools, **hooks), tools, server, model)

        yield set_scene
