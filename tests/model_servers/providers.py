"""The APIs behind one form: an adapter on the real SDK, and a local server that plays its provider."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
from google import genai

from forge_tools.adapters.anthropic import Messages
from forge_tools.adapters.conversation import Conversation
from forge_tools.adapters.gemini import GenerateContent
from forge_tools.adapters.openai import ChatCompletions, Responses
from forge_tools.adapters.toolset import Toolset
from tests.model_servers.chat import ChatServer
from tests.model_servers.gemini import GeminiServer
from tests.model_servers.messages import MessagesServer
from tests.model_servers.responses import ResponsesServer
from tests.model_servers.wire import ModelServer


@dataclass(frozen=True)
class Provider:
    """One API: its server, its SDK's client, its adapter."""

    name: str
    server: type[ModelServer]
    client: Callable[..., Any]
    adapter: Callable[..., Any]

    def model(self, url: str, **options: Any) -> Any:
        """The adapter, on a client that talks to the server at `url`."""
        return self.adapter("test-model", self.client(base_url=url, api_key="test", max_retries=0), **options)


def gemini_client(base_url: str, api_key: str, **_: Any) -> genai.Client:
    return genai.Client(api_key=api_key, http_options={"base_url": base_url})


async def close(client: Any) -> None:
    """Close an SDK's client; they do not agree on how."""
    await (client.aclose() if hasattr(client, "aclose") else client.close())


CHAT = Provider("chat", ChatServer, openai.AsyncOpenAI, ChatCompletions)
RESPONSES = Provider("responses", ResponsesServer, openai.AsyncOpenAI, Responses)
MESSAGES = Provider("messages", MessagesServer, anthropic.AsyncAnthropic, Messages)
GEMINI = Provider("gemini", GeminiServer, gemini_client, GenerateContent)
PROVIDERS = (CHAT, RESPONSES, MESSAGES, GEMINI)


@dataclass(frozen=True)
class Stage:
    """A conversation about to begin, and the server that plays the model."""

    conversation: Conversation
    toolset: Toolset
    server: ModelServer
    model: Any

    def told(self) -> list[tuple[str, str, bool]]:
        """The (id, text, error flag) of each result that the last request carried."""
        request = self.server.requests[-1]
        found = []
        for message in request.get("messages") or request.get("input") or request["contents"]:
            blocks = message.get("content") or message.get("parts")
            blocks = blocks if isinstance(blocks, list) else [message]
            for block in blocks:
                if "tool_call_id" in block:
                    found.append((block["tool_call_id"], block["content"], block["content"].startswith("Error: ")))
                elif block.get("type") == "function_call_output":
                    found.append((block["call_id"], block["output"], block["output"].startswith("Error: ")))
                elif block.get("type") == "tool_result":
                    found.append((block["tool_use_id"], block["content"], block.get("is_error", False)))
                elif response := block.get("functionResponse"):
                    [(outcome, text)] = response["response"].items()
                    found.append((response.get("id"), text, outcome == "error"))
        return found
